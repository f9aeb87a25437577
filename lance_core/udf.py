"""The public module of functions that compute columns from batches, as pylance's `lance.udf`."""

from lance_core.verbs.columns.batch_udf import BatchUDF, BatchUDFCheckpoint, batch_udf

__all__ = ["BatchUDF", "BatchUDFCheckpoint", "batch_udf"]
