"""The versions of the file format, with their numbers in footers and manifests.

    data_storage_version    footer      DataFile of a manifest
    0.1, legacy             (0, 2)      (0, 2)      (0, 1) is read as well
    2.0                     (0, 3)      (2, 0)      both are read in both places
    2.1                     (2, 1)      (2, 1)
    2.2, stable             (2, 2)      (2, 2)

2.3 ("next") is rejected: it is not stable yet.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from lance_core.errors import InvalidInputError, UnsupportedError

__all__ = ["DEFAULT_VERSION", "FileVersion"]


class FileVersion(Enum):
    """A version of the file format; its value is the `data_storage_version`."""

    V0_1 = "0.1"
    V2_0 = "2.0"
    V2_1 = "2.1"
    V2_2 = "2.2"

    @property
    def footer_numbers(self) -> tuple[int, int]:
        """The version numbers in the footer of a file."""
        return _FOOTER[self]

    @property
    def manifest_numbers(self) -> tuple[int, int]:
        """The version numbers of a file in a manifest."""
        return _MANIFEST[self]

    @property
    def has_levels(self) -> bool:
        """Whether pages have repetition and definition levels: 2.1 and later."""
        return self in (FileVersion.V2_1, FileVersion.V2_2)

    @classmethod
    def from_string(cls, name: str | None) -> FileVersion:
        """The version of a `data_storage_version`; None and "stable" are the default.

        Raises:
            UnsupportedError: The version is unstable.
            InvalidInputError: The version does not exist.
        """
        if name in (None, "stable"):
            return DEFAULT_VERSION
        if name in ("2.3", "next"):
            raise UnsupportedError(
                f"data storage version {name!r} is unstable and not supported: use {DEFAULT_VERSION.value}"
            )
        try:
            return cls("0.1" if name == "legacy" else name)
        except ValueError:
            names = ", ".join(version.value for version in cls)
            raise InvalidInputError(f"unknown data storage version {name!r}: use {names}, legacy or stable") from None

    @classmethod
    def for_dataset(cls, requested_version: str | None, dataset_version: str) -> FileVersion:
        """The version of new files in a dataset: the requested `data_storage_version`, or that of the dataset.

        Raises:
            UnsupportedError: The requested version is unstable, or only one of the two versions is 0.1.
            InvalidInputError: The requested version does not exist.
        """
        default = cls.from_string(dataset_version)
        version = default if requested_version is None else cls.from_string(requested_version)
        if (version is cls.V0_1) is not (default is cls.V0_1):
            raise UnsupportedError(
                f"Cannot write data files in version {version.value} to a dataset with default version "
                f"{default.value}: V1 and V2 storage versions cannot be mixed"
            )
        return version

    @classmethod
    def from_numbers(cls, major: int, minor: int) -> FileVersion:
        """The version of a footer or of a manifest's data file.

        Raises:
            UnsupportedError: The numbers belong to no known version.
        """
        version = _BY_NUMBERS.get((major, minor))
        if version is None:
            raise UnsupportedError(
                f"file version {major}.{minor} is not supported: supported are 0.1, 2.0, 2.1 and 2.2"
            )
        return version


DEFAULT_VERSION: Final = FileVersion.V2_2
"""The version that is written by default."""

_FOOTER: Final = {
    FileVersion.V0_1: (0, 2),
    FileVersion.V2_0: (0, 3),
    FileVersion.V2_1: (2, 1),
    FileVersion.V2_2: (2, 2),
}
_MANIFEST: Final = {**_FOOTER, FileVersion.V2_0: (2, 0)}
_BY_NUMBERS: Final = {
    **{numbers: version for version, numbers in _FOOTER.items()},
    (2, 0): FileVersion.V2_0,
    (0, 1): FileVersion.V0_1,
}
