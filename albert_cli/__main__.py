"""Run the command line: `python -m albert_cli` does the same as the console script `albert`."""

from albert_cli.cli import main

main()
