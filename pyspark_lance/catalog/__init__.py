"""Names of tables in SQL: registered catalogs, and the tables below their roots."""
