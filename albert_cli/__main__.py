"""`python -m albert_cli` is the same as the console script `albert`."""

from albert_cli.cli import main

main()
