"""The table of days, written by a process that Dagster starts but that does not import Dagster: `assets.calendar`."""

from datetime import date, timedelta

import pyarrow as pa
from dagster_pipes import open_dagster_pipes

import lance_core
from lance_dagster.pipes import commit_properties, report_commit

__all__ = ["main"]

SATURDAY = 5


def main() -> None:
    """Write the days of 2013 with the properties of the run, and report the commit."""
    days = [date(2013, 1, 1) + timedelta(days=number) for number in range(365)]
    rows = pa.table({"date": days, "weekend": [day.weekday() >= SATURDAY for day in days]})
    with open_dagster_pipes() as pipes:
        table = lance_core.write_dataset(
            rows,
            pipes.get_extra("uri"),
            mode="overwrite",
            storage_options=pipes.get_extra("storage_options") or None,
            transaction_properties=commit_properties(pipes),
        )
        report_commit(pipes, table)


if __name__ == "__main__":
    main()
