"""Pages of 2.0 files.

Every field has a column of its own, structs and lists included. Nulls are in validity bitmaps or marked in offsets;
there are no levels. A page is described by an ArrayEncoding, a tree whose leaves name buffers of the page.
"""
