"""The names that users import. A change here is a change of the interface."""

import inspect

import lance
import pytest

import lance_core
import lance_core.errors
import lance_dagster
import pyspark_lance

NAMES = {
    lance_core: [
        "Between", "CommitResult", "DataFile", "DeletionFile", "Equals", "FragmentMetadata", "FragmentWriter",
        "LanceDataset", "LanceFragment", "LanceScanner", "Slice", "Slices", "Transaction", "commit_fragments", "dataset",
        "delete_uncommitted_files", "write_dataset", "write_fragments",
    ],
    pyspark_lance: pyspark_lance.__all__,
    lance_dagster: lance_dagster.__all__,
}  # fmt: skip


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_names_are_offered_and_no_others(module):
    assert sorted(module.__all__) == sorted(NAMES[module])
    for name in NAMES[module]:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lance_core.dataset, lance.dataset),
        (lance_core.write_dataset, lance.write_dataset),
        (lance_core.write_fragments, lance.fragment.write_fragments),
        (lance_core.LanceDataset.scanner, lance.LanceDataset.scanner),
    ],
)
def test_arguments_are_pylances(ours, theirs):
    """Same names, same order of the positional ones; ours beyond pylance's are listed."""
    own, other = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    extra = {"dataset_schema", "others"}
    assert set(own) - set(other) <= extra
    common = [name for name in own if name in other]
    assert [n for n in common if own[n].kind is own[n].POSITIONAL_OR_KEYWORD] == [
        name for name in other if name in own and own[name].kind is own[name].POSITIONAL_OR_KEYWORD
    ]


@pytest.mark.parametrize("verb", [lance_core.write_dataset, lance_core.LanceDataset.scanner])
def test_an_argument_that_is_not_offered_is_refused_by_name(verb, tmp_path):
    import pyarrow as pa

    dataset = lance_core.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    target = (pa.table({"a": [1]}), tmp_path / "u") if verb is lance_core.write_dataset else (dataset,)
    with pytest.raises(NotImplementedError, match="prefilter_by_magic"):
        verb(*target, prefilter_by_magic=True)


def test_errors_carry_distinct_stable_codes():
    classes = [getattr(lance_core.errors, name) for name in lance_core.errors.__all__]
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(issubclass(cls, lance_core.errors.LanceError) for cls in classes)
