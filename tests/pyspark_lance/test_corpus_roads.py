"""Some files of the corpus on their roads through Spark; all of them go there among the slow tests of `tests/corpus`."""

import re
import warnings

import pytest

from tests.corpus.__main__ import all_trips
from tests.corpus.run import findings

FIXED = (
    r"^pylance/0.3.19 legacy:Spark, (read|change)",
    r"^pylance/0.10.18 legacy:Spark, change",
    r"^delta/(deletion vectors|partitions of odd values):convert Delta",
    r"^iceberg/(identity that files lack|UUIDs|no rows):convert Iceberg",
    r"^spark/nested:Spark, write",
)


@pytest.mark.variants(3)
@pytest.mark.parametrize("pattern", FIXED)
def test_a_fixed_part_goes_through_spark(spark, tmp_path, pattern):
    warnings.simplefilter("ignore")
    trips = [trip for trip in all_trips() if re.search(pattern, trip.name)]
    assert trips
    assert [f"{finding.name}: {finding.what}" for finding in findings(trips, tmp_path, float("inf"))] == []
