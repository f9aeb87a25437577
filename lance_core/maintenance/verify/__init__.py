"""Checks of a dataset: its files against its manifest (`files`), its versions against each other (`history`)."""
