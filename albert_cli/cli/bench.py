"""`albert bench`: speeds on this machine, against others where there are others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import bench_app
from albert_cli.cli.options import Device, Language, Sources, TextField
from albert_cli.command import verb


@verb(bench_app, name="step")
def bench_step(
    model: Annotated[str, typer.Argument(help="A preset or a pretraining recipe.")] = "albert-base",
    work: Annotated[
        list[str] | None,
        typer.Option(help="s128, s512 (full pretraining sequences), glue (its real lengths); default: all three."),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of a pretraining batch; 0: 1,024 on a CPU, 65,536 on a GPU.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each variant.")] = 5,
    alone: Annotated[bool, typer.Option("--alone", help="Without transformers.")] = False,
    compiled: Annotated[bool, typer.Option(help="Time the compiled forms too; compiling takes minutes.")] = True,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of the matrix products.")] = "fp32",
    device: Device = "auto",
) -> None:
    """Time a forward and backward pass against transformers, on the same batch.

    Example: albert bench step albert-base --work s128 --rounds 7
    """
    from albert_cli.bench import step

    options = step.Options(tokens, rounds, alone, compiled, precision, device)
    result = step.run(model, work or step.WORKS, options)
    console.emit(result, step.text(result))


@verb(bench_app, name="data")
def bench_data(
    sources: Sources,
    vocab: Annotated[Path, typer.Option("--vocab", help="Vocabulary directory.")],
    megabytes: Annotated[int, typer.Option(min=1, help="Measure on about the first so many MB of files.")] = 64,
    language: Language = "en",
    text_field: TextField = "text",
) -> None:
    """Time every stage from text to masked pairs on one core, beside SentencePiece alone.

    Example: albert bench data wiki.jsonl --vocab vocabulary
    """
    from albert_cli.bench import data
    from albert_cli.data.tokenise import BuildSettings
    from albert_cli.text.lines import ReadSettings

    settings = BuildSettings(language=language, read=ReadSettings(text_field=text_field))
    measured = data.measure(sources, vocab, settings, megabytes)
    console.emit(measured, data.text(measured))
