"""SQL statements about Lance tables: parsed into records, then run by the functions of this package."""
