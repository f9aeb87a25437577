"""The names that users import. A change here is a change of the interface."""

import importlib
import inspect

import lance
import pytest

import lance_core
import lance_core.errors
import lance_core.maintenance
import lance_core.optimize
import lance_core.testing
import lance_dagster
import pyspark_lance

NAMES = {
    lance_core: [
        "AttemptProperties", "BatchUDF", "Between", "Blob", "BlobColumn", "BlobFile", "ChangePlan", "ChangeTask", "ColumnPlan", "ColumnTask", "ColumnsResult", "Commit", "CommitResult", "ComputePlan", "ComputeProgress", "ComputeResult", "ComputeTask", "ComputedTask", "ConflictPolicy", "DataFile", "DataStatistics", "DatasetBasePath", "DatasetDelta", "DeletionFile", "DueRows", "Equals",
        "FieldStatistics", "FileCopy", "FileOptions", "FragmentMetadata", "FragmentWriter", "Index", "IndexFile", "LanceDataset", "LanceFragment",
        "LanceOperation", "LanceScanner", "MAX_EXACT_KEYS", "MergeInsertBuilder", "Session", "Slice", "SliceWriter", "Slices", "Transaction", "Watermark", "WatermarkMove", "WriteResult", "WriteAttempt", "WrittenColumns", "batch_udf", "blob_array", "blob_field",
        "bytes_read_counter", "canonical_uri", "check_names", "commit_fragments", "computed_schema", "commit_transaction", "dataset", "delete_uncommitted_files", "describe_replaced_rows", "iops_counter", "json_to_schema", "key_filter", "key_hashes", "list_tables", "matching", "retrying", "schema_to_json", "write_dataset",
        "write_fragments",
    ],
    lance_core.maintenance: [
        "Candidate", "CleanupExplanation", "CleanupStats", "Compaction", "CompactionMetrics", "CompactionOptions",
        "CompactionPlan", "CompactionTask", "DeclaredIndices", "ErasureFinding", "ErasureReading", "ErasureReport", "ExpectedVersions", "FoundTable", "HoldingVersion", "IndexBuilder", "IndexCoverage", "IndexDeclaration", "IndexHealth", "ReferencedBranch", "RemovedCommit", "RewriteResult", "Selectors", "auto_cleanup", "change_type",
        "cleanup_old_versions", "columns_without_zone_map", "commit_what_fits", "compact", "cover_rows", "describe_index_health", "explain_cleanup_old_versions", "find_tables", "index_partitions", "keep_indices", "rebase_results",
        "reject_without_search", "removed_commits", "select", "survey_declared", "without_missing_columns",
        "LOG_SCHEMA", "MaintenanceBudget", "MaintenancePlan", "MaintenancePolicy", "MaintenanceReport", "MaintenanceStep", "Rewriter", "TableHealth", "maintain", "maintain_lake", "parse_declarations", "pool_rewriter", "run_here",
    ],
    lance_core.optimize: [
        "Compaction", "CompactionMetrics", "CompactionOptions", "CompactionPlan", "CompactionTask", "RewriteResult",
    ],
    lance_core.testing: ["CreationConformance", "ObjectConformance", "StoreConformance", "StreamConformance", "race"],
    pyspark_lance: [
        "ChangeResult", "CompactionFailure", "CompactionReport", "ConvertResult", "DefaultSource", "EmptyOutput", "LanceMergeBuilder",
        "LanceTable", "OutOfPartition", "SchemaMode", "WriteResult",
        "compact", "compute_columns", "convert", "create_scalar_index", "deep_clone", "delete", "ensure_java", "ensure_python", "execute_tasks", "executor_index_builder", "executor_of_calls", "executor_rewriter", "inserted_rows", "local_session", "merge",
        "on_read", "parse_merge_clauses", "read", "read_changes", "register", "register_catalog", "sql", "to_parquet", "update", "write",
        "write_columns",
    ],
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
        (lance_core.LanceFragment.create, lance.LanceFragment.create),
        (lance_core.DatasetBasePath, lance.DatasetBasePath),
        (lance_core.batch_udf, lance.batch_udf),
        *(
            (getattr(lance_core.LanceDataset, verb), getattr(lance.LanceDataset, verb))
            for verb in (
                "add_bases",
                "add_columns",
                "alter_columns",
                "checkout_version",
                "commit",
                "commit_batch",
                "create_branch",
                "deep_clone",
                "delete",
                "delete_config_keys",
                "delta",
                "drop_columns",
                "drop_index",
                "get_transactions",
                "merge",
                "merge_insert",
                "read_transaction",
                "replace_field_metadata",
                "replace_schema_metadata",
                "restore",
                "shallow_clone",
                "tracked_files",
                "truncate_table",
                "update",
                "update_config",
                "update_field_metadata",
                "update_metadata",
                "update_schema_metadata",
                "validate",
            )
        ),
        *(
            (getattr(lance_core.LanceFragment, verb), getattr(lance.LanceFragment, verb))
            for verb in ("delete", "delete_rows", "merge", "merge_columns", "update_columns", "validate")
        ),
        *(
            (getattr(lance_core.MergeInsertBuilder, verb), getattr(lance.MergeInsertBuilder, verb))
            for verb in (
                "conflict_retries",
                "data_storage_version",
                "execute",
                "execute_uncommitted",
                "retry_timeout",
                "target_all_bases",
                "target_bases",
                "use_index",
                "when_matched_delete",
                "when_matched_fail",
                "when_matched_update_all",
                "when_not_matched_by_source_delete",
                "when_not_matched_insert_all",
                "write_mode",
            )
        ),
    ],
)
def test_arguments_are_pylances(ours, theirs):
    """Same names, same order of the positional ones; ours beyond pylance's are listed."""
    own, other = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    extra = {"copier", "dataset_schema", "options", "others", "unsupported"} | (
        {"write_mode"} if ours.__name__ == "update" else set()
    )
    assert set(own) - set(other) <= extra
    common = [name for name in own if name in other]
    assert [n for n in common if own[n].kind is own[n].POSITIONAL_OR_KEYWORD] == [
        name for name in other if name in own and own[name].kind is own[name].POSITIONAL_OR_KEYWORD
    ]


@pytest.mark.parametrize("verb", [lance_core.dataset, lance_core.write_dataset, lance_core.LanceDataset.scanner])
def test_an_argument_that_is_not_offered_is_rejected_by_name(verb, tmp_path):
    import pyarrow as pa

    dataset = lance_core.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    targets = {lance_core.dataset: (dataset.uri,), lance_core.write_dataset: (pa.table({"a": [1]}), tmp_path / "u")}
    target = targets.get(verb, (dataset,))
    with pytest.raises(NotImplementedError, match="prefilter_by_magic"):
        verb(*target, prefilter_by_magic=True)


@pytest.mark.parametrize("name", ["dataset", "fragment", "optimize", "progress", "udf"])
def test_modules_have_only_names_that_pylance_has_there(name):
    ours, theirs = (importlib.import_module(f"{package}.{name}") for package in ("lance_core", "lance"))
    assert [one for one in ours.__all__ if not hasattr(theirs, one)] == []


def test_the_function_and_the_module_of_one_name():
    """`from lance.dataset import ...` works in pylance as well, where `lance.dataset` is a function."""
    ours, theirs = (importlib.import_module(f"{package}.dataset") for package in ("lance_core", "lance"))
    assert ours.LANCE_COMMIT_MESSAGE_KEY == theirs.LANCE_COMMIT_MESSAGE_KEY
    assert inspect.isfunction(lance_core.dataset)
    assert inspect.isfunction(lance.dataset)


def test_errors_carry_distinct_stable_codes():
    classes = [getattr(lance_core.errors, name) for name in lance_core.errors.__all__]
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(issubclass(cls, lance_core.errors.LanceError) for cls in classes)
