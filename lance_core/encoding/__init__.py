"""Arrow arrays to page buffers and back: pure functions of bytes, no input or output.

An array is split into levels and values; values become blocks, which a compression encodes and a structural layout
arranges into page buffers.
"""
