"""The code location with the plot of recall: notes whose vectors drift away from the training of their index."""

import os

import dagster as dg
import numpy as np
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceMaintenancePolicy, build_maintenance_job, stamp_lance_metadata

ROWS = 1500
INDEX = {"kind": "IVF_FLAT", "num_partitions": 24, "nprobes": 3, "min_recall": 0.7, "retrain_growth": 6}


@dg.asset(key_prefix="library", metadata={"lance/write_mode": "append", "lance/indices": {"embedding": INDEX}})
def notes(context: dg.AssetExecutionContext) -> pa.Table:
    """Notes with vectors, of each run farther around those of the first."""
    number = int(context.run.tags.get("number", 0))
    vectors = np.random.default_rng(number).normal(0, 1 + 2 * number, (ROWS, 8)).astype(np.float32)
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table({"id": ids, "embedding": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 8)})


maintain = build_maintenance_job([notes], LanceMaintenancePolicy(cleanup_older_than=None))
defs = stamp_lance_metadata(
    dg.Definitions(
        assets=[notes],
        jobs=[maintain],
        resources={"io_manager": LanceIOManager(root_uri=os.environ["LANCE_TEST_ROOT"])},
    )
)
