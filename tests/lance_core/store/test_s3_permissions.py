"""What `docs/storage.md` says about roles at S3 is what requests need: neither less nor more."""

import datetime as dt
import json
import re
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

import lance_core
from lance_core.errors import CommitConflictError, StoreError
from lance_core.maintenance.cleanup import plan
from lance_core.maintenance.verify.files import verify
from lance_core.store import conditions
from lance_core.store import s3_client as client_module
from lance_core.store.options import S3_OPTIONS
from lance_core.store.s3_client import S3Client

PAGE = Path(__file__).parents[3] / "docs" / "storage.md"
ROWS = pa.table({"id": range(10), "v": range(10)})
LARGE = pa.table({"x": np.random.default_rng(0).random(1_500_000)})
ROLES = ("reader", "writer", "maintainer", "eraser")


def policies():
    """The actions of the three policies."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = [json.loads(block) for block in blocks]
    return [{action for one in policy["Statement"] for action in one["Action"]} for policy in found]


def actions_of(role):
    """The actions of a role by the table of the page, those of the rows above included."""
    section = PAGE.read_text().partition("### Permissions on Azure")[0]
    rows = dict(re.findall(r"^\| \*\*(\w+)\*\*: .* \| (.*) \|$", section, re.MULTILINE))
    assert tuple(rows) == ROLES
    return {action for name in ROLES[: ROLES.index(role) + 1] for action in re.findall(r"`(.*?)`", rows[name])}


class Lake:
    """A table at S3 with what the verbs need."""

    def __init__(self, s3):
        self.root = f"s3://{s3.new_bucket()}"
        self.options = s3.storage_options
        self.uri = f"{self.root}/t.lance"
        table = lance_core.write_dataset(ROWS, self.uri, storage_options=self.options)
        table.create_scalar_index("id", "BTREE")
        table.insert(ROWS)
        table.tags.create("first", 1)
        table.create_branch("work").insert(ROWS)
        table.create_branch("draft")
        table.shallow_clone(f"{self.root}/near.lance", 1)
        lance_core.write_dataset(LARGE, f"{self.root}/large.lance", storage_options=self.options)

    def open(self, version=None):
        return lance_core.dataset(self.uri, version=version, storage_options=self.options)


def merge(lake):
    lake.open().merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(ROWS)


def erase(lake):
    uri = f"{lake.root}/plain.lance"
    assert lance_core.write_dataset(ROWS, uri, storage_options=lake.options).erase_rows(
        "id = 3", delete_unverified=True
    )


VERBS = {
    "reader": {
        "scan": lambda lake: lake.open().to_table(filter="id = 3"),
        "old version": lambda lake: lake.open(1).count_rows(),
        "tag": lambda lake: lake.open("first").take([1]),
        "clone": lambda lake: lance_core.dataset(f"{lake.root}/near.lance", storage_options=lake.options).to_table(),
        "lists": lambda lake: [
            *(lake.open().versions(), lake.open().tags.list(), lake.open().branches.list()),
            *(lake.open().clones.list(), lake.open().list_indices()),
        ],
        "list_tables": lambda lake: lance_core.list_tables(lake.root, storage_options=lake.options),
        "verify": lambda lake: verify(lake.open()),
        "dry run": lambda lake: lake.open().explain_cleanup_old_versions(older_than=dt.timedelta(0)),
    },
    "writer": {
        "promote": lambda lake: lake.open().branches.promote("work"),
        "create": lambda lake: lance_core.write_dataset(ROWS, f"{lake.root}/new.lance", storage_options=lake.options),
        "large": lambda lake: lance_core.write_dataset(
            LARGE, f"{lake.root}/new.lance", mode="overwrite", storage_options=lake.options
        ),
        "insert": lambda lake: lake.open().insert(ROWS),
        "delete": lambda lake: lake.open().delete("id = 1"),
        "update": lambda lake: lake.open().update({"v": "0"}, "id = 2"),
        "merge_insert": merge,
        "columns": lambda lake: lake.open().add_columns({"w": "v + 1"}),
        "configuration": lambda lake: lake.open().update_config({"a": "b"}),
        "index": lambda lake: lake.open().create_scalar_index("v", "ZONEMAP"),
        "optimize": lambda lake: lake.open().optimize.optimize_indices(),
        "compact": lambda lake: lake.open().optimize.compact_files(),
        "restore": lambda lake: lake.open(1).restore(),
        "tag": lambda lake: lake.open().tags.create("second", 1),
        "tag moves": lambda lake: lake.open().tags.update("first", 2),
        "branch": lambda lake: lake.open().create_branch("late").insert(ROWS),
        "shallow_clone": lambda lake: lake.open().shallow_clone(f"{lake.root}/near2.lance", 1),
        "deep_clone": lambda lake: lake.open().deep_clone(f"{lake.root}/far.lance", 1),
    },
    "maintainer": {
        "cleanup": lambda lake: lake.open().cleanup_old_versions(
            older_than=dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        ),
        "tag": lambda lake: lake.open().tags.delete("first"),
        "branch": lambda lake: lake.open().branches.discard("draft"),
        "clone": lambda lake: lance_core.LanceDataset.drop(f"{lake.root}/near.lance", lake.options),
        "drop": lambda lake: lance_core.LanceDataset.drop(f"{lake.root}/large.lance", lake.options),
    },
    "eraser": {"erase": erase},
}


@pytest.fixture
def allowed(monkeypatch):
    """The actions that are allowed, to be changed; None for all."""
    real = S3Client._once
    rules = {"allowed": None, "used": set()}

    async def once(self, method, parameters):
        needed = set(client_module._ACTIONS[method].split(" and "))
        rules["used"] |= needed
        if rules["allowed"] is not None and not needed <= rules["allowed"]:
            answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(answer, method)
        return await real(self, method, parameters)

    monkeypatch.setattr(S3Client, "_once", once)
    monkeypatch.setattr(conditions, "_proven", set())
    return rules


def test_the_policies_are_those_of_the_table():
    reader, writer, maintainer = policies()
    assert reader == actions_of("reader")
    assert writer == actions_of("writer")
    assert maintainer == actions_of("eraser")


@pytest.mark.parametrize("role", ROLES)
def test_each_verb_works_with_the_policy_of_its_role(s3, allowed, role):
    lake = Lake(s3)
    allowed |= {"allowed": actions_of(role), "used": set()}
    conditions._proven.clear()
    for name, verb in VERBS[role].items():
        try:
            verb(lake)
        except StoreError as error:
            raise AssertionError(f"{role}: {name}: {error}") from error
    below = ROLES[: ROLES.index(role)]
    own = actions_of(role) - (actions_of(below[-1]) if below else set())
    # Only a failed upload is aborted, and only a bucket with versioning is asked for its noncurrent versions.
    assert own - allowed["used"] <= {"s3:AbortMultipartUpload", "s3:ListBucketVersions"}


def test_a_cleanup_whose_deletes_are_denied_counts_them_whatever_the_clocks(s3, allowed, monkeypatch):
    lake = Lake(s3)
    monkeypatch.setattr(plan, "YOUNG_AGE", dt.timedelta(0))  # so that the storage's clock is asked
    options = {"retain_versions": 1, "error_if_tagged_old_versions": False}
    allowed |= {"allowed": actions_of("reader") | actions_of("writer")}
    done = lake.open().cleanup_old_versions(**options)
    assert (done.old_versions, done.failed_deletes > 0) == (0, True)
    foreseen = lake.open().explain_cleanup_old_versions(**options)
    assert foreseen.stats.old_versions > 0
    allowed |= {"allowed": actions_of("reader")}
    kept = lake.open().explain_cleanup_old_versions(**options)
    assert kept.stats.old_versions == 0
    assert "the last 60 minutes stay" in str(kept.warnings)
    assert "its clock cannot be read" in str(kept.warnings)


def denied_verbs(lake, role):
    """The errors of the verbs of a role that fail, by the name of the verb."""
    errors = {}
    for name, verb in VERBS[role].items():
        try:
            verb(lake)
        except StoreError as error:
            errors[name] = str(error)
    return errors


@pytest.mark.variants(4)
@pytest.mark.filterwarnings("ignore:version 1 of .* cannot be tagged:UserWarning")
@pytest.mark.parametrize(
    ("role", "action"),
    [
        *(("reader", "s3:GetObject"), ("reader", "s3:ListBucket")),
        *(("writer", "s3:GetObject"), ("writer", "s3:ListBucket"), ("writer", "s3:PutObject")),
        ("maintainer", "s3:DeleteObject"),
    ],
)
def test_an_error_names_the_action_that_is_missing(s3, allowed, role, action):
    lake = Lake(s3)
    allowed["allowed"] = actions_of(role) - {action}
    errors = denied_verbs(lake, role)
    assert [error for error in errors.values() if action not in error] == []
    # A single object is found without a listing, and cleanup reports what it could not remove.
    assert len(errors) >= len(VERBS[role]) - 2, errors.keys()


def test_a_cleanup_reports_what_it_may_not_remove(s3, allowed):
    lake = Lake(s3)
    lake.open().delete("id = 1")
    allowed["allowed"] = actions_of("writer")
    stats = VERBS["maintainer"]["cleanup"](lake)
    assert stats.old_versions == 0


@pytest.mark.parametrize("library", [lance_core, lance])
def test_a_role_that_may_not_delete_appends_to_a_server_that_is_tested(s3, allowed, library):
    lake = Lake(s3)
    allowed["allowed"] = actions_of("writer")
    conditions._proven.clear()
    library.write_dataset(ROWS, lake.uri, mode="append", storage_options=lake.options)
    assert lake.open().count_rows() == 30
    allowed["allowed"] = None
    lake.open().cleanup_old_versions(delete_unverified=True, error_if_tagged_old_versions=False)
    assert not [one.key for one in lake.open()._refs.root.list("_transactions/.")]


def test_a_conflict_is_the_error_of_a_role_that_may_not_delete(s3, allowed):
    lake = Lake(s3)
    first, second = lake.open(), lake.open()
    first.update({"v": "1"}, "id = 1")
    allowed["allowed"] = actions_of("writer")
    with pytest.raises(CommitConflictError):
        second.update({"v": "2"}, "id = 1", conflict_retries=0)


def test_the_page_names_each_option():
    text = PAGE.read_text()
    assert [name for name in S3_OPTIONS if f"`{name}`" not in text] == []
