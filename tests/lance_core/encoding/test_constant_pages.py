"""Constant pages that are none."""

import pytest

from lance_core._proto.encodings_v2_1_pb2 import ConstantLayout
from lance_core.encoding.page import PageInfo, RowRuns
from lance_core.encoding.repdef import Layer
from lance_core.encoding.structural import constant
from lance_core.errors import CorruptFileError


def attempt(layout, buffers):
    page = PageInfo(first_row=0, num_rows=4, length=4, encoding=layout, buffers=tuple((0, size) for size in buffers))
    steps = constant.decode(page, layout, (Layer.NULLABLE_ITEM,), RowRuns.of_range(0, 4))
    return next(steps)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (8,) * 5])
def test_more_buffers_than_a_value_and_its_levels_have(sizes):
    with pytest.raises(CorruptFileError, match=f"a constant page with {len(sizes)} buffers"):
        attempt(ConstantLayout(), sizes)


@pytest.mark.parametrize("sizes", [(8,), (8, 8, 8)])
def test_a_value_is_in_the_description_or_in_a_buffer(sizes):
    with pytest.raises(CorruptFileError, match="buffers"):
        attempt(ConstantLayout(inline_value=b"1234"), sizes)
