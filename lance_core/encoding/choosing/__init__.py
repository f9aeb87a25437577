"""The choice of the layout and the compression of a page."""
