"""Columns of JSON beside pylance: the same bytes, strings and functions, both directions."""

import contextlib
import json
import random
import struct

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError, InvalidInputError, LanceError, SchemaError, UnsupportedError
from lance_core.schema.jsonb import decoded, encoded, json_strings, jsonb_array

VALUES = [
    json.dumps({
        "name": "A", "age": 30, "ok": True, "score": 95.5, "arr": [1, "x", None, 2.5, {"k": 1}], "n": None, "s": "35",
        "o": {"p": {"q": 1}}, "sb": "true", "f": 30.7, "neg": -3.5, "e": [], "a.b": 7, "one": [4],
    }),
    '[10,"y",{"z":1}]', '"str"', "null", None, "0", "-1", "1e300", "18446744073709551615", "-9223372036854775809", '"é\\u0001"',
]  # fmt: skip


def table(values, **more):
    return pa.table({"d": pa.array(values, pa.json_()), **{name: pa.array(column) for name, column in more.items()}})


def random_value(chance, depth=0):
    kind = chance.random()
    if depth > 3 or kind < 0.5:
        return chance.choice([
            None, True, False, 0, -1, "", 'é\n\t"\\\x7f\x01', chance.randint(-(10**22), 10**22), chance.randint(-300, 300),
            chance.uniform(-1, 1) * 10 ** chance.randint(-12, 25), 10.0 ** chance.randint(-8, 20),
            struct.unpack(">d", struct.pack(">Q", chance.getrandbits(62)))[0],
        ])  # fmt: skip
    if kind < 0.75:
        return [random_value(chance, depth + 1) for _ in range(chance.randint(0, 5))]
    return {
        chance.choice("abcé") * chance.randint(0, 3): random_value(chance, depth + 1)
        for _ in range(chance.randint(0, 4))
    }


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_both_read_what_either_wrote(tmp_path, version):
    chance = random.Random(7)
    texts = [*VALUES, *(json.dumps(random_value(chance)) for _ in range(400))]
    lance.write_dataset(table(texts), tmp_path / "theirs", data_storage_version=version)
    lance_core.write_dataset(table(texts), tmp_path / "ours", data_storage_version=version)
    expected = lance.dataset(tmp_path / "theirs").to_table()
    for name in ("theirs", "ours"):
        assert lance_core.dataset(tmp_path / name).to_table() == expected
        assert lance.dataset(tmp_path / name).to_table() == expected
        assert lance_core.dataset(tmp_path / name).schema == expected.schema


def test_the_bytes_are_the_same(tmp_path):
    from lance.file import LanceFileReader, LanceFileWriter

    from lance_core.file import LanceFileReader as OurReader
    from lance_core.file import LanceFileWriter as OurWriter

    chance = random.Random(3)
    rows = table([*VALUES, *(json.dumps(random_value(chance)) for _ in range(400))])
    for name, writer in (("theirs", LanceFileWriter), ("ours", OurWriter)):
        with writer(str(tmp_path / f"{name}.lance")) as file:
            file.write_batch(rows)
    expected = LanceFileReader(str(tmp_path / "theirs.lance")).read_all().to_table()
    for name in ("theirs", "ours"):
        assert OurReader(str(tmp_path / f"{name}.lance")).read_all().to_table() == expected
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table() == expected


EXPRESSIONS = [
    *(f"json_extract(d, '{path}')" for path in (
        "$.name", "$", "$.n", "$.zzz", "$.arr[1]", "$.arr[*]", "$.one[*]", "$[0]", "$.o.p", "$.arr[last]", '$["a.b"]',
        '$."a.b"', "name", "", "$.*",
    )),
    *(f"json_exists(d, '{path}')" for path in ("$.name", "$.n", "$.zzz", "$", "$[1]", "$.arr[9]")),
    *(f"json_get(d, '{key}')" for key in ("name", "n", "zzz", "0", "arr", "a.b")),
    *(f"json_get_{kind}(d, '{key}')" for kind in ("string", "int", "float", "bool") for key in (
        "name", "age", "ok", "score", "arr", "n", "s", "sb", "f", "neg", "zzz", "0", "1", "o",
    )),
    *(f"json_array_contains(d, '$.arr', '{value}')" for value in ("x", "1", "null", "2.5", '{"k":1}', '"x"', "9")),
    *(f"json_array_contains(d, '{path}', 'y')" for path in ("$", "$.name", "$.zzz")),
    *(f"json_array_length(d, '{path}')" for path in ("$.arr", "$", "$.name", "$.e", "$.zzz", "$.n")),
    "json_get_int(json_get(json_get(d, 'o'), 'p'), 'q')", "d IS NULL",
]  # fmt: skip


def test_functions(tmp_path):
    theirs = lance.write_dataset(table(VALUES), tmp_path / "t")
    ours = lance_core.dataset(tmp_path / "t")

    def of_row(library, row, expression):
        try:
            return library.take([row], columns={"x": expression}).to_pydict()["x"][0]
        except (ValueError, OSError) as error:
            return type(error)

    for expression in EXPRESSIONS:
        for row in range(5):
            their, our = of_row(theirs, row, expression), of_row(ours, row, expression)
            if isinstance(their, type):
                assert issubclass(our, LanceError), (expression, row, their, our)
            else:
                assert our == their, (expression, row)


def test_filters(tmp_path):
    rows = table(['{"a":1}', '{"a":2,"t":["x"]}', None], id=[1, 2, 3])
    made = lance_core.write_dataset(rows, tmp_path / "t")
    for filter_ in (
        "json_get_int(d, 'a') > 1",
        "json_array_contains(d, '$.t', 'x')",
        "json_exists(d, '$.a') AND id < 2",
    ):
        assert made.to_table(filter=filter_) == lance.dataset(tmp_path / "t").to_table(filter=filter_)
    for wrong in (
        "json_get(id, 'a') IS NULL",
        "json_exists(d, '$..a')",
        "json_get(d) IS NULL",
        "json_get(d, 5) IS NULL",
    ):
        with pytest.raises(LanceError):
            made.to_table(filter=wrong)


def test_changes(tmp_path):
    rows = table(['{"a":1}', '{"a":12345678901234567890.5}', None], id=[1, 2, 3])
    made = lance_core.write_dataset(rows, tmp_path / "t", max_rows_per_file=2)
    lance_core.write_dataset(table(["[1]"], id=[4]), tmp_path / "t", mode="append")
    made.checkout_latest()
    assert made.update({"d": """'{"q": 1}'"""}, where="id = 3")["num_rows_updated"] == 1
    made.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        table(["5", "6"], id=[4, 5])
    )
    made.delete("id = 1")
    made.add_columns({"a": "json_get_float(d, 'a')"})
    made.optimize.compact_files()
    found = {row["id"]: row["d"] for row in lance.dataset(tmp_path / "t").to_table().to_pylist()}
    assert found == {2: '{"a":1.2345678901234567e+19}', 3: '{"q":1}', 4: "5", 5: "6"}
    assert made.to_table().sort_by("id") == lance.dataset(tmp_path / "t").to_table().sort_by("id")
    with pytest.raises(InvalidInputError, match="is not valid JSON"):
        made.update({"d": "'nope'"})
    with pytest.raises(SchemaError, match="Cannot cast column"):
        made.alter_columns({"path": "d", "data_type": pa.string()})
    with pytest.raises(SchemaError, match="should have type"):
        lance_core.write_dataset(pa.table({"d": ["{}"], "id": [1], "a": [1.0]}), tmp_path / "t", mode="append")


@pytest.mark.parametrize(
    "text",
    [
        *("{a:1}", "", "[1,", "NaN", '{"a":1,"a":2}', "'x'", '"\\ud800"', "[" * 300 + "]" * 300),
        *("1e999", f"[{2**1024}]", f'{{"a":-{10**400}}}', "1" * 5000),  # pylance writes null for them
    ],
)
def test_what_is_no_json(tmp_path, text):
    with pytest.raises(InvalidInputError, match="column 'd': row 1 of the batch is not valid JSON"):
        lance_core.write_dataset(table(["1", text]), tmp_path / "t")
    assert not list((tmp_path / "t").rglob("*.lance"))


def test_damaged_values():
    good = encoded({"a": [1, "x", 2.5, None, True], "b": {"c": "d"}})
    chance = random.Random(1)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        cut = bytes(bad[: chance.randint(0, len(bad))])
        with contextlib.suppress(CorruptFileError, UnsupportedError):
            decoded(cut)
    assert json_strings(jsonb_array(pa.array(['{"b":1,"a":2}', None]), "d")).to_pylist() == ['{"a":2,"b":1}', None]


def test_values_are_nested_as_deep_as_they_are_read():
    text = "[" * 201 + "]" * 201
    assert json_strings(jsonb_array(pa.array([text]), "d")).to_pylist() == [text]
    with pytest.raises(InvalidInputError, match="nested more than 200 deep"):
        jsonb_array(pa.array([f"[{text}]"]), "d")


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_rows_that_lack_the_column(tmp_path, version):
    uri = str(tmp_path / "t.lance")
    documents = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None]))
    lance_core.write_dataset(pa.table({"id": [1, 2], "j": documents}), uri, data_storage_version=version)
    lance_core.dataset(uri).insert(pa.table({"id": [3]}))
    lance.dataset(uri).insert(pa.table({"id": [4]}))
    for library in (lance_core, lance):
        rows = library.dataset(uri).to_table()
        assert [value is None for value in rows["j"].to_pylist()] == [False, True, True, True]
