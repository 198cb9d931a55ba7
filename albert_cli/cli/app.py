"""The application that the verbs register with, and what `albert` without a verb does."""

from __future__ import annotations

from typing import Annotated

import typer

from albert_cli import __version__

EPILOGUE = (
    "Exit codes: 0 done, 1 bug, 2 usage or configuration, 3 bad input, 4 checkpoint or integrity, "
    "5 diverged, 6 output directory in use, 75 interrupted and saved."
)
app = typer.Typer(
    name="albert",
    help="From raw text to a scored, shareable ALBERT encoder.",
    epilog=EPILOGUE,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
recipes_app = typer.Typer(help="List, show, copy and validate recipes.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure speeds on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.add_typer(recipes_app, name="recipes")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"albert {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From raw text to a scored, shareable ALBERT encoder."""
