"""The result of `albert bench pretrain`, and its text for the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from albert_cli import console
from albert_cli.bench import harness, memory
from albert_cli.bench.harness import Conditions, VariantTiming
from albert_cli.bench.memory import MemoryUse

SECONDS_PER_DAY: Final = 86400


@dataclass(frozen=True)
class MicroBatchFacts:
    """The sizes of the timed micro-batches."""

    sequences: int
    tokens: float  # mean
    filled_fraction: float  # mean sequence length divided by `data.max_seq_length`
    model_flops: int  # median; without pruning of the last layer


@dataclass(frozen=True)
class RecipeStep:
    """The recipe's step and run on this machine, computed from the times of the parts."""

    sequences: int
    micro_batches_per_process: int  # the last one may be smaller
    seconds: float
    tokens_per_second: int
    mfu: float
    optimizer_fraction: float
    communication_fraction: float
    steps: int
    days: float
    devices_for_a_week: int
    devices_for_a_day: int


@dataclass(frozen=True)
class PretrainBenchResult:
    """All measurements; `parts_ms` are the median milliseconds of the parts of a step (`PARTS`)."""

    recipe: str
    text: str
    conditions: Conditions
    processes: int
    compiled: bool
    matmul_peak_flops: int
    micro_batch: MicroBatchFacts
    variants: dict[str, VariantTiming]
    parts_ms: dict[str, float]
    recipe_step: RecipeStep
    memory: dict[str, MemoryUse]


def format_result(result: PretrainBenchResult) -> str:
    """Return the result as tables with notes."""
    micro = result.micro_batch
    step_ms = sum(ms for name, ms in result.parts_ms.items() if name != "data")
    titles = {"data": "data, sampled during the computation"}
    rows = [(titles.get(name, name), f"{ms:,.2f}", f"{ms / step_ms:.1%}") for name, ms in result.parts_ms.items()]
    headline = harness.format_headline(
        result.recipe,
        result.conditions,
        result.matmul_peak_flops,
        processes=result.processes,
        compiled=result.compiled,
    )
    title = f"a step of {micro.sequences} sequences, {micro.tokens:,.0f} tokens"
    blocks = [
        f"{headline}\n{result.text}",
        harness.format_variants(title, result.variants),
        console.format_table(("parts of a step", "ms", "of the step"), rows),
        console.wrap_notes(_format_notes(result)),
        memory.format_memory(result.memory),
    ]
    return "\n\n".join(blocks)


def _format_notes(result: PretrainBenchResult) -> list[str]:
    """Return sentences on the recipe's step and run, and on how to read the figures."""
    step = result.recipe_step
    duration = f"{step.days:,.0f} days" if step.days > 3 else console.format_duration(SECONDS_PER_DAY * step.days)
    run_length = f"Its {step.steps:,} steps take {duration} here"
    if step.devices_for_a_week > 1:
        run_length += (
            f": a week with {step.devices_for_a_week:,} such devices, a day with {step.devices_for_a_day:,}, "
            "if the speed grows in proportion to their number"
        )
    return [
        f"The recipe's step of {step.sequences:,} sequences, at most {step.micro_batches_per_process:,} x this "
        f"micro-batch and one update, takes {1000 * step.seconds:,.0f} ms: {step.tokens_per_second:,} tokens/s, "
        f"{step.mfu:.0%} MFU.",
        f"{run_length}.",
        "For every variant, the MFU counts the full model's FLOPs. Albert computes the last layer only for the rows "
        "that a head reads (pruning), which saves some of them. Albert computes no padding: its rows are "
        f"{result.micro_batch.filled_fraction:.0%} of those of sequences that are padded to the full length.",
    ]
