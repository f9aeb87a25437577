"""Arrow arrays to page buffers and back: pure functions of bytes, no input or output.

    array  ->  shred into levels and values  ->  blocks  ->  compression  ->  structural layout  ->  page buffers
"""
