"""What Spark's workers need, imported once by the process that forks them.

Spark forks a worker for each task that finds none idle, and for each step of a data source; each of them then imports pyarrow,
pandas and this library: a second of a processor's time. `tests/spark_classes.py` puts this folder on the path of the workers.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import importlib

    for name in (
        "pandas",
        "pyarrow.compute",
        "pyarrow.dataset",
        "pyspark.worker",
        "pyspark.sql.pandas.serializers",
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.sql.worker.write_into_data_source",
        "pyspark.sql.worker.create_data_source",
        "pyspark.sql.worker.commit_data_source_write",
        "pyspark.sql.worker.lookup_data_sources",
        "pyspark_lance.datasource.source",
    ):
        importlib.import_module(name)
