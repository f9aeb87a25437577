"""Footers and versions, to the byte."""

import struct

import pytest

from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError
from lance_core.file import DEFAULT_VERSION, FileVersion
from lance_core.file.metadata import FOOTER_SIZE, Footer, read_version

FOOTER = Footer(
    column_metadata=0x0102, column_table=0x0304, buffer_table=0x0506, num_buffers=1, num_columns=3, major=2, minor=2
)
GOLDEN = bytes.fromhex("020100000000000004030000000000000605000000000000010000000300000002000200") + b"LANC"


def test_golden_bytes():
    assert FOOTER.to_bytes() == GOLDEN
    assert len(GOLDEN) == FOOTER_SIZE == 40


def test_round_trip_from_a_longer_tail():
    assert Footer.from_bytes(b"anything" + GOLDEN) == FOOTER


@pytest.mark.parametrize("tail", [b"", b"LANC", GOLDEN[:-1] + b"X", GOLDEN[1:]])
def test_what_is_no_footer(tail):
    with pytest.raises(CorruptFileError):
        Footer.from_bytes(tail)


@pytest.mark.parametrize(
    ("name", "footer", "manifest"),
    [("0.1", (0, 2), (0, 2)), ("2.0", (0, 3), (2, 0)), ("2.1", (2, 1), (2, 1)), ("2.2", (2, 2), (2, 2))],
)
def test_numbers(name, footer, manifest):
    version = FileVersion.from_string(name)
    assert version.footer_numbers == footer
    assert version.manifest_numbers == manifest
    assert FileVersion.from_numbers(*footer) is FileVersion.from_numbers(*manifest) is version


def test_names():
    assert FileVersion.from_string(None) is FileVersion.from_string("stable") is DEFAULT_VERSION is FileVersion.V2_2
    assert FileVersion.from_string("legacy") is FileVersion.V0_1
    with pytest.raises(UnsupportedError, match="next"):
        FileVersion.from_string("next")
    with pytest.raises(InvalidInputError, match=r"3\.7"):
        FileVersion.from_string("3.7")
    with pytest.raises(UnsupportedError, match=r"2\.3"):
        FileVersion.from_numbers(2, 3)


def test_version_of_a_legacy_file():
    assert read_version(struct.pack("<qHH4s", 77, 0, 2, b"LANC")) == (0, 2)
