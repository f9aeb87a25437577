"""Which layout and which compression a page gets."""
