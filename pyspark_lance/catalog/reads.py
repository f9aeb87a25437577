"""Listeners that are called with each table version that `pyspark_lance.sql` reads, for example to record lineage."""

from __future__ import annotations

from collections.abc import Callable

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError

_listeners: list[Callable[[LanceDataset], None]] = []


def on_read(listener: Callable[[LanceDataset], None]) -> Callable[[], None]:
    """Call a function with each version of a table that a statement of `sql` reads, in the thread of the statement.

    An error that the function raises fails the statement. A function that is registered again is still called once.

    Args:
        listener: Gets the table, at the version that is read.

    Returns:
        A function that removes the listener.

    Raises:
        InvalidInputError: The listener cannot be called.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "lake/nyc/t.lance")
        >>> pyspark_lance.register_catalog(spark, "lake", "lake")
        >>> versions = []
        >>> stop = pyspark_lance.on_read(lambda table: versions.append(table.version))
        >>> frame = pyspark_lance.sql(spark, "select id from lake.nyc.t")
        >>> versions
        [1]
        >>> stop()
    """
    if not callable(listener):
        raise InvalidInputError(f"on_read takes a function that is called with a table, not {listener!r}")
    if listener not in _listeners:
        _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return stop


def report_read(dataset: LanceDataset) -> None:
    """Call all listeners with a version that a statement reads."""
    for listener in tuple(_listeners):
        listener(dataset)
