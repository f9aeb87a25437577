"""Keywords of SQL can name columns: unquoted where pylance takes them, in back-ticks everywhere."""

import lance
import pyarrow as pa
import pytest
from sqlglot.tokens import Tokenizer

import lance_core

PLAIN = ("date", "order", "timestamp", "value", "values", "end", "group", "key", "time", "year", "left", "replace")
SYNTAX = ("not", "case", "select", "and", "or", "like", "in", "is", "between", "when", "then", "else", "as", "from")
TAKEN = {"current_date", "current_time", "current_timestamp", "id", "rowid"}
WORDS = sorted({*(word.lower() for word in Tokenizer.KEYWORDS if word.isidentifier()), *PLAIN, "if", "any"} - TAKEN)
PLACES = (
    "{w} = 3",
    "3 = {w}",
    "{w} IS NOT NULL AND {w} IN (3, 5)",
    "({w}) < 4 OR 1 > {w}",
    "{w} + 1 = 4",
    "1 + {w} = 4",
    "-{w} = -3",
    "{w} NOT IN (4)",
    "{w} BETWEEN 3 AND {w}",
    "abs({w}) = 3",
    "coalesce(1, {w}) = {w} - 2",
    "cast({w} as int) = 3",
    "{w}::bigint = 3",
    "{w} || 'x' = '3x'",
    "NOT {w} <> 3",
    "{w} IS DISTINCT FROM 4",
    "coalesce(CASE {w} WHEN 3 THEN true ELSE false END, {w} IS NULL)",
    "coalesce(CASE WHEN {w} = 3 THEN {w} ELSE {w} END, {w}) = {w}",
)
# In a CASE the word begins another one; back-ticks help.
NOT_HERE = {("case", PLACES[-2]), ("case", PLACES[-1])}


def matches(dataset, sql):
    return dataset.to_table(columns=["id"], filter=sql).column("id").to_pylist()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("words") / "t")
    words = {word: pa.array([3, 4, None], pa.int32()) for word in [*WORDS, *TAKEN - {"id"}]}
    lance.write_dataset(pa.table({"id": [1, 2, 3], **words}), uri)
    return lance.dataset(uri), lance_core.dataset(uri)


@pytest.mark.variants(5)
@pytest.mark.parametrize("place", PLACES)
def test_what_pylance_takes_unquoted_is_taken(place, both):
    theirs, ours = both
    taken = 0
    # Some everywhere, of the others a quarter in each place.
    for word in {*PLAIN, *SYNTAX, *WORDS[PLACES.index(place) % 4 :: 4]}:
        sql = place.format(w=word)
        try:
            expected = theirs.to_table(columns=["id"], filter=sql)
        except (ValueError, OSError):
            continue
        if (word, place) not in NOT_HERE:
            assert ours.to_table(columns=["id"], filter=sql).equals(expected), sql
            taken += 1
    assert taken > 40


def test_back_ticks_name_every_column(both):
    for word in WORDS:
        sql = f"`{word}` = 3 AND NOT `{word}` + 1 <> 4 AND cast(`{word}` as string) = '3'"
        assert [matches(dataset, sql) for dataset in both] == [[1], [1]], sql


def test_the_clock_is_no_column(both):
    for sql in ("current_date > date '2020-01-01'", "current_timestamp > timestamp '2020-01-01 00:00:00'"):
        assert [matches(dataset, sql) for dataset in both] == [[1, 2, 3]] * 2
    assert [matches(dataset, "`current_date` = 3") for dataset in both] == [[1]] * 2


def test_functions_and_types_keep_their_names(tmp_path):
    rows = pa.table(
        {"id": [1, 2], "left": ["abc", "b"], "replace": ["abc", None], "date": ["2020-01-01", "2021-01-01"]}
    )
    datasets = [library.write_dataset(rows, tmp_path / library.__name__) for library in (lance, lance_core)]
    for sql in (
        "left(left, 1) = 'a'",
        "replace(replace, 'a', 'b') = 'bbc'",
        "cast(date as date) < date '2020-06-01'",
        "date LIKE '2020%' AND date NOT ILIKE 'x'",
        "left || replace = 'abcabc'",
    ):
        assert [matches(dataset, sql) for dataset in datasets] == [[1], [1]], sql


@pytest.mark.parametrize("word", PLAIN)
def test_update_delete_and_add_columns_read_them_too(word, tmp_path):
    found = {}
    for library in (lance, lance_core):
        dataset = library.write_dataset(pa.table({"id": [1, 2, 3], word: [3, 4, None]}), tmp_path / library.__name__)
        dataset.update({word: f"{word} + 1"}, where=f"{word} = 4")
        dataset.delete(f"{word} IS NULL")
        dataset.add_columns({"twice": f"2 * {word}"})
        found[library] = dataset.to_table().sort_by("id").to_pylist()
    assert found[lance_core] == found[lance]
    assert [row["twice"] for row in found[lance_core]] == [6, 10]


KEYWORDS = (
    "where",
    "Select",
    "from",
    "order",
    "group",
    "not",
    "case",
    "and",
    "like",
    "union",
    "as",
    "set",
    "fetch",
    "for",
    "drop",
)


@pytest.mark.parametrize("word", KEYWORDS)
def test_keywords_are_names_beside_a_dot(word, tmp_path):
    struct = pa.struct([("gate", pa.int32()), (word, pa.int32())])
    table = pa.table({"name": ["a", "b"], word: pa.array([{"gate": 3, word: 1}, {"gate": 4, word: 2}], struct)})
    lance.write_dataset(table, tmp_path / "t")
    for sql in (f"{word}.gate = 3", f"4 > {word}.gate AND {word}.{word} = 1", f"NOT {word}.gate IN (4, 5)"):
        for library in (lance, lance_core):
            got = library.dataset(str(tmp_path / "t")).to_table(filter=sql, columns=["name"])
            assert got.column("name").to_pylist() == ["a"], (library, sql)


@pytest.mark.parametrize("word", sorted({*KEYWORDS} - {"Select", "not", "case", "and"}))
def test_keywords_are_names_where_a_value_must_stand(word, tmp_path):
    lance.write_dataset(pa.table({word: pa.array([3, 4, None], pa.int32())}), tmp_path / "t")
    for sql in (
        f"{word} = 3",
        f"3 = {word}",
        f"{word} IS NOT NULL AND {word} IN (3, 5)",
        f"({word}) < 4 OR 1 > {word}",
    ):
        for library in (lance, lance_core):
            got = library.dataset(str(tmp_path / "t")).to_table(filter=sql)
            assert got.column(word).to_pylist() == [3], (library, sql)
