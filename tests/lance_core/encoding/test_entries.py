"""Entries of full-zip pages are found row by row as they are in sequence."""

import numpy as np
import pytest

from lance_core.encoding.repdef import Layer
from lance_core.encoding.structural import entries
from lance_core.encoding.structural.entries import EntryForm, find_entries
from lance_core.errors import CorruptFileError

LAYERS = (Layer.NULLABLE_ITEM, Layer.NULL_AND_EMPTY_LIST)
FIXED = EntryForm(layers=LAYERS, bits_rep=1, bits_def=2, size=4, is_variable=False)
VARIABLE = EntryForm(layers=LAYERS, bits_rep=7, bits_def=2, size=8, is_variable=True)


def page(form, rows):
    """Rows of random definitions: the bytes, where rows begin and end, and where entries begin."""
    rng = np.random.default_rng(rows)
    data, starts, found = bytearray(), [], []
    for _ in range(rows):
        starts.append(len(data))
        for definition in rng.integers(0, 4, rng.integers(1, 40)):
            found.append(len(data))
            data += int(definition).to_bytes(form.width, "little")
            if form.is_variable and definition == 0:
                length = int(rng.integers(0, 300))
                data += length.to_bytes(form.size, "little") + bytes([255]) * length
            elif not form.is_variable and definition <= 1:
                data += bytes([255]) * form.size
    ends = [*starts[1:], len(data)]
    return np.frombuffer(bytes(data), np.uint8), np.array(starts), np.array(ends), found


@pytest.mark.parametrize("few", [0, 16, 1000])
@pytest.mark.parametrize("form", [FIXED, VARIABLE], ids=["fixed", "variable"])
@pytest.mark.parametrize("rows", [1, 16, 17, 60])
def test_rows_are_walked_alike(monkeypatch, form, rows, few):
    monkeypatch.setattr(entries, "_FEW_ROWS", few)
    data, starts, ends, expected = page(form, rows)
    assert find_entries(form, data, starts, ends).tolist() == expected


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("form", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_entries_that_lead_out_of_their_row_are_rejected(monkeypatch, form, few):
    monkeypatch.setattr(entries, "_FEW_ROWS", few)
    value = bytes(form.width) + (2**62).to_bytes(8, "little")
    data = np.frombuffer(value + bytes(4), np.uint8)
    with pytest.raises(CorruptFileError, match=r"ends after its row|longer than its page"):
        find_entries(form, data, np.array([0]), np.array([4]))
    with pytest.raises(CorruptFileError, match="a row has no entry"):
        find_entries(form, data, np.array([3]), np.array([3]))
