"""What a query reads of its tables: never less than it needs. No session, nothing is opened."""

import datetime as dt
import enum
import re

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInputError
from pyspark_lance.statements.trees import needs_of

SCHEMA = pa.schema([("id", pa.int64()), ("Day", pa.int32()), ("name", pa.string()), ("on", pa.date32())])


class Word(str, enum.Enum):  # noqa: UP042 - prints as Word.ONE, a StrEnum would not
    ONE = "one"


def reads(query, params=None, **settings):
    """The filter of each table of a query, and whether all of its columns are read."""
    text = query.replace("{t}", "lake.s.t")
    starts = {found.start(): 3 for found in re.finditer(re.escape("lake.s.t"), text)}
    needs = needs_of(text, starts, params or {}, text, **settings)
    return [(str(needs[start].filter(SCHEMA)), needs[start].has_all) for start in sorted(needs)]


@pytest.mark.parametrize("join", ["ANTI JOIN", "SEMI JOIN", "LEFT ANTI JOIN", "LEFT SEMI JOIN"])
def test_nothing_is_pushed_into_a_table_that_a_join_hides(join):
    """There the name in the WHERE is that of the first table."""
    first, hidden = reads(f"SELECT * FROM {{t}} {join} {{t}} AS t USING (id) WHERE t.id = 1")
    assert first == ("(id == 1)", True)
    assert hidden[0] == "None"


@pytest.mark.parametrize("join", ["JOIN", "INNER JOIN", "CROSS JOIN", ","])
def test_conditions_are_pushed_into_joined_tables(join):
    assert reads(f"SELECT 1 FROM {{t}} AS a {join} {{t}} AS b WHERE b.id = 1") == [
        ("None", False),
        ("(id == 1)", False),
    ]


@pytest.mark.parametrize(
    "query",
    [
        "FROM {t} |> LIMIT 1 |> WHERE id = 3 |> SELECT id",
        "SELECT day AS id, id AS day FROM {t} |> WHERE id = 1",
        "SELECT id FROM {t} LIMIT 2 |> WHERE id = 2",
        "SELECT id FROM {t} WHERE id = 1 AND '${spark.app.name}' = name",
        "SELECT x FROM ({t}) AS a(x, y, z, n) WHERE id = 1",
        "SELECT name FROM {t} PIVOT (max(id) FOR day IN (1, 2)) WHERE day = 1",
    ],
)
def test_nothing_is_pushed_below_what_may_rename_or_limit(query):
    assert reads(query) == [("None", True)]


def test_pipes_of_one_character_are_not_understood():
    with pytest.raises(InvalidInputError, match=r"column 15: the query is not understood near '\| LIMIT 1"):
        reads("FROM {t} | LIMIT 1 | WHERE id = 3 | SELECT id")


@pytest.mark.parametrize("verb", ["INSERT INTO {t} SELECT * FROM c", "DELETE FROM {t} WHERE id IN (SELECT * FROM c)"])
def test_a_statement_that_changes_a_table_begins_with_its_verb(verb):
    with pytest.raises(InvalidInputError, match=r"column \d+: ") as raised:
        reads(f"WITH c AS (SELECT 1) {verb}")
    assert "INSERT INTO t WITH c" in str(raised.value)


def test_a_piped_where_in_a_subquery_is_not_pushed():
    query = "SELECT id FROM {t} q WHERE EXISTS (FROM {t} z |> LIMIT 1 |> WHERE id = 3)"
    assert reads(query) == [("None", True)] * 2


def test_nothing_is_pushed_if_a_setting_changes_what_names_and_constants_mean():
    assert reads("SELECT `(id)?+.+` FROM {t} WHERE id = 1", usual=False) == [("None", True)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM {t} WHERE name = 'it''s'",
        "SELECT id FROM {t} WHERE name = cast('a' as char(3))",
        "SELECT id FROM {t} WHERE name = cast('a' as string)",
        r"SELECT id FROM {t} WHERE name = 'a\\n'",
    ],
)
def test_constants_that_settings_change_are_not_pushed(query):
    assert reads(query) == [("None", False)]


def test_joins_in_comments_that_spark_ends_elsewhere_are_seen():
    for end in ("\r", "\r\n", "\n"):
        query = f"SELECT a.id FROM {{t}} a -- why{end} RIGHT JOIN range(9) b ON a.id = b.id\n WHERE a.day IS NULL"
        assert reads(query) == [("None", False)]
    assert reads("SELECT id FROM {t} WHERE name = '-- a' /* /*+ b */ AND id = 1 -- */") == [
        ('((name == "-- a") and (id == 1))', False)
    ]


def test_case_matters_where_the_session_says_so():
    query = "SELECT q.id FROM {t} q JOIN {t} Q ON q.id = Q.id WHERE Q.id = 1"
    assert reads(query, exact=True) == [("None", False), ("(id == 1)", False)]
    correlated = "SELECT 1 FROM range(3) AS o(day) WHERE EXISTS (SELECT 1 FROM {t} WHERE day = 1 AND id = 2)"
    assert reads(correlated, exact=True) == [("(id == 2)", False)]
    assert reads("SELECT id FROM {t} WHERE DAY = 1") == [("(Day == 1)", False)]


@pytest.mark.parametrize(
    ("value", "column", "pushed"),
    [
        (Word.ONE, "name", '(name == "one")'),
        ("a'b", "name", '(name == "a\'b")'),
        (5, "id", "(id == 5)"),
        (-5, "id", "(id == -5)"),
        (dt.date(2026, 1, 2), "on", "(on == 2026-01-02)"),
        (dt.datetime(2026, 1, 2), "on", "None"),
        (True, "id", "None"),
        (0.5, "id", "None"),
    ],
)
def test_parameters_are_pushed_as_their_value(value, column, pushed):
    assert reads(f"SELECT 1 FROM {{t}} WHERE `{column}` = :p", {"p": value}) == [(pushed, False)]
