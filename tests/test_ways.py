"""What `make ways` counts as a crossed file, and as a return."""

import sys
import threading

import lance_core
from tests.ways import LIMITS, WAYS, Call, Tracer, Way, rows

READING, SCANNER, CLAIMS = "lance_core/dataset/reading.py", "lance_core/verbs/scan.py", "lance_core/index/claims.py"
FIELD = "lance_core/schema/field.py"


def way(*calls):
    return Way(calls=dict.fromkeys(Call(*call) for call in calls))


def test_a_file_is_crossed_if_control_goes_on_from_it():
    found = way((None, None, READING), (READING, "scan", SCANNER), (SCANNER, "rows", CLAIMS))
    assert found.crossed("lance_core") == [READING, SCANNER]
    assert found.leaves("lance_core") == [CLAIMS]
    assert found.crossed("pyspark_lance") == []


def test_supplies_are_not_counted():
    found = way((None, None, READING), (READING, "scan", FIELD), (READING, "scan", "lance_core/times.py"))
    assert found.crossed("lance_core") == [READING]
    assert found.leaves("lance_core") == []
    assert found.returns("lance_core") == 0


def test_a_return_is_a_call_into_a_file_that_was_entered_before():
    found = way((None, None, READING), (READING, "scan", SCANNER), (READING, "scan", CLAIMS), (SCANNER, "rows", CLAIMS))
    assert found.returns("lance_core") == 1


def test_each_way_has_a_limit():
    assert LIMITS.keys() == WAYS.keys()


def test_real_calls_are_traced(tmp_path):
    tracer, found = Tracer(), Way()
    dataset = lance_core.write_dataset(rows(0), str(tmp_path))
    try:
        tracer.install()
        dataset.count_rows()
        with tracer.recording(found):
            dataset.to_table(filter="id > 5")
        dataset.schema.names.index("id")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    crossed = found.crossed("lance_core")
    assert crossed[0] == READING
    assert "lance_core/file/reader.py" in crossed
    assert not found.entered("lance_dagster")
