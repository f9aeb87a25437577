"""Writing DataFrames to Lance tables: options, schema, tasks on executors, one commit."""
