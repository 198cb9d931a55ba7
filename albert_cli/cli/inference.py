"""Verbs that use a model on text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, verb
from albert_cli.cli.options import AsJson, BadBytes, Debug, Device, Quiet, check_output_file
from albert_cli.errors import ConfigError

InputFile = Annotated[
    str, typer.Option("--input", help="A file of lines (two texts: tab between) or .jsonl; - is stdin.")
]


def _destination(out: Path | None, input_file: str, what: str) -> Path | None:
    """Where lines go, None for stdout; raises `ConfigError` for a directory, the input, and stdout under `--json`."""
    if console.settings.json and out is None:
        raise ConfigError(f"--json prints one object, and {what} are a JSON line each", "give --out FILE for them")
    if out is not None and out.is_file() and Path(input_file).is_file() and out.samefile(input_file):
        raise ConfigError(f"--out {out}: is the input", "choose another file for the results")
    return check_output_file(out)


@verb(app)
def predict(
    checkpoint: Annotated[str, typer.Argument(help="A task checkpoint.")],
    input_file: InputFile,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; stdout otherwise. --json needs it.")
    ] = None,
    on_bad_bytes: BadBytes = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Label text with a task checkpoint: text in, JSON lines out.

    Example: albert predict mrpc --input pairs.tsv --out labels.jsonl
    """
    out = _destination(out, input_file, "predictions")
    from albert_cli.inference import predict as verb_module

    result = verb_module.predict_file(checkpoint, input_file, out, device, on_bad_bytes)
    if out is not None:
        console.print_result(result, f"{out}: {result['lines']:,} lines, {result['lines_per_second']:,.0f} a second")


@verb(app)
def encode(
    checkpoint: Annotated[str, typer.Argument(help="Any checkpoint: a directory, a run, or a Hub id.")],
    input_file: InputFile,
    pooling: Annotated[
        Literal["mean", "cls", "pooler"],
        typer.Option(help="Last layer: its mean over all tokens, its state at [CLS], or that through the pooler."),
    ] = "mean",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write, .jsonl or .safetensors; stdout otherwise. --json needs it."),
    ] = None,
    on_bad_bytes: BadBytes = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn text into vectors: a line in, a JSON line out, or one tensor for all.

    Example: albert encode run --input sentences.txt --out vectors.safetensors
    """
    out = _destination(out, input_file, "vectors")
    from albert_cli.inference import encode as verb_module

    result = verb_module.encode_file(checkpoint, input_file, out, pooling, device, on_bad_bytes)
    if out is not None:
        speed = f"{result['lines_per_second']:,.0f} a second"
        console.print_result(result, f"{out}: {result['lines']:,} vectors of {result['dimensions']:,} numbers, {speed}")


@verb(app, name="fill-mask")
def fill_mask(
    checkpoint: Annotated[str, typer.Argument(help="A pretrained checkpoint: a directory, a run, or a Hub id.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts with one or more [MASK].")],
    top: Annotated[int, typer.Option(min=1, help="Guesses to show for each mask.")] = 5,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show what a pretrained model puts in the place of [MASK].

    Example: albert fill-mask run "the capital of [MASK] is paris"
    """
    from albert_cli.inference import fill_mask as verb_module

    result = verb_module.fill_masks(checkpoint, texts, top, device)
    console.print_result(result, verb_module.format_guesses(result))


@verb(app)
def convert(
    checkpoint: Annotated[
        str, typer.Argument(help="Safetensors, pytorch_model.bin or a TensorFlow checkpoint: a directory or a Hub id.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="New directory.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a checkpoint of another layout as a model directory that every verb and Hugging Face read.

    Example: albert convert albert_base_v2 --out albert-base-v2
    """
    from dataclasses import asdict

    from albert_cli.inference import convert as verb_module

    result = verb_module.convert(checkpoint, out)
    console.print_result(asdict(result), verb_module.format_conversion(result))
