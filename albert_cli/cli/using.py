"""Verbs that use a model on text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import app
from albert_cli.cli.options import BadBytes, Device, file_to_write
from albert_cli.command import verb
from albert_cli.errors import ConfigError


@verb(app)
def predict(
    checkpoint: Annotated[str, typer.Argument(help="A task checkpoint.")],
    input_file: Annotated[
        str, typer.Option("--input", help="A file of lines (two texts: tab between) or .jsonl; - is stdin.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; stdout otherwise. --json needs it.")
    ] = None,
    on_bad_bytes: BadBytes = "refuse",
    device: Device = "auto",
) -> None:
    """Label text with a task checkpoint: text in, JSON lines out.

    Example: albert predict mrpc --input pairs.tsv --out labels.jsonl
    """
    if console.settings.json and out is None:
        raise ConfigError("--json prints one object, and predictions are a JSON line each", "give --out FILE for them")
    from albert_cli.evaluation import predict as verb_module

    result = verb_module.predict(checkpoint, input_file, file_to_write(out), device, on_bad_bytes)
    if result is not None:
        console.emit(result, f"{result['out']}: {result['lines']:,} lines, {result['lines_per_second']:,.0f} a second")
