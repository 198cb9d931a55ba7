"""`albert bench`: speeds on this machine, against others where there are others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import bench_app, verb
from albert_cli.cli.options import (
    AsJson,
    Debug,
    Device,
    Language,
    Out,
    Overrides,
    ProcessCount,
    Quiet,
    Sources,
    TaskData,
    TextField,
    start_ranks,
)


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
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time a forward and backward pass against transformers, on the same batch.

    Example: albert bench step albert-base --work s128 --rounds 7
    """
    from albert_cli.bench import step

    result = step.run(model, work or step.WORKS, tokens, rounds, alone, compiled, precision, device)
    console.print_result(result, step.text(result))


@verb(bench_app, name="lengths")
def bench_lengths(
    model: Annotated[str, typer.Argument(help="A preset or a pretraining recipe: its shape.")] = "albert-base",
    length: Annotated[
        list[int] | None, typer.Option(min=2, help="Tokens of the input; default: 512, doubled up to 8,192.")
    ] = None,
    form: Annotated[
        list[str] | None, typer.Option(help="full, window, block, longformer, 'big bird'; default: all of them.")
    ] = None,
    layers: Annotated[int, typer.Option(min=0, help="Layers; 0: the model's. All cost the same.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each; the fastest counts.")] = 1,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of the matrix products.")] = "fp32",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time full, window and block attention by length, with their memory, against Longformer and Big Bird.

    Example: albert bench lengths albert-base --layers 4 --length 512 --length 1024
    """
    from albert_cli.bench import lengths

    counts, forms = length or lengths.LENGTHS, form or lengths.FORMS
    result = lengths.run(model, counts, forms, layers, rounds, precision, device)
    console.print_result(result, lengths.text(result))


@verb(bench_app, name="pretrain")
def bench_pretrain(
    recipe: Annotated[str, typer.Argument(help="A pretraining recipe's name or file.")],
    data: Annotated[
        Path | None, typer.Option(help="Data directory; without one: random ids laid out like text.")
    ] = None,
    against: Annotated[
        Literal["transformers"] | None, typer.Option(help="Time transformers too, padded, on the same examples.")
    ] = None,
    sequences: Annotated[
        int,
        typer.Option(min=0, help="Sequences in a micro-batch; 0: the recipe's on a GPU, about 1,024 tokens on a CPU."),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each variant.")] = 5,
    compiled: Annotated[bool, typer.Option(help="With --against, time the compiled forms too (minutes).")] = True,
    overrides: Overrides = None,
    nproc: ProcessCount = 1,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time a recipe's step, where the time goes, and how long its run would take here.

    Example: albert bench pretrain pretrain/albert-base --data data --against transformers
    """
    start_ranks(nproc)
    from albert_cli.bench import pretrain

    options = pretrain.PretrainBenchOptions(data, tuple(overrides or ()), sequences, rounds, against, compiled, device)
    result = pretrain.run(recipe, options)
    console.print_result(result, pretrain.text(result))


@verb(bench_app, name="finetune")
def bench_finetune(
    task: Annotated[str, typer.Argument(help="A task of GLUE, or a recipe for one.")],
    vocab: Annotated[Path, typer.Option("--vocab", help="Vocabulary directory, or a checkpoint with one.")],
    data: TaskData = None,
    model: Annotated[str, typer.Option(help="A preset, a recipe or a checkpoint: its shape.")] = "albert-base",
    against: Annotated[
        Literal["transformers"] | None,
        typer.Option(help="Time transformers too, padded to 128 as its run_glue does, and to the longest of a batch."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each variant.")] = 5,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time a fine-tuning step on a task's own examples, update included, against transformers.

    Example: albert bench finetune mrpc --data glue --vocab vocabulary --against transformers
    """
    from albert_cli.bench import finetune

    options = finetune.FinetuneBenchOptions(model, vocab, data, tuple(overrides or ()), rounds, against, device)
    result = finetune.run(task, options)
    console.print_result(result, finetune.text(result))


@verb(bench_app, name="data")
def bench_data(
    sources: Sources,
    vocab: Annotated[Path, typer.Option("--vocab", help="Vocabulary directory.")],
    megabytes: Annotated[int, typer.Option(min=1, help="Measure on about this many MB of the files' beginnings.")] = 64,
    language: Language = "en",
    text_field: TextField = "text",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time every stage from text to masked pairs on one core, beside SentencePiece alone.

    Example: albert bench data wiki.jsonl --vocab vocabulary
    """
    from albert_cli.bench import data
    from albert_cli.data.tokenization import BuildSettings
    from albert_cli.text.read_settings import ReadSettings

    settings = BuildSettings(language=language, read=ReadSettings(text_field=text_field))
    measured = data.measure(sources, vocab, settings, megabytes)
    console.print_result(measured, data.text(measured))


@verb(bench_app, name="sharing")
def bench_sharing(
    out: Out,
    models: Annotated[
        list[str] | None, typer.Argument(help="Two presets; default: albert-base bert-base. Or: paper, its seven.")
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Leave out batches of more tokens; 0: than 2,048 on a CPU, 65,536 on a GPU. Of paper: tokens of the "
            "batch; 0: 128 on a CPU, 8,192 on a GPU.",
        ),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each model.")] = 3,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of the matrix products.")] = "fp32",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time ALBERT beside BERT in training and inference, at 16 to 512 tokens and batches of 1 to 64, and draw it.

    Or the paper's seven models in one batch, for its speedup columns.

    Example: albert bench sharing --out speeds --tokens 4096
    """
    from albert_cli.bench import sharing

    result = sharing.run(models or ["albert-base", "bert-base"], out, tokens, rounds, precision, device)
    console.print_result(result, sharing.text(result))


@verb(bench_app, name="gpu")
def bench_gpu(
    out: Out,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Measure this part, again; default: what --out lacks."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data directory of 30,000 pieces; without one: random ids laid out like text.")
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(min=0, help="Tokens in a micro-batch; 0: 32,768 for base and large, 16,384 for the larger ones."),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each variant.")] = 9,
    alone: Annotated[bool, typer.Option("--alone", help="Without transformers.")] = False,
    overrides: Overrides = None,
    device: Device = "cuda",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run every GPU benchmark, in parts of a few minutes: correctness, speeds, variants.

    Example: albert bench gpu --out speeds --data data
    """
    from albert_cli.bench import gpu

    text = str(data.absolute()) if data else None
    options = gpu.GpuBenchOptions(text, tuple(overrides or ()), tokens, rounds, alone, device)
    found = gpu.run(out, part or [], options)
    console.print_result(found, gpu.text(found, console.format_table))
