"""`albert bench`: time training steps on this machine, and for comparison those of Hugging Face's transformers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import bench_app, command
from albert_cli.cli.options import (
    AsJson,
    Debug,
    Device,
    Overrides,
    ProcessCount,
    Quiet,
    TaskData,
    VocabularyName,
    find_vocabulary,
    start_ranks,
)


@command(bench_app, name="step")
def bench_step(
    model: Annotated[str, typer.Argument(help="A preset or a pretraining recipe.")] = "albert-base",
    work: Annotated[
        list[str] | None,
        typer.Option(
            help="s128, s512: full sequences of 128 or 512 tokens; glue: lengths of GLUE's examples; default: all."
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of a pretraining batch; 0: 1,024 on a CPU, 65,536 on a GPU.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each variant.")] = 5,
    alone: Annotated[bool, typer.Option("--alone", help="Do not time transformers.")] = False,
    compiled: Annotated[bool, typer.Option(help="Time the compiled models too; compiling takes minutes.")] = True,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option(help="Precision of the matmuls.")] = "fp32",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time a forward and backward pass against transformers, on the same batch.

    Example: albert bench step albert-base --work s128 --rounds 7
    """
    from albert_cli.bench.step import WORKS, StepBenchOptions, format_result, run_step_bench

    options = StepBenchOptions(work or WORKS, tokens, rounds, alone, compiled, precision, device)
    result = run_step_bench(model, options)
    console.print_result(asdict(result), format_result(result))


@command(bench_app, name="pretrain")
def bench_pretrain(
    recipe: Annotated[str, typer.Argument(help="A pretraining recipe's name or file.")],
    data: Annotated[
        Path | None, typer.Option(help="Data directory. Default: random ids that are laid out like text.")
    ] = None,
    against: Annotated[
        Literal["transformers"] | None, typer.Option(help="Time transformers too, padded, on the same examples.")
    ] = None,
    sequences: Annotated[
        int,
        typer.Option(
            min=0,
            help="Sequences in a micro-batch; 0: on a CPU, about 1,024 tokens; on a GPU, as many as training has, "
            "or train.micro_batch_size with --against.",
        ),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each variant.")] = 5,
    compiled: Annotated[
        bool, typer.Option(help="With --against, time the compiled models too; compiling takes minutes.")
    ] = True,
    overrides: Overrides = None,
    nproc: ProcessCount = 1,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time a recipe's step and the parts of it, and estimate how long its run takes here.

    Example: albert bench pretrain pretrain/albert-base --data data --against transformers
    """
    start_ranks(nproc)
    from albert_cli.bench.pretrain import PretrainBenchOptions, run_pretrain_bench
    from albert_cli.bench.pretrain_result import format_result

    options = PretrainBenchOptions(data, tuple(overrides or ()), sequences, rounds, against, compiled, device)
    result = run_pretrain_bench(recipe, options)
    console.print_result(asdict(result), format_result(result))


@command(bench_app, name="finetune")
def bench_finetune(
    task: Annotated[str, typer.Argument(help="A task of GLUE, ner, or a recipe for one.")],
    vocab: VocabularyName,
    data: TaskData = None,
    model: Annotated[str, typer.Option(help="A preset, recipe or checkpoint with the shape to time.")] = "albert-base",
    against: Annotated[
        Literal["transformers"] | None,
        typer.Option(
            help="Time transformers too: padded to 128 tokens (-s data.max_seq_length changes it), and padded to the "
            "longest of the batch."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each variant.")] = 5,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time a fine-tuning step, including the update.

    The batches are of a task's examples of at most 128 tokens (-s data.max_seq_length changes it).

    Example: albert bench finetune mrpc --data glue --vocab vocabulary --against transformers
    """
    from albert_cli.bench.finetune import FinetuneBenchOptions, format_result, run_finetune_bench

    vocabulary = find_vocabulary(vocab)
    options = FinetuneBenchOptions(model, vocabulary, data, tuple(overrides or ()), rounds, against, device)
    result = run_finetune_bench(task, options)
    console.print_result(asdict(result), format_result(result))
