"""Names of tables: registered roots, and the tables below them."""
