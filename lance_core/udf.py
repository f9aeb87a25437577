"""Public names of functions that compute columns, under pylance's names: `lance.udf`."""

from lance_core.verbs.columns.batch_udf import BatchUDF, BatchUDFCheckpoint, batch_udf

__all__ = ["BatchUDF", "BatchUDFCheckpoint", "batch_udf"]
