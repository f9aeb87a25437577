"""Which runs, inputs and columns made the rows of a table, as its commits record them."""
