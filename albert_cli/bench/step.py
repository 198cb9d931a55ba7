"""`albert bench step`: time a forward and backward pass of albert and of `transformers`, on the same batch.

`--work` selects the batches. `s128` and `s512` are a pretraining batch of full sequences of 128 and 512 tokens, and
`glue` is four fine-tuning batches with the lengths of real GLUE examples. The optimizer's update is not timed, because
it is the same for both models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.bench import harness, peer
from albert_cli.bench.harness import Comparison, Conditions, TimedCall, Workload
from albert_cli.bench.inputs import pretraining_loss, random_batch
from albert_cli.counting import costs, shapes
from albert_cli.counting.costs import Precision
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel, SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.training.device import choose_device, prepare_model, resolve_auto
from albert_cli.training.settings import TrainSettings

# The lengths of one batch per task, with [CLS] and [SEP], in a vocabulary of 30,000 pieces of English Wikipedia and
# books. The training split is sorted by length and divided into N equal parts, where N is the paper's batch size
# (Table 14); each length is the median of a part.
_GLUE: Final = {
    "cola": "6 7 8 8 9 9 10 10 11 11 12 13 14 15 17 22",
    "sst2": "3 4 4 5 5 5 6 6 7 7 8 8 9 9 10 11 11 12 13 14 15 16 17 19 20 22 24 26 29 32 37 46",
    "mrpc": "31 36 38 41 43 45 46 48 49 51 52 54 55 56 58 59 60 62 63 64 66 67 68 70 71 72 74 76 79 81 85 92",
    "rte": "23 28 32 34 37 39 40 42 44 46 47 49 50 52 54 56 58 60 62 64 67 70 75 82 91 104 116 125 135 145 162 193",
}
GLUE_MAX: Final = 128  # tokens; longer examples are truncated
GLUE_LENGTHS: Final = {task: [min(int(n), GLUE_MAX) for n in lengths.split()] for task, lengths in _GLUE.items()}
_MAX_LENGTHS: Final = {"s128": 128, "s512": 512, "glue": GLUE_MAX}  # by work, tokens of the longest sequence
WORKS: Final = tuple(_MAX_LENGTHS)


@dataclass(frozen=True)
class StepBenchOptions:
    """Options of the benchmark: works, rounds, variants and precision."""

    works: Sequence[str] = WORKS
    tokens: int = 0  # of a pretraining batch; 0: 1,024 on a CPU, 65,536 on a GPU
    rounds: int = 5
    alone: bool = False  # without `transformers`
    compiled: bool = True  # also time compiled models
    precision: Precision = "fp32"
    device: str = "auto"


@dataclass(frozen=True)
class StepBenchResult:
    """The comparisons by work, and the conditions of the measurement."""

    model: str
    conditions: Conditions
    matmul_peak_flops: int
    works: dict[str, Comparison]


@dataclass(frozen=True)
class _PreparedWork:
    """The inputs of a measurement: albert's model and call to time, and the same batches for `transformers`."""

    model: PretrainingModel | SequenceClassifier
    call: TimedCall
    # All batches, once for each kind of padding. The key is the end of the variant's name: ", padded to 128" makes
    # "transformers, padded to 128".
    peer_inputs: Mapping[str, Sequence[Mapping[str, Tensor]]]
    workload: Workload  # of all batches together


def run_step_bench(name: str, options: StepBenchOptions) -> StepBenchResult:
    """Time every work; raise `ConfigError` for an unknown work, shape or device."""
    device = choose_device(options.device)
    config = shapes.find_shape(name).config.with_dropout(0.0)  # so that all variants have the same loss
    for work in options.works:
        if work not in WORKS:
            raise ConfigError(f"--work {work}: unknown", f"choose from {', '.join(WORKS)}")
        if _MAX_LENGTHS[work] > config.max_position_embeddings:
            message = f"--work {work}: the model has {config.max_position_embeddings} positions"
            raise ConfigError(message, "choose a shorter work or another model")
    comparisons = {}
    libraries = set()
    for work in options.works:
        torch.manual_seed(0)
        if work == "glue":
            prepared = _prepare_glue(config, options.precision, device)
        else:
            prepared = _prepare_pretraining(config, _MAX_LENGTHS[work], options, device)
        libraries.add(_use_faster_matmul(prepared, options.precision, device))
        variants = _make_variants(prepared, options)
        workloads = [prepared.workload] * options.rounds
        comparisons[work] = harness.compare_variants(variants, workloads, options.precision, device, work)
    peak = max(comparison.matmul_peak_flops for comparison in comparisons.values())
    label = f"{options.precision}, albert by oneDNN" if "onednn" in libraries else options.precision  # in the headline
    return StepBenchResult(name, harness.current_conditions(device, label), peak, comparisons)


def _use_faster_matmul(work: _PreparedWork, precision: Precision, device: torch.device) -> str:
    """Let the model compute its linear layers with the faster library, as training does; return the library."""
    settings = TrainSettings(precision=precision, compile="off")
    settings = resolve_auto(settings, work.model.config, device, sequences=1, length=work.workload.tokens)
    prepare_model(work.model, settings, device)
    return settings.matmul


def _make_variants(work: _PreparedWork, options: StepBenchOptions) -> dict[str, TimedCall]:
    """Return the calls to time by variant: albert, and `transformers` once for each kind of padding.

    The compiled model of `transformers` gets the last kind of padding only, in which all batches have the same shape.
    """
    variants = {"albert": work.call}
    if options.compiled and isinstance(work.model, PretrainingModel):
        variants["albert, compiled"] = harness.with_compiled_block(work.model, work.call)
    if options.alone:
        return variants
    hf_model = peer.make_transformers_model(work.model)
    loss_of = partial(peer.compute_loss, hf_model)
    for padding, inputs in work.peer_inputs.items():
        variants[f"transformers{padding}"] = harness.make_passes(hf_model, loss_of, inputs, options.precision)
    if options.compiled:
        padding, inputs = list(work.peer_inputs.items())[-1]
        loss_of = partial(peer.compute_loss, torch.compile(hf_model))
        passes = harness.make_passes(hf_model, loss_of, inputs, options.precision)
        variants[f"transformers, compiled{padding}"] = harness.with_compile_hint(passes)
    return variants


def _prepare_pretraining(
    config: ModelConfig, length: int, options: StepBenchOptions, device: torch.device
) -> _PreparedWork:
    """Build one batch of full sequences with 15 % of the positions masked."""
    tokens = options.tokens or (1024 if device.type == "cpu" else 65_536)
    batch = random_batch([length] * max(1, tokens // length), config.vocab_size)
    model = PretrainingModel(config).to(device).train()
    loss_of: Callable[[PackedBatch], Tensor] = partial(pretraining_loss, model, device)
    call = harness.make_passes(model, loss_of, [batch], options.precision)
    token_count = len(batch.ids)
    workload = Workload(token_count, token_count * costs.training_flops(config, length))
    return _PreparedWork(model, call, {"": [peer.pretraining_inputs(model, batch, device)]}, workload)


def _prepare_glue(config: ModelConfig, precision: str, device: torch.device) -> _PreparedWork:
    """Build a batch for each task; a call runs them one after the other. Sentence-order labels serve as classes."""
    rng = np.random.default_rng(1)
    batches = [random_batch(rng.permutation(lengths).tolist(), config.vocab_size) for lengths in GLUE_LENGTHS.values()]
    model = SequenceClassifier(config, 2).to(device).train()
    labeled = [(batch, torch.from_numpy(batch.order_labels).long().to(device)) for batch in batches]

    def loss_of(pair: tuple[PackedBatch, Tensor]) -> Tensor:
        batch, labels = pair
        return F.cross_entropy(model(pack(batch, device)).float(), labels)

    peer_inputs = {}
    for name, width in (("the longest", 0), (str(GLUE_MAX), GLUE_MAX)):
        padded = [peer.pad_batch(batch, device, width) | {"labels": labels} for batch, labels in labeled]
        peer_inputs[f", padded to {name}"] = padded
    lengths = [int(length) for batch in batches for length in np.diff(batch.offsets)]
    flops = sum(length * costs.training_flops(config, length, masked_fraction=0.0) for length in lengths)
    call = harness.make_passes(model, loss_of, labeled, precision)
    return _PreparedWork(model, call, peer_inputs, Workload(sum(lengths), flops))


def format_result(result: StepBenchResult) -> str:
    """Return the result as a headline and a table for each work."""
    tables = [
        harness.format_variants(f"{work}, {comparison.tokens:,.0f} tokens", comparison.variants)
        for work, comparison in result.works.items()
    ]
    headline = harness.format_headline(result.model, result.conditions, result.matmul_peak_flops)
    return "\n\n".join([headline, *tables])
