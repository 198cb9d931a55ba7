"""Measure time and memory of an encoder by input length: full and sparse attention, Longformer and Big Bird.

    python -m benchmarks.lengths albert-base --layers 4 --length 512 --length 1024

A measurement is a forward pass of one sequence and a backward pass from all states of the last layer. It runs in a
separate process, so that its peak of memory does not include other measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

import numpy as np
import torch
import typer
from torch import Tensor

from albert_cli import console, executor, ranks
from albert_cli.bench import harness
from albert_cli.bench.harness import Conditions
from albert_cli.bench.inputs import random_batch
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Device, Quiet
from albert_cli.counting import shapes
from albert_cli.counting.costs import Precision
from albert_cli.errors import ConfigError
from albert_cli.formatting import first_line
from albert_cli.machine import synchronize
from albert_cli.model.config import AttentionForm, ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.model.packing import pack
from albert_cli.training.device import autocast, choose_device

Forward = Callable[[int], Tensor]  # from a number of tokens T to the last layer's states [T, H]
LENGTHS: Final = (512, 1024, 2048, 4096, 8192)
PEERS: Final = ("longformer", "big bird")
FORMS: Final = ("full", "window", "block", *PEERS)
# Tokens of the untimed first pass. Big Bird switches to full attention for good if it reads 704 tokens or fewer.
_WARM_UP_TOKENS: Final = 768
_BIG_BIRD_BLOCK: Final = 64  # tokens; Big Bird has three random blocks in addition to its window
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class LengthMeasurement:
    """Time and memory of one form at one length, or the reason why the measurement failed."""

    seconds: float | None = None  # of the fastest round
    bytes: int | None = None  # the peak of memory, without the memory in use before the timed passes
    error: str = ""


@dataclass(frozen=True)
class LengthsResult:
    """Measurements by form of attention and length."""

    model: str
    layers: int
    attention_window: int
    attention_block: int
    conditions: Conditions
    forms: dict[str, dict[int, LengthMeasurement]]


def measure_lengths(
    name: str, lengths: Sequence[int], forms: Sequence[str], layers: int, rounds: int, precision: Precision, device: str
) -> LengthsResult:
    """Measure every form of attention (`FORMS`) at every length; raise `ConfigError` for an unknown form.

    name: a preset or a recipe, whose shape is used. layers: 0 for the shape's number of layers.
    """
    for form in forms:
        if form not in FORMS:
            raise ConfigError(f"--form {form}: unknown", f"choose from {', '.join(FORMS)}")
    config = shapes.find_shape(name).config.with_dropout(0.0)
    layers = layers or config.num_hidden_layers
    config = replace(
        config,
        max_position_embeddings=max(lengths),
        num_hidden_layers=layers,
        num_hidden_groups=min(config.num_hidden_groups, layers),
    )
    modules = {__name__}  # imported once, not again by the process of each measurement
    if set(PEERS) & set(forms):
        modules.add("transformers.modeling_utils")
    context = executor.process_context(modules)
    threads = torch.get_num_threads()
    measured: dict[str, dict[int, LengthMeasurement]] = {form: {} for form in forms}
    work = [(length, form) for length in sorted(lengths) for form in forms]
    with console.show_progress("lengths", len(work)) as progress:
        for completed, (length, form) in enumerate(work, start=1):
            with ProcessPoolExecutor(1, context, ranks.exit_with_parent) as process:
                future = process.submit(_measure, config, form, length, rounds, precision, device, threads)
                error = future.exception()
                if error is None:
                    measured[form][length] = future.result()
                else:
                    measured[form][length] = LengthMeasurement(error=first_line(error))
            progress.update(completed)
    conditions = harness.current_conditions(choose_device(device), precision)
    return LengthsResult(name, layers, config.attention_window, config.attention_block, conditions, measured)


def _measure(
    config: ModelConfig, form: str, length: int, rounds: int, precision: Precision, device_name: str, threads: int
) -> LengthMeasurement:
    """Measure one form at one length; must be the only measurement of this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = choose_device(device_name)
    forward = make_sparse_peer(config, form, length, device) if form in PEERS else _make_encoder(config, form, device)

    def time_pass(tokens: int) -> float:
        synchronize(device)
        begin = time.perf_counter()
        with autocast(precision, device):
            states = forward(tokens)
        torch.autograd.backward(states, torch.ones_like(states))
        synchronize(device)
        return time.perf_counter() - begin

    time_pass(min(_WARM_UP_TOKENS, length))
    _reset_peak_memory(device)
    model_bytes = _peak_memory(device)
    seconds = min(time_pass(length) for _ in range(rounds))
    return LengthMeasurement(round(seconds, 4), _peak_memory(device) - model_bytes)


def _make_encoder(config: ModelConfig, form: str, device: torch.device) -> Forward:
    """Build albert's encoder with this form of attention; return its forward pass on a random sequence."""
    shape = replace(config, attention=cast(AttentionForm, form))
    encoder = Encoder(shape, pooler=False).to(device).train()
    return lambda tokens: encoder(pack(random_batch([tokens], config.vocab_size), device), all_rows=True)


def make_sparse_peer(config: ModelConfig, form: str, length: int, device: torch.device) -> Forward:
    """Build Longformer with the window of `config` and a global [CLS], or Big Bird with blocks of 64 tokens.

    Return its forward pass on a random sequence. length: tokens of the longest input.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    shape = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    hf_model: Any
    if form == "longformer":
        window = 2 * config.attention_window  # Longformer counts the tokens of both sides
        longformer = transformers.LongformerConfig(
            **shape, attention_window=window, max_position_embeddings=length + window + 2
        )
        hf_model = transformers.LongformerModel(longformer, add_pooling_layer=False)
    else:
        big_bird = transformers.BigBirdConfig(
            **shape,
            attention_type="block_sparse",
            block_size=_BIG_BIRD_BLOCK,
            max_position_embeddings=length + _BIG_BIRD_BLOCK,
        )
        hf_model = transformers.BigBirdModel(big_bird, add_pooling_layer=False)
    hf_model = hf_model.to(device).train()

    def forward(tokens: int) -> Tensor:
        batch = random_batch([tokens], config.vocab_size)
        inputs = {"input_ids": torch.from_numpy(batch.ids.astype(np.int64))[None].to(device)}
        if form == "longformer":
            inputs["global_attention_mask"] = (torch.arange(tokens) == 0).long()[None].to(device)
        states: Tensor = hf_model(**inputs).last_hidden_state
        return states

    return forward


def _reset_peak_memory(device: torch.device) -> None:
    """Set the peak of memory to the memory in use, on CUDA and on a CPU with Linux."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # 5 resets VmHWM, see proc(5)


def _peak_memory(device: torch.device) -> int:
    """Return the peak of memory in bytes since the last reset; 0 on a CPU without Linux, which does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(fields["VmHWM"].split()[0])


def format_result(result: LengthsResult) -> str:
    """Return tables of time and memory, and the lengths at which sparse attention is faster than full attention."""
    forms = result.forms
    lengths = list(next(iter(forms.values())))
    conditions = result.conditions
    headline = (
        f"{result.model}, {result.layers} layers, on {conditions.device}, {conditions.threads} threads, "
        f"{conditions.precision}; a window of {result.attention_window} tokens to either side, blocks of "
        f"{result.attention_block}; one sequence, forward and backward"
    )
    milliseconds = []
    megabytes = []
    for form, by_length in forms.items():
        milliseconds.append([form, *(_format_cell(by_length[length].seconds, 1e3) for length in lengths)])
        megabytes.append([form, *(_format_cell(by_length[length].bytes, 1e-6) for length in lengths)])
    blocks = [
        headline,
        console.format_table(("milliseconds", *map(str, lengths)), milliseconds),
        console.format_table(("peak, MB", *map(str, lengths)), megabytes),
    ]
    blocks += [_format_speedup(forms, form) for form in ("window", "block") if "full" in forms and form in forms]
    return "\n\n".join(blocks)


def _format_cell(value: float | None, scale: float) -> str:
    """Format `scale * value` as a cell; a dash for a failed measurement."""
    return "–" if value is None else f"{scale * value:,.0f}"


def _format_speedup(forms: dict[str, dict[int, LengthMeasurement]], form: str) -> str:
    """Return a sentence on the lengths at which a form is faster than full attention."""
    speedups = {}
    for length, measurement in forms[form].items():
        full_seconds = forms["full"][length].seconds
        if full_seconds and measurement.seconds:
            speedups[length] = full_seconds / measurement.seconds
    faster = [length for length, speedup in speedups.items() if speedup > 1]
    slower = [length for length, speedup in speedups.items() if speedup <= 1]
    always_faster = [length for length in faster if length > max(slower, default=0)]  # no longer input is slower
    if always_faster:
        verdict = f"faster than full attention from {min(always_faster)} tokens on"
    elif faster:
        verdict = f"faster than full attention only at {' and '.join(map(str, faster))} tokens"
    else:
        verdict = "never faster than full"
    details = ", ".join(f"{speedup:.1f}x at {length}" for length, speedup in speedups.items())
    return f"{form}: {verdict} ({details})"


@command(app)
def main(
    model: Annotated[str, typer.Argument(help="A preset or a pretraining recipe: its shape.")] = "albert-base",
    length: Annotated[
        list[int] | None, typer.Option(min=2, help="Tokens of the input; default: 512, doubled up to 8,192.")
    ] = None,
    form: Annotated[
        list[str] | None, typer.Option(help="full, window, block, longformer, 'big bird'; default: all of them.")
    ] = None,
    layers: Annotated[int, typer.Option(min=0, help="Layers; 0: the model's. All cost the same.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each; the fastest counts.")] = 1,
    precision: Annotated[Precision, typer.Option(help="Precision of the matmuls.")] = "fp32",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time full, window and block attention by length, with their memory, against Longformer and Big Bird."""
    result = measure_lengths(model, length or LENGTHS, form or FORMS, layers, rounds, precision, device)
    console.print_result(asdict(result), format_result(result))


if __name__ == "__main__":
    app()
