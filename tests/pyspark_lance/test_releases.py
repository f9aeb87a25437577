"""Each release of Spark has what the table of `docs/spark.md` says; the rest is rejected by name and release."""

import re
from pathlib import Path

import pytest

import pyspark_lance
from lance_core.errors import InvalidInputError, UnsupportedError
from pyspark_lance import releases
from pyspark_lance.releases import FEATURES, LOWEST, is_at_least, require_feature

ROOT = Path(__file__).parents[2]


def have(monkeypatch, installed):
    monkeypatch.setattr(releases, "installed_spark", lambda: installed)


@pytest.mark.parametrize(
    ("installed", "release", "enough"),
    [
        ("3.4.4", (3, 5), False),
        ("3.5.0", (3, 5), True),
        ("3.5.9", (4, 0), False),
        ("4.0.0.dev3", (4, 0), True),
        ("4.10.0", (4, 9), True),
        ("5.0.0", (4, 1), True),
        (None, (4, 1), True),
    ],
)
def test_releases_are_compared_as_numbers(monkeypatch, installed, release, enough):
    have(monkeypatch, installed)
    assert is_at_least(release) is enough


@pytest.mark.parametrize("feature", FEATURES)
def test_a_missing_feature_is_named_with_both_releases_and_a_remedy(monkeypatch, feature):
    (major, minor), remedy = FEATURES[feature]
    assert (major, minor) > LOWEST
    have(monkeypatch, "3.5.9")
    message = f"column 'c': {feature} needs Spark {major}.{minor} or newer, and pyspark 3.5.9 is installed; {remedy}"
    with pytest.raises(UnsupportedError, match=rf"^{re.escape(message)}\n"):
        require_feature(feature, "column 'c'")
    have(monkeypatch, f"{major}.{minor}.0")
    require_feature(feature)


@pytest.mark.parametrize("name", ["register", "DefaultSource"])
def test_the_format_needs_spark_4(monkeypatch, name):
    have(monkeypatch, "3.5.9")
    monkeypatch.delitem(vars(pyspark_lance), name, raising=False)
    with pytest.raises(ImportError, match=r'format\("lance"\) needs Spark 4\.0 .*3\.5\.9 is .*use pyspark_lance\.read'):
        getattr(pyspark_lance, name)


@pytest.mark.parametrize("name", [name for name in pyspark_lance.__all__ if name not in ("register", "DefaultSource")])
def test_every_other_name_is_there_from_the_lowest_release_on(monkeypatch, name):
    have(monkeypatch, "3.5.0")
    monkeypatch.delitem(vars(pyspark_lance), name, raising=False)
    if name != "register":
        assert getattr(pyspark_lance, name) is not None


def test_columns_of_types_that_a_release_lacks_are_rejected(monkeypatch):
    import pyarrow as pa

    from pyspark_lance.types.spark_types import spark_schema

    have(monkeypatch, "3.5.9")
    with pytest.raises(UnsupportedError, match=r"column 'at': a column of TIME needs Spark 4\.1 or newer"):
        spark_schema(pa.schema([("at", pa.time64("us"))]))
    collated = pa.field("s", pa.string(), metadata={"spark.type": "string collate UTF8_LCASE"})
    with pytest.raises(UnsupportedError, match=r"column 's': a column with a collation needs Spark 4\.0 or newer"):
        spark_schema(pa.schema([pa.field("in", pa.struct([collated]))]))


def test_streams_to_a_table_need_spark_4_1(monkeypatch, tmp_path):
    source = pyspark_lance.DefaultSource({"path": str(tmp_path / "t.lance")})
    have(monkeypatch, "4.0.1")
    with pytest.raises(UnsupportedError, match=r"writeStream.* needs Spark 4\.1 .*use foreachBatch"):
        source.streamWriter(None, overwrite=False)


@pytest.mark.parametrize("options", [{"path": "t.lance"}, {"path": "t.lance", "location": "t.lance"}, {}])
def test_tables_of_sparks_own_catalog_are_rejected_where_they_are_created(options):
    with pytest.raises(InvalidInputError, match=r"CREATE TEMPORARY VIEW t USING lance .*pyspark_lance\.sql"):
        pyspark_lance.DefaultSource({**options, "provider": "lance", "owner": "me"})


def table_of_features():
    names = sorted({LOWEST, *(feature.lowest for feature in FEATURES.values())})
    lines = ["| | " + " | ".join(f"Spark {major}.{minor}" for major, minor in names) + " | with an older one |"]
    lines.append("|---" * (len(names) + 2) + "|")
    everything = "functions of `pyspark_lance`, `LanceTable`, SQL, the IO manager"
    rows = [(everything, LOWEST, ""), *((f"`{name}`" if "(" in name else name, *FEATURES[name]) for name in FEATURES)]
    for name, lowest, remedy in rows:
        cells = ["yes" if release >= lowest else "no" for release in names]
        shown = re.sub(r"pyspark_lance\.\w+|foreachBatch", r"`\g<0>`", remedy)
        lines.append(f"| {name} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def test_the_page_has_the_table():
    assert table_of_features() in (ROOT / "docs/spark.md").read_text(), table_of_features()
