"""Commands that use a model on text, or write it for other programs: predict, encode, fill-mask, convert, export."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, command
from albert_cli.cli.options import AsJson, BadBytes, Debug, Device, Overrides, Quiet, TaskData, check_output_file
from albert_cli.errors import ConfigError

InputFile = Annotated[
    str,
    typer.Option(
        "--input",
        help="A table with named columns (.csv, .tsv, .parquet), JSON (.jsonl, .ndjson, .jl, .json), or any other file "
        "with one text per line, or two texts separated by a tab; - is stdin, with JSON lines or one text per line.",
    ),
]
PrecisionName = Annotated[
    Literal["auto", "fp32", "bf16"], typer.Option(help="Precision of matmuls; auto measures which is faster here.")
]


def _check_null_threshold(threshold: float | None) -> float | None:
    """Return the threshold; raise `BadParameter` for NaN and for values beyond the bounds of `span.threshold`."""
    if threshold is not None and not -1e9 <= threshold <= 1e9:
        raise typer.BadParameter(f"{threshold:g} is not a number from -1e9 to 1e9")
    return threshold


NullThreshold = Annotated[
    float | None,
    typer.Option(
        callback=_check_null_threshold,
        help="Leave a question unanswered if its null score exceeds this value (SQuAD 2.0 models).",
    ),
]


def _check_destination(out: Path | None, input_file: str, results: str) -> None:
    """Raise `ConfigError` if a command cannot write its results to the file `out`, or, if `out` is None, to stdout.

    With `--json`, stdout has room for one JSON object only. results: the noun for the results in the message.
    """
    if console.settings.json and out is None:
        raise ConfigError(f"--json prints one object, but {results} are a JSON line each", "use --out FILE for them")
    if out is not None and out.is_file() and Path(input_file).is_file() and out.samefile(input_file):
        raise ConfigError(f"--out {out}: is the input", "choose another file for the results")
    check_output_file(out)


@command(app, stage="Use a model")
def predict(
    checkpoint: Annotated[str, typer.Argument(help="A task checkpoint.")],
    input_file: InputFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write: .jsonl, .csv, .tsv or .parquet. Default: JSON lines on stdout."
        ),
    ] = None,
    null_threshold: NullThreshold = None,
    on_bad_bytes: BadBytes = "refuse",
    precision: PrecisionName = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Label text with a task checkpoint; the output keeps the columns of the input.

    Example: albert predict mrpc --input pairs.csv --out labels.csv
    """
    _check_destination(out, input_file, "predictions")
    from albert_cli.inference.predict import predict_file

    result = predict_file(checkpoint, input_file, out, device, on_bad_bytes, precision, null_threshold)
    if out is not None:
        speed = f"{result.lines_per_second:,.0f} per second"
        console.print_result(asdict(result), f"{out}: {result.lines:,} lines, {speed}")


@command(app, stage="Use a model")
def encode(
    checkpoint: Annotated[str, typer.Argument(help="Any checkpoint: a directory, a run, or a Hub id.")],
    input_file: InputFile,
    pooling: Annotated[
        Literal["mean", "cls", "pooler"] | None,
        typer.Option(
            help="The last layer's mean over all tokens, its state at [CLS], or the pooler's output. "
            "Default: that of a sentence-transformers model, else mean.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write: .jsonl or .safetensors. Default: JSON lines on stdout."),
    ] = None,
    on_bad_bytes: BadBytes = "refuse",
    precision: PrecisionName = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn texts into vectors: one JSON line per text, or one tensor for all.

    Example: albert encode run --input sentences.txt --out vectors.safetensors
    """
    _check_destination(out, input_file, "vectors")
    from albert_cli.inference.encode import encode_file

    result = encode_file(checkpoint, input_file, out, pooling, device, on_bad_bytes, precision)
    if out is not None:
        speed = f"{result.lines_per_second:,.0f} per second"
        console.print_result(
            asdict(result), f"{out}: {result.lines:,} vectors of {result.dimensions:,} numbers, {speed}"
        )


@command(app, name="fill-mask", stage="Use a model")
def fill_mask(
    checkpoint: Annotated[str, typer.Argument(help="A pretrained checkpoint: a directory, a run, or a Hub id.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts with one or more [MASK].")],
    top: Annotated[int, typer.Option(min=1, help="Predictions to show for each mask.")] = 5,
    precision: PrecisionName = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show a pretrained model's predictions for [MASK].

    Example: albert fill-mask run "the capital of [MASK] is paris"
    """
    from albert_cli.inference.fill_mask import fill_masks, format_filled_texts

    result = fill_masks(checkpoint, texts, top, device, precision)
    console.print_result(asdict(result), format_filled_texts(result))


@command(app, stage="Use a model")
def convert(
    checkpoint: Annotated[
        str, typer.Argument(help="Safetensors, pytorch_model.bin or a TensorFlow checkpoint: a directory or a Hub id.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="New directory.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Convert a PyTorch or TensorFlow checkpoint to a model directory that every command and Hugging Face read.

    Example: albert convert albert_base_v2 --out albert-base-v2
    """
    from albert_cli.inference.convert import convert as convert_checkpoint
    from albert_cli.inference.convert import format_conversion

    result = convert_checkpoint(checkpoint, out)
    console.print_result(asdict(result), format_conversion(result))


@command(app, stage="Use a model")
def export(
    checkpoint: Annotated[str, typer.Argument(help="Any checkpoint: a directory, a run, or a Hub id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="New directory.")],
    data: TaskData = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="The task on whose dev set in --data the checkpoint and its exports are scored. Default: the task of "
            "the checkpoint."
        ),
    ] = None,
    input_file: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="Compare the outputs of the exported models with the checkpoint's on the inputs of this file, without "
            "scores (formats as for `albert predict`).",
        ),
    ] = None,
    null_threshold: NullThreshold = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a checkpoint as ONNX in fp32 and int8 for onnxruntime, Optimum and transformers.js.

    With --data or --input it also compares the outputs of the exported models with the checkpoint's.

    Example: albert export mrpc --data glue --out mrpc-onnx
    """
    if data is not None and input_file is not None:
        raise ConfigError("--data and --input are both set", "use one of them: the outputs are compared once")
    if data is None and (task is not None or overrides):
        raise ConfigError("--task and --set need --data", "name the folder with the task's files")
    from albert_cli.inference.export import export as export_checkpoint
    from albert_cli.inference.export import format_export
    from albert_cli.inference.export_source import ExportRequest

    request = ExportRequest(checkpoint, data, task, input_file, null_threshold, tuple(overrides or ()))
    result = export_checkpoint(request, out)
    console.print_result(asdict(result), format_export(result))
