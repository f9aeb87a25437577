"""What `make ways` counts: files that a call enters, lines of code, generic names."""

import ast

import lance_core
import lance_core.lance
from tests.sizes import GENERIC, bound_names, code_lines, generic_names
from tests.ways import CALLS, LIMITS, Tracer, make_rows


def test_each_call_has_a_limit():
    assert [name for name in LIMITS if name in CALLS] == list(CALLS)


def test_files_are_those_in_which_a_function_runs(tmp_path):
    dataset = lance_core.write_dataset(make_rows(0), str(tmp_path))
    tracer = Tracer()
    dataset.count_rows()
    with tracer.recording():
        dataset.to_table(filter="id > 5")
    dataset.delete("id = 3")
    assert "lance_core/dataset/reading.py" in tracer.entered
    assert "lance_core/file/reader.py" in tracer.entered
    assert "lance_core/verbs/rows/delete.py" not in tracer.entered
    assert not any(file.startswith(("lance_dagster/", "tests/")) for file in tracer.entered)


def test_lines_of_code():
    source = '"""Head\n\nof two lines."""\n\n# why\nx = 1  # because\ny = (\n    2\n)\n"""About y."""\n\n\ndef f():\n    """Doc."""\n    return x\n'
    assert code_lines(source) == {6, 7, 8, 9, 13, 15}


def test_bound_names_are_those_of_all_statements():
    code = (
        "import a as b\ndef c(d, *e, f=1, **g):\n  h = (i := 1)\n  for j in [k for k in l]: pass\n"
        "  try: pass\n  except E as m: pass"
    )
    assert sorted(name for name, _ in bound_names(ast.parse(code))) == list("bcdefghijkm")


def test_generic_names_are_rare_and_never_public():
    places = generic_names()
    assert len(places) <= LIMITS["generic names"].allowed, places
    assert GENERIC.isdisjoint(lance_core.__all__)
