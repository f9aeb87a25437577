"""Single rows of a page, without decoding the rows around them."""
