"""The table that tests of incremental inputs copy."""

import lance
import pytest

from tests.lance_dagster.loading.copies import rows


@pytest.fixture
def table(lake):
    return lance.write_dataset(rows(1, 2, 3), lake.uri("source"), enable_stable_row_ids=True)
