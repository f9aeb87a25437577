"""What each Python worker of Spark imports is imported once, by the daemon that forks the workers.

A worker imports for a second of a processor's time, and a task that fails ends its worker. Python imports this file where
its folder is on PYTHONPATH; only Spark's daemons go on. They also take pyspark from its folder: of the archive that Spark
puts first, Python compiles each module again.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import importlib
    import os

    sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a thread of the daemon would be lost by a fork
    for module in (sys.orig_argv[-1], "pyspark_lance.datasource.source", "pyspark_lance.lance_table"):
        importlib.import_module(module)
    import late_files

    if late_files.PLACE in os.environ:
        from pathlib import Path

        from pyspark_lance.writing import orphan_files

        orphan_files.time = late_files.impatient(Path(os.environ[late_files.PLACE]))
