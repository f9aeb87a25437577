"""Compressions of values and levels: a module, and a line each in the table below."""

from lance_core.encoding.compression import (
    constant,
    dictionary,
    fixed_size_list,
    flat,
    fsst,
    general,
    inline_bitpacking,
    out_of_line_bitpacking,
    packed_struct,
    rle,
    variable,
    variable_packed_struct,
)
from lance_core.encoding.compression.registry import COMPRESSIONS

# By the name of the member in the CompressiveEncoding message.
COMPRESSIONS.update(
    {
        "flat": flat.COMPRESSION,
        "variable": variable.COMPRESSION,
        "constant": constant.COMPRESSION,
        "out_of_line_bitpacking": out_of_line_bitpacking.COMPRESSION,
        "inline_bitpacking": inline_bitpacking.COMPRESSION,
        "fsst": fsst.COMPRESSION,
        "dictionary": dictionary.COMPRESSION,
        "rle": rle.COMPRESSION,
        "byte_stream_split": flat.BYTE_STREAM_SPLIT,
        "general": general.COMPRESSION,
        "fixed_size_list": fixed_size_list.COMPRESSION,
        "packed_struct": packed_struct.COMPRESSION,
        "variable_packed_struct": variable_packed_struct.COMPRESSION,
    }
)
