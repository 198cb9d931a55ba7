"""Time ALBERT-base against BERT-base in training and inference, or the seven models of the paper's "speedup" columns.

    python -m benchmarks.sharing --out speeds --tokens 4096
    python -m benchmarks.sharing paper --out paper

Sharing weights saves parameters but no arithmetic. It saves time only in batches of few tokens, where reading the
weights from memory takes most of the time. The plot shows the batch size from which the two models are equally fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import torch
import typer

from albert_cli import console, store
from albert_cli.bench import harness
from albert_cli.bench.inputs import pretraining_loss, random_batch
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Device, Out, Quiet
from albert_cli.counting import costs
from albert_cli.counting.costs import Precision
from albert_cli.counting.paper import PAPER_MODELS
from albert_cli.errors import ConfigError
from albert_cli.formatting import suggest
from albert_cli.model.config import PRESETS
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.training import capacity
from albert_cli.training.device import autocast, choose_device, evaluation_mode
from benchmarks import measurements

PASSES: Final = ("training", "inference")
LENGTHS: Final = (16, 32, 64, 128, 256, 512)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
# The paper's speedups (Table 2, and Table 3 of arXiv 1909.11942v1), in the order of `PAPER_MODELS`. The paper measured
# 125,000 steps on TPUs, where communication and memory matter as well.
PAPER_SPEEDUPS: Final[dict[str, tuple[float | None, ...]]] = {
    "bert-large": (4.7, 1.0, None, 5.6, 1.7, 0.6, 0.3),
    "bert-xlarge": (17.7, 3.8, 1.0, 21.1, 6.5, 2.4, 1.2),
}
_BYTES_PER_PARAMETER: Final = 9  # weight and gradient in fp32, and a reserve
PLOT: Final = "speed.svg"
_PAPER_NOTE: Final = (
    "Fewer tokens than the paper's 2 million a batch, so that all seven fit here. Every weight and its gradient are "
    "read and written once per batch, however few tokens it has. That is a disadvantage of the large BERTs, which have "
    "the most weights, so ALBERT looks better here than with the paper's batch."
)
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class BatchShape:
    """The work of one measurement: `kind` ("training" or "inference"), tokens per sequence, and sequences per batch."""

    kind: str
    length: int
    batch: int

    @property
    def key(self) -> str:
        """The name of the measurement in the file."""
        return f"{self.kind} {self.length} {self.batch}"

    @classmethod
    def parse(cls, key: str) -> BatchShape:
        """Return the batch shape whose `key` is `key`."""
        kind, length, batch = key.split(" ")
        return cls(kind, int(length), int(batch))


@dataclass(frozen=True)
class SharingResult:
    """The conditions of a measurement, and its times.

    `milliseconds` maps a `BatchShape.key` to a list with the time of each model, in the order of `models`.
    """

    conditions: dict[str, Any]
    milliseconds: dict[str, list[float]]

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(self.conditions["models"])


def measure_sharing(
    models: Sequence[str], out: Path, tokens: int, rounds: int, precision: Precision, device_name: str
) -> SharingResult:
    """Time the models in alternating rounds, for every batch shape that is not yet measured in `out`.

    The optimizer's update is not timed, because it takes less than a hundredth of a step with the paper's batch. The
    models share one buffer of random weights, so only the largest model needs memory.

    models: two presets, or "paper" for the paper's seven models. tokens: as described for the command's option.
    Raises `ConfigError` if the largest model does not fit, and if `out` was measured under other conditions.
    """
    names = _choose_models(models)
    device = choose_device(device_name)
    conditions = {**asdict(harness.current_conditions(device, precision)), "models": list(names), "rounds": rounds}
    if names == PAPER_MODELS:
        # The paper's models train on one batch of this size. For two models, `tokens` only leaves out larger batches,
        # which changes no time.
        conditions["tokens"] = tokens
    built = _build_models(names, device)
    with store.lock(out):
        milliseconds = measurements.load_previous(out, conditions)
        for shape in _iter_shapes(names, tokens, device):
            if shape.key not in milliseconds:
                calls = {name: _make_call(shape, model, precision, device) for name, model in built.items()}
                seconds, _ = harness.time_alternating(calls, rounds, device, shape.key)
                milliseconds[shape.key] = [round(1e3 * median(seconds[name]), 3) for name in names]
                measurements.save(out, conditions, milliseconds)
        result = SharingResult(conditions, milliseconds)
        store.write_text(out / measurements.MARKDOWN_FILE, format_result(result, markdown=True) + "\n")
        if names != PAPER_MODELS:
            draw_speedups(result, out / PLOT)
    return result


def _choose_models(models: Sequence[str]) -> tuple[str, ...]:
    """Return two presets, or the paper's seven for "paper"; raise `ConfigError` for anything else."""
    names = PAPER_MODELS if list(models) == ["paper"] else tuple(models)
    for name in names:
        if name not in PRESETS:
            raise ConfigError(f"{name}: no preset", suggest(name, PRESETS) or f"presets: {', '.join(PRESETS)}")
    if len(names) != 2 and names != PAPER_MODELS:
        raise ConfigError(
            f"two models are compared, not {len(names)}", "name two, such as albert-base bert-base, or paper"
        )
    return names


def _iter_shapes(names: Sequence[str], tokens: int, device: torch.device) -> Iterator[BatchShape]:
    """Yield the batch shapes to time: for the paper's models one training batch and one inference sequence.

    For two models these are all shapes of at most `tokens` tokens; 0 stands for a limit that depends on the device.
    """
    is_cpu = device.type == "cpu"
    if names == PAPER_MODELS:
        # On a CPU a round with one sequence of 128 tokens takes 6 TFLOP, half a minute on two cores.
        length = 128 if is_cpu else 512
        default_tokens = 128 if is_cpu else 8192
        yield BatchShape("training", length, max(1, (tokens or default_tokens) // length))
        yield BatchShape("inference", length, 1)
        return
    max_tokens = tokens or (2048 if is_cpu else 65_536)
    for kind, length, batch in itertools.product(PASSES, LENGTHS, BATCHES):
        if length * batch <= max_tokens:
            yield BatchShape(kind, length, batch)


def _build_models(names: Sequence[str], device: torch.device) -> dict[str, PretrainingModel]:
    """Build the presets without dropout, on one buffer of weights; raise `ConfigError` if memory is too small."""
    sizes = {name: costs.count_parameters(PRESETS[name]).total for name in names}
    largest = max(names, key=lambda name: sizes[name])
    size = sizes[largest]
    needed = _BYTES_PER_PARAMETER * size
    available = capacity.available_memory(device)
    if available is not None and available < needed:
        message = f"{largest} needs {needed / 1e9:.0f} GB of memory; {available / 1e9:.0f} GB available"
        raise ConfigError(message, "choose smaller models")
    torch.manual_seed(0)
    weights = torch.empty(size, device=device).uniform_(-0.03, 0.03)
    return {name: _build_on_buffer(name, weights) for name in names}


def _build_on_buffer(name: str, weights: torch.Tensor) -> PretrainingModel:
    """Build a preset whose parameters are views of the first elements of `weights`."""
    with torch.device("meta"):
        model = PretrainingModel(PRESETS[name].with_dropout(0.0))
    used = 0
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            view = weights[used : used + parameter.numel()].view(parameter.shape)
            setattr(module, key, torch.nn.Parameter(view))
            used += parameter.numel()
    return model


def _make_call(
    shape: BatchShape, model: PretrainingModel, precision: Precision, device: torch.device
) -> harness.TimedCall:
    """Return a call on full sequences: for training a forward and backward pass, for inference the encoder alone."""
    batch = random_batch([shape.length] * shape.batch, model.config.vocab_size)
    if shape.kind == "training":
        return harness.make_passes(model, partial(pretraining_loss, model, device), [batch], precision)

    def call() -> float:
        with evaluation_mode(model), autocast(precision, device):
            model.encoder(pack(batch, device), all_rows=True)
        return 0.0

    return call


# ---------------------------------------------------------------- tables and the plot


def compute_speedups(result: SharingResult, kind: str) -> dict[int, dict[int, float]]:
    """Return the speed of the first model relative to the second's, by sequence length and batch size."""
    speedups: dict[int, dict[int, float]] = {}
    for key, (first, second) in result.milliseconds.items():
        shape = BatchShape.parse(key)
        if shape.kind == kind:
            speedups.setdefault(shape.length, {})[shape.batch] = second / first
    return speedups


def draw_speedups(result: SharingResult, path: Path) -> None:
    """Plot the speedup against the batch size as SVG, with a line for each sequence length."""
    from matplotlib.figure import Figure

    first, second = result.models
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), PASSES, strict=True):
        for length, by_batch in compute_speedups(result, kind).items():
            batches = sorted(by_batch)
            axes.plot(batches, [by_batch[batch] for batch in batches], marker="o", label=f"{length} tokens")
        axes.axhline(1.0, color="grey", linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_title(f"{kind}: speed of {first}, {second} = 1")
        axes.set_xlabel("sequences in a batch")
        axes.legend()
    figure.savefig(path)


def format_result(result: SharingResult, *, markdown: bool = False) -> str:
    """Return the tables, for a terminal or in Markdown."""
    render = console.format_markdown_table if markdown else console.format_table
    conditions = result.conditions
    headline = (
        f"{conditions['device']}, {conditions['threads']} threads, {conditions['precision']}; "
        f"medians of {conditions['rounds']} rounds, alternating"
    )
    if result.models == PAPER_MODELS:
        tables = _paper_tables(result)
    else:
        first, second = result.models
        headline += f". Speed of {first}, {second} = 1; columns: sequences in a batch"
        tables = [_speedup_table(result, kind) for kind in PASSES]
    blocks = [f"{headline}.", *(render(headers, rows) for headers, rows in tables)]
    if result.models == PAPER_MODELS:
        blocks.append(_PAPER_NOTE if markdown else console.wrap_notes([_PAPER_NOTE]))
    return "\n\n".join(blocks)


def _speedup_table(result: SharingResult, kind: str) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of a table of speedups, by sequence length (rows) and batch size (columns)."""
    rows = [
        [str(length), *(_format_ratio(by_batch.get(batch)) for batch in BATCHES)]
        for length, by_batch in compute_speedups(result, kind).items()
    ]
    return [f"{kind}: tokens per sequence", *map(str, BATCHES)], rows


def _paper_tables(result: SharingResult) -> list[tuple[list[str], list[list[str]]]]:
    """Return headers and rows of two tables: speeds relative to BERT-large and to BERT-xlarge.

    Each table compares the measured speedups with those of the paper and with those that the FLOPs predict.
    """
    # For the paper's models, `_iter_shapes` yields one shape of each kind.
    training_key, inference_key = result.milliseconds
    training = dict(zip(PAPER_MODELS, result.milliseconds[training_key], strict=True))  # milliseconds
    inference = dict(zip(PAPER_MODELS, result.milliseconds[inference_key], strict=True))
    training_shape = BatchShape.parse(training_key)
    flops = {name: costs.training_flops(PRESETS[name], training_shape.length) for name in PAPER_MODELS}
    tables = []
    for base, published in PAPER_SPEEDUPS.items():
        headers = [
            f"speed, {base} = 1",
            f"training, {training_shape.batch} x {training_shape.length}",
            "paper",
            "by FLOPs",
            "inference",
            "training ms",
            "inference ms",
        ]
        rows = [
            [
                name,
                _format_ratio(training[base] / training[name]),
                _format_ratio(paper),
                _format_ratio(flops[base] / flops[name]),
                _format_ratio(inference[base] / inference[name]),
                f"{training[name]:,.1f}",
                f"{inference[name]:,.1f}",
            ]
            for name, paper in zip(PAPER_MODELS, published, strict=True)
        ]
        tables.append((headers, rows))
    return tables


def _format_ratio(ratio: float | None) -> str:
    """Format a ratio with two decimals; a dash for a ratio that the paper lacks or that was not measured."""
    return "–" if ratio is None else f"{ratio:.2f}"


@command(app)
def main(
    out: Out,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help='Two presets (default: albert-base bert-base), or "paper" for the seven models of the paper.'
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Largest batch to time, in tokens; 0 means 2,048 on a CPU and 65,536 on a GPU. For the paper's models "
            "the tokens of the training batch; 0 means 128 on a CPU and 8,192 on a GPU.",
        ),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each model.")] = 3,
    precision: Annotated[Precision, typer.Option(help="Precision of the matmuls.")] = "fp32",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time ALBERT and BERT in training and inference, at 16 to 512 tokens and batches of 1 to 64, and draw it."""
    result = measure_sharing(models or ["albert-base", "bert-base"], out, tokens, rounds, precision, device)
    console.print_result(asdict(result), f"{format_result(result)}\n\n{out / measurements.MARKDOWN_FILE}")


if __name__ == "__main__":
    app()
