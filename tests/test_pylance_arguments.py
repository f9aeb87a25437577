"""The documentation lists each argument of pylance that is not offered: the calls themselves say which."""

import inspect
import re

import lance
import lance.file
import lance.fragment
import pyarrow as pa
import pytest

import lance_core
import lance_core.file
from lance_core.errors import UnsupportedError
from tests.sizes import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
ROWS = pa.table({"id": [1, 2]})


def calls(uri):
    """Calls with the least arguments, each with pylance's function."""
    table = lance_core.dataset(uri)
    restores = lance_core.LanceOperation.Restore(version=1)
    dataset, fragment, file = lance.LanceDataset, lance.LanceFragment, lance.file
    path = f"{uri}/data/x.lance"
    return {
        "dataset": (lance.dataset, lambda **one: lance_core.dataset(uri, **one)),
        "write_dataset": (lance.write_dataset, lambda **one: lance_core.write_dataset(ROWS, f"{uri}-2", **one)),
        "write_fragments": (lance.fragment.write_fragments, lambda **one: lance_core.write_fragments(ROWS, uri, **one)),
        "LanceDataset.scanner": (dataset.scanner, table.scanner),
        "LanceDataset.to_table": (dataset.to_table, table.to_table),
        "LanceDataset.commit": (dataset.commit, lambda **one: lance_core.LanceDataset.commit(uri, restores, **one)),
        "LanceDataset.commit_batch": (
            dataset.commit_batch, lambda **one: lance_core.LanceDataset.commit_batch(uri, [], **one)
        ),
        "LanceDataset.create_scalar_index": (
            dataset.create_scalar_index, lambda **one: table.create_scalar_index("id", "BTREE", **one)
        ),
        "LanceDataset.prewarm_index": (dataset.prewarm_index, lambda **one: table.prewarm_index("id_idx", **one)),
        "LanceDataset.shallow_clone": (dataset.shallow_clone, lambda **one: table.shallow_clone(f"{uri}-3", 1, **one)),
        "LanceDataset.deep_clone": (dataset.deep_clone, lambda **one: table.deep_clone(f"{uri}-4", 1, **one)),
        "LanceFragment.create": (fragment.create, lambda **one: lance_core.LanceFragment.create(uri, ROWS, **one)),
        "LanceFragment.scanner": (fragment.scanner, table.get_fragments()[0].scanner),
        "LanceFileReader": (file.LanceFileReader.__init__, lambda **one: lance_core.file.LanceFileReader(path, **one)),
        "LanceFileWriter": (
            file.LanceFileWriter.__init__, lambda **one: lance_core.file.LanceFileWriter(path, **one)
        ),
        "LanceFileSession": (
            file.LanceFileSession.__init__, lambda **one: lance_core.file.LanceFileSession(uri, **one)
        ),
    }  # fmt: skip


def rejected(theirs, call):
    """The arguments of pylance with which a call raises NotImplementedError that names them."""
    found = set()
    for name, parameter in inspect.signature(theirs).parameters.items():
        if (
            name.startswith("_")
            or name == "self"
            or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ):
            continue
        for value in (object(), b""):  # an argument of another type is rejected for its type first
            try:
                call(**{name: value})
            except UnsupportedError as error:
                if re.search(rf"\b{name}\b", str(error)):
                    found.add(name)
            except Exception:  # noqa: BLE001 - an argument that is offered, with a wrong value
                pass
    return found


def listed():
    """The arguments that the documentation lists, by call."""
    section = PAGE.read_text().partition("## Arguments that are not offered")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \|", section, re.MULTILINE)
    return {call: set(re.findall(r"`(\w+)`", names)) for call, names in rows}


@pytest.mark.parametrize("call", calls(lance_core.write_dataset(ROWS, "memory://names-of-arguments").uri))
def test_the_page_lists_the_arguments_of_a_call(tmp_path, call):
    table = lance_core.write_dataset(ROWS, tmp_path / "t")
    table.create_scalar_index("id", "BTREE", name="id_idx")
    uri = table.uri
    assert listed().get(call, set()) == rejected(*calls(uri)[call])
