"""`albert bench step`: forward and backward pass of this model and of `transformers`, on the same batch.

Pretraining batches are full sequences of 128 and of 512 tokens; the fine-tuning batches have the lengths of real
GLUE examples. The optimizer's update is left out: it is the same work for everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from albert_cli import console
from albert_cli.bench import peer
from albert_cli.bench.timing import Timing, alternate
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model import costs, hub, shapes
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel, SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.training.device import autocast, choose_device, matmul_peak

WORKS: Final = ("s128", "s512", "glue")
# Tokens of an example, [CLS] and [SEP] included, at the middles of as many equal parts of the task's training split as
# the paper's batch has examples (Table 14), in a vocabulary of 30,000 pieces made from English Wikipedia and books.
_GLUE: Final = {
    "cola": "6 7 8 8 9 9 10 10 11 11 12 13 14 15 17 22",
    "sst2": "3 4 4 5 5 5 6 6 7 7 8 8 9 9 10 11 11 12 13 14 15 16 17 19 20 22 24 26 29 32 37 46",
    "mrpc": "31 36 38 41 43 45 46 48 49 51 52 54 55 56 58 59 60 62 63 64 66 67 68 70 71 72 74 76 79 81 85 92",
    "rte": "23 28 32 34 37 39 40 42 44 46 47 49 50 52 54 56 58 60 62 64 67 70 75 82 91 104 116 125 135 145 162 193",
}
GLUE_MAX: Final = 128  # longer examples are cut
GLUE_LENGTHS: Final = {task: [min(int(n), GLUE_MAX) for n in found.split()] for task, found in _GLUE.items()}
Variants = dict[str, Callable[[], float]]


@dataclass(frozen=True)
class Options:
    """How to measure: tokens of a pretraining batch (0: chosen by device), rounds, and against what."""

    tokens: int = 0
    rounds: int = 5
    alone: bool = False
    compiled: bool = True
    precision: str = "fp32"
    device: str = "auto"


def run(name: str, works: Sequence[str], options: Options) -> dict[str, Any]:
    """Time every work; raises `ConfigError` for an unknown work, shape or device."""
    for work in works:
        if work not in WORKS:
            raise ConfigError(f"--work {work}: unknown", f"choose from {', '.join(WORKS)}")
    device = choose_device(options.device)
    config = shapes.find(name).config
    peak = matmul_peak(options.precision, device)
    found = {work: _measure(config, work, options, device, peak) for work in works}
    return {
        "model": name,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "precision": options.precision,
        "matmul_peak_flops": round(peak),
        "works": found,
    }


def _measure(config: ModelConfig, work: str, options: Options, device: torch.device, peak: float) -> dict[str, Any]:
    torch.manual_seed(0)
    tokens = options.tokens or (1024 if device.type == "cpu" else 65_536)
    if work == "glue":
        variants, count, flops = _glue(config, options, device)
    else:
        variants, count, flops = _pretraining(config, int(work[1:]), tokens, options, device)
    timings = alternate(variants, options.rounds, device, work)
    ours = timings["albert"]
    return {
        "tokens": count,
        "model_flops": round(flops),
        "variants": {name: _described(t, ours, count, flops / peak) for name, t in timings.items()},
    }


def _described(timing: Timing, ours: Timing, tokens: int, ideal_seconds: float) -> dict[str, Any]:
    """`albert_is_faster`: how many times, by medians; `share_of_peak` counts the full model's FLOPs (no pruning)."""
    return {
        "median_ms": round(timing.median * 1e3, 2),
        "minimum_ms": round(timing.minimum * 1e3, 2),
        "tokens_per_second": round(tokens / timing.median),
        "share_of_peak": round(ideal_seconds / timing.median, 4),
        "albert_is_faster": round(timing.median / ours.median, 3),
        "loss": round(timing.result, 6),
    }


# ---------------------------------------------------------------- pretraining batches


def _pretraining(
    config: ModelConfig, length: int, tokens: int, options: Options, device: torch.device
) -> tuple[Variants, int, float]:
    """Variants over one padded batch of full sequences with 15 % of the positions masked."""
    if length > config.max_position_embeddings:
        raise ConfigError(f"--work s{length}: the model has {config.max_position_embeddings} positions", "choose less")
    drawn = full_batch(max(1, tokens // length), length, config.vocab_size)
    config = _without_dropout(config)
    model = PretrainingModel(config).to(device).train()
    labels, orders = (_put(a, device) for a in (drawn.masked_labels, drawn.order_labels))

    def loss() -> Tensor:
        logits = model(pack(drawn, device, drawn.masked_index))
        masked = F.cross_entropy(logits.masked.float(), labels)
        return masked + F.cross_entropy(logits.order.float(), orders)

    variants: Variants = {"albert": _step(model, loss, options, device)}
    if options.compiled:
        variants["albert, compiled"] = compiled(model, variants["albert"])
    if not options.alone:
        given = padded(drawn, device)
        everywhere = torch.full(given["input_ids"].shape, -100, device=device)
        everywhere.view(-1)[_put(drawn.masked_index, device)] = labels
        order_name = "sentence_order_label" if hub.model_type(config) == "albert" else "next_sentence_label"
        given |= {"labels": everywhere, order_name: orders}
        variants |= _peers(peer.twin(model), [given], options, device)
    count = len(drawn.ids)
    return variants, count, count * costs.training_flops(config, length)


def full_batch(sequences: int, length: int, vocab_size: int) -> PackedBatch:
    """Random full sequences of one length, 15 % of the positions masked, seeded."""
    rng = np.random.default_rng(0)
    total, masked = sequences * length, round(costs.MASKED * length)
    positions = np.tile(np.arange(length, dtype=np.int32), sequences)
    chosen = [n * length + np.sort(rng.permutation(length - 1)[:masked] + 1) for n in range(sequences)]
    index = np.concatenate(chosen).astype(np.int32)

    def ids(size: int) -> NDArray[np.int32]:
        return rng.integers(5, vocab_size, size).astype(np.int32)

    segments = (positions > length // 2).astype(np.int32)
    offsets = np.arange(0, total + 1, length, dtype=np.int32)
    orders = rng.integers(0, 2, sequences).astype(np.int32)
    return PackedBatch(ids(total), segments, positions, offsets, index, ids(index.size), orders)


# ---------------------------------------------------------------- fine-tuning batches


def _glue(config: ModelConfig, options: Options, device: torch.device) -> tuple[Variants, int, float]:
    """Variants over one batch of each task, one after the other."""
    batches = [_examples(lengths, config.vocab_size) for lengths in GLUE_LENGTHS.values()]
    config = replace(_without_dropout(config), classifier_dropout_prob=0.0)
    model = SequenceClassifier(config, 2).to(device).train()
    labels = [_put(b.order_labels, device) for b in batches]

    def losses() -> list[Callable[[], Tensor]]:
        return [
            lambda b=b, gold=gold: F.cross_entropy(model(pack(b, device)).float(), gold)  # type: ignore[misc]
            for b, gold in zip(batches, labels, strict=True)
        ]

    variants: Variants = {"albert": _steps(model, losses(), options, device)}
    if not options.alone:
        twin = peer.twin(model)
        dynamic = [padded(b, device) | {"labels": gold} for b, gold in zip(batches, labels, strict=True)]
        full = [padded(b, device, GLUE_MAX) | {"labels": gold} for b, gold in zip(batches, labels, strict=True)]
        variants["transformers, padded to the longest"] = _peer(twin, dynamic, options, device)
        named = _peers(twin, full, options, device)
        variants |= {f"{name}, padded to {GLUE_MAX}": function for name, function in named.items()}
    lengths = [int(n) for b in batches for n in np.diff(b.offsets)]
    flops = sum(n * costs.training_flops(config, n, masked=0.0) for n in lengths)
    return variants, sum(lengths), flops


def _examples(lengths: Sequence[int], vocab_size: int) -> PackedBatch:
    """Random examples of these lengths in a shuffled order; the order label stands for the class."""
    rng = np.random.default_rng(1)
    shuffled = rng.permutation(lengths)
    offsets = np.concatenate([[0], np.cumsum(shuffled)]).astype(np.int32)
    total, none = int(offsets[-1]), np.zeros(0, np.int32)
    positions = np.concatenate([np.arange(n) for n in shuffled]).astype(np.int32)
    ids = rng.integers(5, vocab_size, total).astype(np.int32)
    classes = rng.integers(0, 2, len(shuffled)).astype(np.int32)
    return PackedBatch(ids, np.zeros(total, np.int32), positions, offsets, none, none, classes)


# ---------------------------------------------------------------- a timed step


def _step(
    model: torch.nn.Module, loss: Callable[[], Tensor], options: Options, device: torch.device
) -> Callable[[], float]:
    return _steps(model, [loss], options, device)


def _steps(
    model: torch.nn.Module, losses: Sequence[Callable[[], Tensor]], options: Options, device: torch.device
) -> Callable[[], float]:
    """Forward and backward pass of each loss in turn; returns the mean of the losses."""

    def function() -> float:
        total = torch.zeros((), device=device)
        for loss in losses:
            model.zero_grad(set_to_none=True)
            with autocast(options.precision, device):
                value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return float(total) / len(losses)

    return function


def compiled(model: PretrainingModel, step: Callable[[], float]) -> Callable[[], float]:
    """The same step with the block compiled."""
    plain = model.encoder.block
    model.encoder.compile()
    fused = model.encoder.block
    model.encoder.block = plain

    def function() -> float:
        model.encoder.block = fused
        try:
            return step()
        finally:
            model.encoder.block = plain

    return function


def _peers(
    twin: torch.nn.Module, batches: Sequence[Mapping[str, Tensor]], options: Options, device: torch.device
) -> Variants:
    """`transformers` as it is, and compiled as a whole."""
    variants = {"transformers": _peer(twin, batches, options, device)}
    if options.compiled:
        variants["transformers, compiled"] = _peer(torch.compile(twin), batches, options, device)  # type: ignore[arg-type]
    return variants


def _peer(
    twin: torch.nn.Module, batches: Sequence[Mapping[str, Tensor]], options: Options, device: torch.device
) -> Callable[[], float]:
    return _steps(twin, [lambda given=given: twin(**given).loss for given in batches], options, device)  # type: ignore[misc]


def plain_step(
    model: torch.nn.Module, loss: Callable[[], Tensor], precision: str, device: torch.device
) -> Callable[[], float]:
    """One step as a plain training script has it: clipped, AdamW in one kernel; the rate is 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(value.detach())

    return step


@contextmanager
def evaluating(*models: torch.nn.Module) -> Iterator[None]:
    """While it is open, the models are in evaluation mode."""
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model in models:
            model.train()


def _without_dropout(config: ModelConfig) -> ModelConfig:
    """All losses must agree, so nothing is dropped."""
    return replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0)


def padded(batch: PackedBatch, device: torch.device, width: int = 0) -> dict[str, Tensor]:
    """The batch as `transformers` takes it: [N, S] int64, padded on the right to `width` (0: to the longest)."""
    lengths = np.diff(batch.offsets)
    there = np.arange(width or int(lengths.max())) < lengths[:, None]
    made = {"attention_mask": there.astype(np.int64)}
    for name, values in (("input_ids", batch.ids), ("token_type_ids", batch.segment_ids)):
        made[name] = np.zeros(there.shape, np.int64)
        made[name][there] = values
    return {name: _put(array, device) for name, array in made.items()}


def _put(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)


# ---------------------------------------------------------------- shown


def text(result: Mapping[str, Any]) -> str:
    """The result of `run` as tables."""
    parts = [
        f"{result['model']} on {result['device']}, {result['threads']} threads, {result['precision']}; "
        f"matrix products reach {result['matmul_peak_flops'] / 1e9:,.0f} GFLOP/s"
    ]
    for work, found in result["works"].items():
        columns = ("median ms", "least ms", "tokens/s", "of peak", "albert is", "loss")
        rows = [
            (
                name,
                f"{v['median_ms']:,.1f}",
                f"{v['minimum_ms']:,.1f}",
                f"{v['tokens_per_second']:,}",
                f"{100 * v['share_of_peak']:.0f} %",
                "" if name == "albert" else f"{v['albert_is_faster']:.2f}x",
                f"{v['loss']:.5f}",
            )
            for name, v in found["variants"].items()
        ]
        parts.append(console.table((f"{work}, {found['tokens']:,} tokens", *columns), rows))
    return "\n\n".join(parts)
