"""Structural layouts of pages: mini-block, full-zip, constant and blob, one module each."""
