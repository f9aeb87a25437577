"""Pages of 0.1 files: one plain page per field and batch, without nulls.

    plain         little-endian values, bools as bits; fixed size lists are their items
    var_binary    the bytes of all values, then n + 1 i64 offsets that count from the beginning of the file; the page
                  begins at the offsets. An empty value is read as null where nulls are allowed.
    list          n + 1 offsets into the items of the same batch, i32, or i64 in large lists
    struct        no page; the children only
    dictionary    indices, plain; the values once per file
    null          no bytes

Other nulls are not kept: a null is written as zero bits, an empty list, or the first item of a dictionary, and is read
back as that value. (A dictionary of the file may have a null item: see `file.legacy`.)
"""
