"""What is wrong is said with its name: the table, the endpoint, the argument; and with the remedy."""

import socket

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
import pytest

import lance_core as lance
from lance_core.errors import InvalidInputError, StoreError, VersionNotFoundError


@pytest.fixture
def table(tmp_path):
    return lance.write_dataset(pa.table({"n": [1, 2]}), tmp_path / "named.lance")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: lance.dataset(t.uri, version=9), "version main:9 does not exist in the table {}; versions()"),
        (lambda t: t.checkout_version("none"), "tag none does not exist in the table {}; tags.list()"),
        (lambda t: t.tags.delete("none"), "tag none does not exist in the table {}; tags.list()"),
        (lambda t: t.tags.create("mine", 9), "version main:9 does not exist in the table {}; versions()"),
        (lambda t: t.checkout_version(("none", None)), "Branch none does not exist in the table {}"),
        (lambda t: t.branches.delete("none"), "Branch none does not exist in the table {}"),
    ],
)
def test_versions_tags_and_branches_name_their_table(table, ask, said):
    with pytest.raises(VersionNotFoundError) as found:
        ask(table)
    root = table.uri
    assert said.split("{}")[0] in str(found.value)
    assert root in str(found.value)
    assert said.split("{}")[1] in str(found.value)


def test_a_tag_that_is_there_names_its_table_and_the_remedy(table):
    table.tags.create("mine", 1)
    with pytest.raises(InvalidInputError, match=r"tag mine already exists in the table .*named\.lance; tags\.update"):
        table.tags.create("mine", 1)


def test_arguments_that_are_none_are_named(table):
    with pytest.raises(InvalidInputError, match=r"to_table: columns must be a list .*, not 5"):
        table.to_table(columns=5)
    with pytest.raises(InvalidInputError, match=r"named\.lance: a time must be in ISO form, .* not 'noon'"):
        lance.dataset(table.uri, asof="noon")
    with pytest.raises(InvalidInputError, match=r"checkout_version: version must be .* not \(5, 1\)"):
        table.checkout_version((5, 1))


@pytest.mark.parametrize("user", ["", "who:hidden@"])
def test_storage_that_cannot_be_reached_is_named(user):
    with socket.socket() as held:  # nobody listens
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        options = {
            "aws_endpoint": f"http://{user}{endpoint}",
            "allow_http": "true",
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_region": "us-east-1",
            "client_max_retries": "0",
        }
        with pytest.raises(StoreError) as found:
            lance.dataset("s3://bucket/t.lance", storage_options=options)
    said = str(found.value)
    assert f"cannot connect to http://{endpoint}: check the network, and aws_region and aws_endpoint" in said or user
    assert f"http://{endpoint}: check the network" in said
    assert "hidden" not in said


@pytest.mark.parametrize("kind", [lance.LanceDataset, lance.LanceFragment])
def test_objects_that_are_being_made_can_be_shown(kind):
    assert repr(kind.__new__(kind)) == f"<{kind.__name__} that is not opened>"


@pytest.mark.parametrize("place", ["", "none/there"])
def test_a_place_that_cannot_be_a_checkpoint_is_named(tmp_path, place):
    path = tmp_path / place
    with pytest.raises(InvalidInputError, match=f"{path} cannot be used as a checkpoint"):
        lance.batch_udf(checkpoint_file=path)(lambda batch: batch)


def test_a_path_in_place_of_rows_is_answered_with_a_remedy(tmp_path):
    (tmp_path / "file.csv").write_text("a\n1\n")
    for given in (str(tmp_path / "file.csv"), tmp_path / "file.csv"):
        with pytest.raises(TypeError, match=r"file\.csv.*: open a file first, for example by pyarrow\.csv\.open_csv"):
            lance.write_dataset(given, tmp_path / "t.lance")
    for rows in (pa.csv.open_csv(tmp_path / "file.csv"), pa.dataset.dataset(tmp_path / "file.csv", format="csv")):
        assert lance.write_dataset(rows, tmp_path / "t.lance", mode="append").schema.names == ["a"]


def test_expressions_are_shown_without_the_options_of_arrow(tmp_path):
    dataset = lance.write_dataset({"a": [1], "s": ["x"]}, tmp_path / "t.lance")
    with pytest.raises(InvalidInputError, match=r"^filter cast\(a, int8\) gives int8"):
        dataset.to_table(filter=pa.compute.field("a").cast("int8"))
    with pytest.raises(InvalidInputError, match=r"^string_to_date\(s\): "):
        dataset.to_table(columns={"x": "cast(s as date)"})
