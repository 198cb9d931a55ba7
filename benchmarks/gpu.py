"""Run every GPU benchmark, in parts of a few minutes; each part is saved when it is done.

    python -m benchmarks.gpu --out speeds --data data

The first part checks that the GPU computes the same as the CPU. The others time a pretraining step by model and length
(compared with `transformers` and with goals), variants of the step, its kernels, and fine-tuning steps. The last part
finds the largest batches. `bench.json` and `bench.md` in the output directory contain all measurements so far.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from unittest import mock

import torch
import typer

from albert_cli import __version__, console, store
from albert_cli.bench import harness
from albert_cli.bench import pretrain as pretrain_bench
from albert_cli.bench.harness import SINGLE_PROCESS, WARM_UP
from albert_cli.bench.pretrain import PretrainBench, PretrainBenchOptions, prepare_recipe
from albert_cli.bench.step import StepBenchOptions, run_step_bench
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Device, Out, Overrides, Quiet
from albert_cli.errors import AlbertError, ConfigError
from albert_cli.formatting import first_line
from albert_cli.model import encoder
from albert_cli.training.device import choose_device
from benchmarks import correctness, kernels, measurements, memory

SIZES: Final = ("base", "large", "xlarge", "xxlarge")
LENGTHS: Final = (128, 512)
# Tokens per second of pretraining in bf16 on one H200, by model and length. They are estimated from the speed that
# kernels can reach: matmuls 82 to 90 % of the 790 TFLOP/s of a large matmul, elementwise passes the 4.3 TB/s of a copy.
GOALS: Final = {
    ("base", 128): 950_000,
    ("base", 512): 870_000,
    ("large", 512): 265_000,
    ("xlarge", 512): 80_000,
    ("xxlarge", 512): 42_000,
}
# Speed relative to transformers on the same text.
SPEEDUP_GOALS: Final = {"transformers": 4.0, "transformers, compiled": 2.0}
PROFILE_GOALS: Final = {"busy": "at least 0.95", "waits": "at most 1", "pageable_copies": "0"}
# Milliseconds of four fine-tuning steps at which eight processes together finish the 443,000 steps of GLUE (eight
# tasks, five seeds) in 15 minutes.
FINE_TUNING_MS: Final = 4 * 8 * 15 * 60_000 / 443_000
# Tokens of a micro-batch. On 141 GB they leave room for transformers, whose activations take several times as much.
_TOKENS: Final = {"base": 32_768, "large": 32_768, "xlarge": 16_384, "xxlarge": 16_384}
_COMPILED_PEER: Final = ("base", "large")  # compiling the larger models of transformers takes too many minutes
# The second release (v2) of the paper's models was trained without dropout.
_NO_DROPOUT: Final = ("model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0")
AS_TRAINED: Final = "as trained"
PADDED: Final = "padded attention"
# The timed variants of a step, as overrides of the recipe; `PADDED` replaces the attention instead.
VARIANTS: Final[dict[str, tuple[str, ...]]] = {
    AS_TRAINED: (),
    PADDED: (),
    "not compiled": ("train.compile=off",),
    "deterministic": ("train.deterministic=true",),
    "activations recomputed": ("train.checkpoint_activations=true",),
    "dropout 0.1": ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1"),
}
T = TypeVar("T")  # the result of a measurement
Render = Callable[[Sequence[str], Sequence[Sequence[object]]], str]
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class GpuBenchOptions:
    """Options of all parts."""

    data: str | None = None  # a data directory; None for random ids
    overrides: tuple[str, ...] = ()  # of all recipes
    tokens: int = 0  # of a micro-batch; 0: by model
    rounds: int = 9
    alone: bool = False  # without transformers
    device: str = "cuda"


@dataclass(frozen=True)
class Part:
    """The measurements of one part, in the field for their kind, or the reason why the part failed."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # of `albert bench pretrain`, by label
    correctness: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    attention: dict[str, Any] | None = None
    fine_tuning: dict[str, Any] | None = None
    batches: dict[str, Any] | None = None
    failed: str = ""
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        """True if the part has compared the device with the CPU and found a difference."""
        return self.correctness is not None and not self.correctness["is_correct"]


@dataclass(frozen=True)
class GpuBenchResult:
    """All parts that a directory contains."""

    conditions: dict[str, Any]
    parts: dict[str, Part]


def run_gpu_bench(out: Path, requested: Sequence[str], options: GpuBenchOptions) -> GpuBenchResult:
    """Measure the requested parts, by default all unfinished parts, and return all parts that `out` contains.

    Each part is written when it is measured. A failure of a part is recorded, and the other parts are still measured.
    Raises `AlbertError` at the end if parts have failed, and at once if the device's results differ from the CPU's.
    Raises `ConfigError` for an unknown part, and if `out` was measured under other conditions.
    """
    device = choose_device(options.device)
    options = replace(options, device=device.type)
    unknown = [part for part in requested if part not in PARTS]
    if unknown:
        raise ConfigError(f"--part {unknown[0]}: unknown", f"choose from {', '.join(PARTS)}")
    for size in SIZES:
        # Wrong options raise an error here, before the first part is measured.
        prepare_recipe(*_bench_arguments(size, LENGTHS[0], options))
    conditions = {
        "device_name": harness.current_conditions(device, precision="").device,
        "versions": {"albert": __version__, "torch": torch.__version__},
        **asdict(options),
        "overrides": list(options.overrides),
    }
    with store.lock(out):
        previous = measurements.load_previous(out, conditions)
        parts = {name: Part(**values) for name, values in previous.items()}
        unfinished = [name for name in PARTS if name not in parts or parts[name].failed or parts[name].is_wrong]
        for name in requested or unfinished:
            console.info(f"part {list(PARTS).index(name) + 1} of {len(PARTS)}: {name}")
            parts[name] = _attempt(PARTS[name], options)
            parts = {part: parts[part] for part in PARTS if part in parts}  # in the order of `PARTS`
            result = GpuBenchResult(conditions, parts)
            measurements.save(out, conditions, {part: asdict(values) for part, values in parts.items()})
            store.write_text(
                out / measurements.MARKDOWN_FILE, format_result(result, console.format_markdown_table) + "\n"
            )
            if parts[name].is_wrong:
                message = f"{device}: loss or gradients differ from the CPU's by more than rounding"
                raise AlbertError(message, f"see {out / measurements.MARKDOWN_FILE}")
    failed = [f"{name} ({part.failed})" for name, part in parts.items() if part.failed]
    if failed:
        raise AlbertError(f"{out}: failed: {'; '.join(failed)}", "the same command measures these again")
    return GpuBenchResult(conditions, parts)


def _attempt(measure: Callable[[GpuBenchOptions], Part], options: GpuBenchOptions) -> Part:
    """Measure a part; if it fails, return a part with the reason."""
    begin = time.monotonic()
    _free_everything()
    part, failed = _catch_failure(partial(measure, options))
    return replace(part or Part(failed=failed), seconds=round(time.monotonic() - begin, 1))


def _attempt_step(arguments: tuple[str, PretrainBenchOptions]) -> dict[str, Any]:
    """Return the JSON of `albert bench pretrain`, or {"failed": reason}, so that other variants are still timed."""
    _free_everything()
    result, failed = _catch_failure(partial(pretrain_bench.run_pretrain_bench, *arguments))
    return asdict(result) if result else {"failed": failed}


def _catch_failure(measure: Callable[[], T]) -> tuple[T | None, str]:
    """Return (measurement, ""), or (None, reason) after an error of torch or of albert."""
    try:
        return measure(), ""
    except torch.OutOfMemoryError:
        return None, "out of memory"
    except (RuntimeError, AlbertError) as error:
        return None, first_line(error)


def _free_everything() -> None:
    """Release the memory of the last measurement: models in reference cycles, compiled graphs, cached blocks."""
    gc.collect()
    if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled; importing the compiler takes seconds
        torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- the parts


def _bench_arguments(
    size: str,
    length: int,
    options: GpuBenchOptions,
    tokens: int = 0,
    more_overrides: Sequence[str] = (),
    against: str | None = None,
) -> tuple[str, PretrainBenchOptions]:
    """Return the arguments of `run_pretrain_bench` and `prepare_recipe`: the recipe's name, and the options.

    size: the model, one of `SIZES`. length: maximum tokens of a sequence. tokens: of a micro-batch; 0: as in `options`,
    or by size.
    """
    tokens = tokens or options.tokens or _TOKENS[size]
    return f"pretrain/albert-{size}", PretrainBenchOptions(
        data=Path(options.data) if options.data else None,
        overrides=(*_NO_DROPOUT, f"data.max_seq_length={length}", *more_overrides, *options.overrides),
        sequences=max(1, tokens // length),
        rounds=options.rounds,
        against=against,
        compiled=against is not None and options.device == "cuda" and size in _COMPILED_PEER,
        device=options.device,
    )


def _measure_correctness(options: GpuBenchOptions) -> Part:
    """Compare loss and gradients of ALBERT-base with those of the CPU in fp32."""
    recipe, _, _ = prepare_recipe(*_bench_arguments("base", LENGTHS[0], options))
    result = correctness.measure_correctness(recipe.model, recipe.train, choose_device(options.device))
    return Part(correctness=asdict(result))


def _measure_step(size: str, length: int, options: GpuBenchOptions) -> Part:
    """Time the pretraining step, compared with `transformers`."""
    against = None if options.alone else "transformers"
    arguments = _bench_arguments(size, length, options, against=against)
    return Part(results={"": asdict(pretrain_bench.run_pretrain_bench(*arguments))})


def _measure_variants(size: str, length: int, options: GpuBenchOptions) -> Part:
    """Time the variants of the pretraining step, without `transformers`."""
    results = {}
    for name, overrides in VARIANTS.items():
        arguments = _bench_arguments(size, length, options, more_overrides=overrides)
        if name == PADDED:
            # Without a variable-length kernel, attention pads the sequences.
            with mock.patch.object(encoder, "has_varlen", lambda device, dtype, head_size: False):
                results[name] = _attempt_step(arguments)
        else:
            results[name] = _attempt_step(arguments)
    return Part(results=results)


def _measure_micro_batches(options: GpuBenchOptions) -> Part:
    """Time the step of ALBERT-base with four sizes of micro-batches, in tokens.

    The largest one is that of `batch.micro_tokens = "auto"`.
    """
    maximum = options.tokens or 131_072
    results = {}
    for divisor in (8, 4, 2, 1):
        tokens = maximum // divisor
        results[f"{tokens:,} tokens"] = _attempt_step(_bench_arguments("base", 512, options, tokens))
    return Part(results=results)


def _measure_profile(size: str, options: GpuBenchOptions) -> Part:
    """Profile the kernels of the pretraining step on sequences of 512 tokens."""
    name, step_options = _bench_arguments(size, 512, options)
    device = choose_device(options.device)
    bench = PretrainBench(name, step_options, device, SINGLE_PROCESS)
    with bench.as_in_training():
        step = bench.make_step()
        for _ in range(WARM_UP + 1):  # the first calls compile and allocate
            step()
        return Part(profile=asdict(kernels.profile_step(step, device)))


def _measure_attention(options: GpuBenchOptions) -> Part:
    """Time the attention kernels by themselves."""
    device = choose_device(options.device)
    return Part(attention=kernels.time_attention(device, options.rounds, options.tokens or 32_768))


def _measure_fine_tuning(options: GpuBenchOptions) -> Part:
    """Time a forward and backward pass on real GLUE lengths: the batches are so small that the host's work matters."""
    step_options = StepBenchOptions(
        works=("glue",), rounds=options.rounds, alone=options.alone, precision="bf16", device=options.device
    )
    return Part(fine_tuning=asdict(run_step_bench("albert-base", step_options)))


def _measure_batches(options: GpuBenchOptions) -> Part:
    """Find the largest batches that 12 GB hold."""
    batches = memory.find_largest_batches(choose_device(options.device))
    return Part(batches={name: asdict(row) for name, row in batches.items()})


# All parts in the order in which they run: by name, the function that measures the part.
PARTS: Final[dict[str, Callable[[GpuBenchOptions], Part]]] = {
    "correctness": _measure_correctness,
    **{f"{size}-s{length}": partial(_measure_step, size, length) for size in SIZES for length in LENGTHS},
    "variants-base-s128": partial(_measure_variants, "base", 128),
    "variants-base-s512": partial(_measure_variants, "base", 512),
    "variants-xxlarge-s512": partial(_measure_variants, "xxlarge", 512),
    "sweep-base-s512": _measure_micro_batches,
    **{f"profile-{size}-s512": partial(_measure_profile, size) for size in SIZES},
    "attention": _measure_attention,
    "fine-tuning": _measure_fine_tuning,
    "batches": _measure_batches,
}


# ---------------------------------------------------------------- tables

_HEADERS: Final = ("model", "length", "", "tokens", "tokens/s", "MFU", "of the goal", "speedup of albert", "peak GB")


def format_result(result: GpuBenchResult, render: Render) -> str:
    """Return all measurements as tables; `render` makes a table of headers and rows."""
    conditions = result.conditions
    source = conditions["data"] or "random ids laid out like text"
    blocks = [f"{conditions['device_name']}, torch {conditions['versions']['torch']}; {source}; no dropout"]
    blocks += _format_steps(result.parts, render)
    for name, part in result.parts.items():
        blocks += _format_part(name, part, render)
    blocks += [f"{name}: failed: {part.failed}" for name, part in result.parts.items() if part.failed]
    blocks.append("Seconds: " + ", ".join(f"{name} {part.seconds:,.0f}" for name, part in result.parts.items()))
    return "\n\n".join(blocks)


def _format_steps(parts: Mapping[str, Part], render: Render) -> list[str]:
    """Return a table of all results of `albert bench pretrain`, with a note above."""
    steps = [(name, label, step) for name, part in parts.items() for label, step in part.results.items()]
    if not steps:
        return []
    peak = max(step.get("matmul_peak_flops", 0) for _, _, step in steps)
    goals = " and ".join(f"{times:g}x as fast as {name}" for name, times in SPEEDUP_GOALS.items())
    note = (
        f"Peak matmul {peak / 1e12:,.1f} TFLOP/s. The MFU counts the full model's FLOPs; updates are included. "
        f"Goal: tokens/s of one H200; for albert, {goals}."
    )
    return [note, render(_HEADERS, [row for step in steps for row in _step_rows(*step)])]


def _step_rows(part: str, label: str, step: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each variant of a result of `albert bench pretrain`.

    part: the name of the part, which ends with size and length: `variants-base-s512`. label: the key of the result in
    the part, such as "not compiled" or "". step: the JSON of the result, or {"failed": reason}.
    """
    *_, size, length_name = part.split("-")
    if "failed" in step:
        return [[size, length_name, f"{label}: {step['failed']}", *[""] * (len(_HEADERS) - 3)]]
    tokens = f"{step['micro_batch']['tokens']:,.0f}"
    peak = step["memory"]["dropout 0"]["peak"]
    goal = GOALS.get((size, int(length_name[1:])))
    rows = []
    for name, timing in step["variants"].items():
        title = f"{name}, {label}" if label else name
        rate = timing["tokens_per_second"]
        fraction_of_goal = ""
        speedup = ""
        peak_gb = ""
        if name != "albert":
            speedup = f"{timing['speedup']:.2f}x"
        else:
            fraction_of_goal = f"{rate / goal:.0%}" if goal else ""
            peak_gb = f"{peak / 1e9:,.1f}" if peak is not None else ""
        mfu = f"{timing['mfu']:.0%}"
        rows.append([size, length_name, title, tokens, f"{rate:,}", mfu, fraction_of_goal, speedup, peak_gb])
    return rows


def _format_part(name: str, part: Part, render: Render) -> list[str]:
    """Return the tables of a part; none if its measurements are results of `albert bench pretrain`."""
    if part.correctness is not None:
        return [correctness.format_result(correctness.Correctness(**part.correctness))]
    if part.profile is not None:
        counts = {key: count for key, count in part.profile.items() if key != "kernels_ms"}
        rows = [(key.replace("_", " "), count, PROFILE_GOALS.get(key, "")) for key, count in counts.items()]
        longest = list(part.profile["kernels_ms"].items())
        return [render((f"{name}, a step", "", "goal"), rows), render(("kernel", "ms per step"), longest)]
    if part.attention:
        return [render(*kernels.attention_table(part.attention))]
    if part.fine_tuning is not None:
        return [_format_fine_tuning(part.fine_tuning["works"]["glue"]["variants"], render)]
    if part.batches:
        batches = {model: memory.LargestBatches(**row) for model, row in part.batches.items()}
        return [render(*memory.batches_table(batches))]
    return []


def _format_fine_tuning(variants: Mapping[str, Mapping[str, Any]], render: Render) -> str:
    """Return a table with a row for each variant; the goal is for albert."""
    rows = []
    for name, timing in variants.items():
        goal = f"{FINE_TUNING_MS:.0f} ms" if name == "albert" else ""
        speedup = "" if name == "albert" else f"{timing['speedup']:.2f}x"
        rows.append((name, timing["median_ms"], f"{timing['tokens_per_second']:,}", goal, speedup))
    headers = ("a batch of each of four GLUE tasks", "median ms", "tokens/s", "goal", "speedup of albert")
    return render(headers, rows)


@command(app)
def main(
    out: Out,
    part: Annotated[
        list[str] | None, typer.Option(help="Measure this part, again if it exists; default: all that --out lacks.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data directory of 30,000 pieces; without one: random ids laid out like text.")
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(min=0, help="Tokens of a micro-batch; 0: 32,768 for base and large, 16,384 for the larger ones."),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each variant.")] = 9,
    alone: Annotated[bool, typer.Option("--alone", help="Without transformers.")] = False,
    overrides: Overrides = None,
    device: Device = "cuda",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run every GPU benchmark, in parts of a few minutes: correctness, speeds, variants."""
    source = str(data.absolute()) if data else None
    options = GpuBenchOptions(source, tuple(overrides or ()), tokens, rounds, alone, device)
    result = run_gpu_bench(out, part or [], options)
    console.print_result(asdict(result), format_result(result, console.format_table))


if __name__ == "__main__":
    app()
