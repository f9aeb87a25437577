"""What the error of a place without a table says of what is there."""

import pytest

import lance_core
from lance_core.errors import DatasetNotFoundError


def test_a_file_or_another_folder_is_named(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("a\n1\n")
    for place, reason in ((file, "a file is there"), (tmp_path, "the folder is there, but has no Lance table")):
        with pytest.raises(DatasetNotFoundError, match=rf"Dataset at path .* was not found: {reason}"):
            lance_core.dataset(place)
    with pytest.raises(DatasetNotFoundError, match=r"(?m)was not found$"):
        lance_core.dataset(tmp_path / "none")
