"""`python -m lance_core.cli` is `lance`."""

from lance_core.cli import main

main()
