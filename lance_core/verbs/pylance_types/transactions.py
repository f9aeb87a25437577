"""The public class of transactions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_core.table import transaction as records
from lance_core.verbs.pylance_types.conversion import from_record, to_record
from lance_core.verbs.pylance_types.operations import LanceOperation


@dataclass
class Transaction:
    """One change to a dataset.

    Attributes:
        read_version: Version that the change was made from; 0 for a new dataset.
        operation: The change.
        uuid: Id of the transaction, which a rebase keeps.
        transaction_properties: Free strings that describe the change.
        affected_rows: Rows that a Delete or Update removes, as offsets by fragment id, so that it can be rebased on
            other changes of the same fragments; only the process that made it knows them (not in pylance).
    """

    read_version: int
    operation: LanceOperation.BaseOperation
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    transaction_properties: dict[str, str] | None = field(default_factory=dict)
    affected_rows: Mapping[int, BitMap] | None = field(default=None, repr=False, compare=False)

    def to_record(self) -> records.Transaction:
        """The record of the table layer.

        Raises:
            UnsupportedError: The operation cannot be committed.
        """
        return records.Transaction(
            read_version=self.read_version,
            operation=to_record(self.operation),
            uuid=self.uuid,
            properties=dict(self.transaction_properties or {}),
        )

    @classmethod
    def from_record(cls, record: records.Transaction, affected_rows: Mapping[int, BitMap] | None = None) -> Transaction:
        """The public form of a record."""
        return cls(
            read_version=record.read_version,
            operation=from_record(record.operation),
            uuid=record.uuid,
            transaction_properties=dict(record.properties),
            affected_rows=affected_rows,
        )
