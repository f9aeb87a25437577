"""What becomes of each field of each message when a verb of ours makes the next version.

    kept    as it was, in every version that is made of that one; numbers that only grow may have grown
    set     computed again, by the verb
    no      not inherited, with the reason

A field of the wire that is not in here fails `test_survival`.
"""

KEPT, SET, NO = "kept", "set", "no"

REJECTED = (NO, "what has it is rejected by name when the fragment is read")

MANIFEST = {
    "fields": (KEPT, ""),
    "fragments": (KEPT, ""),
    "version": (SET, "one more"),
    "version_aux_data": (NO, "a position in the file; the specification says that it is not inherited"),
    "schema_metadata": (KEPT, ""),
    "index_section": (SET, "a position in the file"),
    "timestamp": (SET, "the time of the commit"),
    "tag": (SET, "the transaction's, which is empty"),
    "reader_feature_flags": (SET, "computed from what the version holds; unknown ones are rejected"),
    "writer_feature_flags": (SET, "the same"),
    "max_fragment_id": (KEPT, "never lowered"),
    "transaction_file": (SET, "the file of the commit"),
    "writer_version": (SET, "this library"),
    "next_row_id": (KEPT, "never lowered"),
    "data_format": (KEPT, ""),
    "config": (KEPT, ""),
    "base_paths": (KEPT, ""),
    "table_metadata": (KEPT, ""),
    "branch": (KEPT, ""),
    "transaction_section_deprecated": (SET, "a position in the file, written as transaction_section"),
    "fragment_tree": (NO, "rejected: fragments may stand in it alone"),
    "transaction_section": (SET, "a position in the file"),
    "max_allocated_field_id": (KEPT, "never lowered"),
    "clustering": (NO, "of a format to come; pylance 14.0.2 does not inherit it either"),
    "max_clustering_id": (NO, "the same"),
}
FIELD = {
    "type": (NO, "says nothing that the parents do not; pylance 14.0.2 writes PARENT as well"),
    **dict.fromkeys(
        (
            "name",
            "id",
            "parent_id",
            "logical_type",
            "nullable",
            "encoding",
            "dictionary",
            "extension_name",
            "metadata",
            "unenforced_primary_key",
            "unenforced_primary_key_position",
            "unenforced_clustering_key",
            "unenforced_clustering_key_position",
        ),
        (KEPT, ""),
    ),
}
DATA_FRAGMENT = {
    **dict.fromkeys(("id", "files", "deletion_file", "physical_rows", "inline_row_ids"), (KEPT, "")),
    "inline_created_at_versions": (KEPT, ""),
    "inline_last_updated_at_versions": (KEPT, "of rows that are not updated"),
    **dict.fromkeys(
        (
            "external_row_ids",
            "external_last_updated_at_versions",
            "external_created_at_versions",
            "spilled_row_ids",
            "spilled_last_updated_at_versions",
            "spilled_created_at_versions",
            "overlays",
        ),
        REJECTED,
    ),
}
DATA_FILE = dict.fromkeys(
    (
        "path",
        "fields",
        "column_indices",
        "file_major_version",
        "file_minor_version",
        "file_size_bytes",
        "base_id",
    ),
    (KEPT, ""),
)
DELETION_FILE = dict.fromkeys(("file_type", "read_version", "id", "num_deleted_rows", "base_id"), (KEPT, ""))
INDEX_METADATA = {
    **dict.fromkeys(
        (
            "uuid",
            "fields",
            "name",
            "dataset_version",
            "index_details",
            "index_version",
            "created_at",
            "base_id",
            "files",
            "covering_fields",
        ),
        (KEPT, ""),
    ),
    "fragment_bitmap": (KEPT, "but for fragments whose indexed values changed"),
}
BASE_PATH = dict.fromkeys(("id", "name", "is_dataset_root", "path"), (KEPT, ""))

TRANSACTION = dict.fromkeys(("read_version", "uuid", "tag", "transaction_properties"), (KEPT, ""))

OPERATIONS = {
    "append": {"fragments": (KEPT, "")},
    "delete": dict.fromkeys(("updated_fragments", "deleted_fragment_ids", "predicate"), (KEPT, "")),
    "overwrite": dict.fromkeys(
        ("fragments", "schema", "schema_metadata", "config_upsert_values", "initial_bases"), (KEPT, "")
    ),
    "create_index": dict.fromkeys(("new_indices", "removed_indices"), (KEPT, "")),
    "rewrite": {
        "groups": (KEPT, ""),
        "rewritten_indices": (KEPT, ""),
        "old_fragments": (SET, "becomes a group, which newer readers understand"),
        "new_fragments": (SET, "the same"),
    },
    "merge": dict.fromkeys(("fragments", "schema", "schema_metadata", "preserves_nullability"), (KEPT, "")),
    "restore": {"version": (KEPT, "")},
    "reserve_fragments": {"num_fragments": (KEPT, "")},
    "update": dict.fromkeys(
        (
            "removed_fragment_ids",
            "updated_fragments",
            "new_fragments",
            "fields_modified",
            "compacted_sstables",
            "fields_for_preserving_frag_bitmap",
            "update_mode",
            "inserted_rows",
            "updated_fragment_fields",
            "updated_fragment_offset_bitmaps",
        ),
        (KEPT, ""),
    ),
    "project": dict.fromkeys(("schema", "preserves_nullability"), (KEPT, "")),
    "update_config": {
        **dict.fromkeys(
            ("config_updates", "table_metadata_updates", "schema_metadata_updates", "field_metadata_updates"),
            (KEPT, ""),
        ),
        **dict.fromkeys(
            ("upsert_values", "delete_keys", "schema_metadata", "field_metadata"),
            (SET, "a form of early 2025, which becomes the newer one"),
        ),
    },
    "data_replacement": {"replacements": (KEPT, "")},
    "update_mem_wal_state": {"compacted_sstables": (KEPT, "")},
    "clone": dict.fromkeys(("is_shallow", "ref_name", "ref_version", "ref_path", "branch_name"), (KEPT, "")),
    "update_bases": {"new_bases": (KEPT, "")},
    "data_overlay": {},
}
"""By the name of the operation in a Transaction; an overlay is an unknown operation, whole."""

OTHERWISE = {
    "shallow clone": {("Manifest", "branch"): "a clone is a dataset of its own"},
    "deep clone": {
        ("Manifest", "branch"): "the same",
        ("Manifest", "base_paths"): "all files are copied below its own root",
        ("DataFile", "base_id"): "the same",
        ("DeletionFile", "base_id"): "the same",
        ("IndexMetadata", "base_id"): "the same",
    },
}
"""What is kept elsewhere and not by these verbs, with the reason; pylance does so as well."""
