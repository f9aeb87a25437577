"""Differences from pylance, or from another format, that are right, each with a sentence of a page."""

import re
from dataclasses import dataclass

__all__ = ["DIFFERENCES", "Difference", "difference"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference.

    Attributes:
        trips: A pattern of file, road and version.
        what: A pattern of the finding.
        page: Words of the page that names it.
        document: The page, in `docs`.
    """

    trips: str
    what: str
    page: str
    document: str = "compatibility.md"


DIFFERENCES = (
    Difference(trips=":add_columns:", what=r"__copy_\d: .*?not null", page="the column allows nulls"),
    Difference(
        trips="nulls:indices:", what="IS NULL: .*, pylance gives", page="of a column of type null beside a ZONEMAP"
    ),
    Difference(trips="JSON:add_columns:", what=r"__copy_0: string", page="a copy of a column of JSON"),
    Difference(
        trips="with a back-tick", what="cannot contain a back-tick", page="columns with a back-tick in their name"
    ),
    Difference(trips="vectors of structs", what="columns of differing lengths", page="fixed-size lists of structs"),
    Difference(trips=":Dagster", what="differs from .* only by case", page="names that differ only in case"),
    Difference(trips="no name|with nothing", what="a column has an empty name", page="reserved or empty names"),
    Difference(trips="empty records:cross:", what="None", page="a struct without fields"),
    Difference(
        trips="of more values than codes:",
        what="has more values in these rows than the indices of its dictionary can count",
        page="rows with more values than the indices of their dictionary count",
    ),
    Difference(
        trips="deletion vectors:convert Delta",
        what="deletion vectors of Delta can only be read",
        page="deletion vectors is rejected before anything is written",
        document="spark.md",
    ),
)


def difference(trip: str, what: str) -> Difference | None:
    """The difference that a finding is; None for a fault."""
    return next(
        (one for one in DIFFERENCES if re.search(one.trips, trip) and re.search(one.what, what, re.DOTALL)), None
    )
