"""Timing variants of the same work against each other: alternating, warmed up, on any device; and one table for it.

And what they are fed with: a data directory's examples, random ids laid out like text, or random batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, Final, NotRequired, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import TypedDict

from albert_cli import config, console, store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import ConfigError
from albert_cli.machine import make_matmul, measure_matmul_peak, synchronize
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.ranks import RankGroup
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast, evaluation_mode
from albert_cli.training.objectives import PretrainingCorpora
from albert_cli.training.optimizers import clip_gradients, update_weights
from albert_cli.training.reduction import reduce_gradients

WARM_UP: Final = 2  # calls of every variant that are not timed: compilation, autotuning, the allocator
SINGLE_PROCESS: Final = RankGroup()
VOCABULARY: Final = 30_000  # the paper's, where a recipe leaves it to the data
# English Wikipedia in a vocabulary of 30,000 pieces, roughly: pieces of a sentence, sentences of a document.
_SENTENCE, _DOCUMENT, _DOCUMENTS = 25, 30, 400
Step = Callable[[], float]  # one call to time; it returns its loss
Workload = tuple[int, float]  # what it computes: tokens of text, the full model's FLOPs; without padding and pruning


class _Measured(TypedDict):
    conditions: dict[str, Any]
    parts: NotRequired[dict[str, dict[str, Any]]]
    cells: NotRequired[dict[str, list[float]]]


def load_previous(file: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier call wrote to `file`, if anything; raises `ConfigError` where its conditions were others."""
    if not file.exists():
        return {}
    found = store.read_record(file, _Measured)
    if found["conditions"] != conditions:
        lines = "; ".join(config.list_differences(found["conditions"], conditions))
        raise ConfigError(f"{file.parent}: was measured under other conditions: {lines}", "choose another --out")
    return dict(found)


def time_alternating(
    variants: Mapping[str, Step], rounds: int, device: torch.device, label: str
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each variant's timed calls, and what its last call returned.

    Each is called once a round, so that whatever disturbs the machine disturbs all of them alike.
    """
    for function in variants.values():
        for _ in range(WARM_UP):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    results: dict[str, float] = {}
    with console.progress(label, rounds) as progress:
        for done in range(rounds):
            for name, function in variants.items():
                synchronize(device)
                begin = time.perf_counter()
                results[name] = function()
                synchronize(device)
                seconds[name].append(time.perf_counter() - begin)
            progress.update(done + 1)
    return seconds, results


def compare_variants(
    variants: Mapping[str, Step], rounds: Sequence[Workload], precision: str, device: torch.device, label: str,
    *, losses: Mapping[str, float] | None = None, ranks: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Time "albert" and its peers in turn, a call a round.

    By variant: median and least milliseconds, tokens a second (of all `ranks`), the share of what matrix products reach
    here (`mfu`), how many times as fast "albert" is, and the loss (the last call's, or of `losses`).
    """
    peak, (product, of_product) = measure_matmul_peak(precision, device), make_matmul(precision, device)
    # What disturbs the rounds disturbs the products between them alike.
    seconds, last = time_alternating({**variants, "peak": product}, len(rounds), device, label)
    peak = max(peak, of_product / min(seconds["peak"]), measure_matmul_peak(precision, device, seconds=0.1))
    found = {}
    for name in variants:
        timed = list(zip(seconds[name], seconds["albert"], rounds, strict=True))
        found[name] = {
            "median_ms": round(1e3 * median(seconds[name]), 2),  # which single disturbances leave alone
            "minimum_ms": round(1e3 * min(seconds[name]), 2),
            "tokens_per_second": round(ranks * median(tokens / s for s, _, (tokens, _) in timed)),
            "mfu": round(median(flops / s for s, _, (_, flops) in timed) / peak, 4),
            "albert_is_faster": round(median(s / own for s, own, _ in timed), 3),
            "loss": round((losses or last)[name], 6),
        }
    mean = round(fmean(tokens for tokens, _ in rounds), 1)
    return {"matmul_peak_flops": round(peak), "tokens": mean, "variants": found}


def conditions(device: torch.device, precision: str) -> dict[str, Any]:
    """The device, the threads and the precision of a measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "threads": torch.get_num_threads(), "precision": precision}


def headline(name: str, result: Mapping[str, Any]) -> str:
    """The line above the tables."""
    ranks = f"{result['processes']} processes of " if result.get("processes", 1) > 1 else ""
    compiled = ", compiled" if result.get("compiled") else ""
    return (
        f"{name} on {ranks}{result['device']}, {result['threads']} threads, {result['precision']}{compiled}; "
        f"matrix products reach {result['matmul_peak_flops'] / 1e9:,.0f} GFLOP/s"
    )


def format_variants(title: str, variants: Mapping[str, Mapping[str, float]]) -> str:
    """What `compare` found, a row each variant."""
    rows = [
        (
            name,
            f"{v['median_ms']:,.1f}",
            f"{v['minimum_ms']:,.1f}",
            f"{v['tokens_per_second']:,}",
            f"{v['mfu']:.0%}",
            "" if name == "albert" else f"{v['albert_is_faster']:.2f}x",
            f"{v['loss']:.5f}",
        )
        for name, v in variants.items()
    ]
    return console.format_table((title, "median ms", "least ms", "tokens/s", "of peak", "albert is", "loss"), rows)


def with_compiled_block(model: PretrainingModel, step: Step) -> Step:
    """The same step with the block compiled."""
    plain = model.encoder.block
    model.encoder.compile()
    fused, model.encoder.block = model.encoder.block, plain

    def function() -> float:
        model.encoder.block = fused
        try:
            return step()
        finally:
            model.encoder.block = plain

    return function


def make_passes(model: nn.Module, loss: Callable[[Any], Tensor], batches: Sequence[Any], precision: str) -> Step:
    """Forward and backward pass of each batch's loss in turn; returns the mean of the losses."""
    device = next(model.parameters()).device

    def step() -> float:
        total = torch.zeros((), device=device)
        for batch in batches:
            model.zero_grad(set_to_none=True)
            with autocast(precision, device):
                value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return float(total) / len(batches)

    return step


def make_training_step(
    model: nn.Module,
    loss: Callable[[Any], Tensor],
    batches: Iterable[Any],
    optimizer: Optimizer,
    clip_norm: float,
    precision: str,
    group: RankGroup = SINGLE_PROCESS,
) -> Step:
    """A step as the loop takes it, with one batch after the other; the rate is 0: all rounds have the same weights."""
    device, in_turn = next(model.parameters()).device, cycle(batches)

    def step() -> float:
        with autocast(precision, device):
            value = loss(next(in_turn))
        value.backward()  # type: ignore[no-untyped-call]
        reduce_gradients(model, group)
        read = torch.stack([value.detach(), clip_gradients(model, clip_norm)]).tolist()  # before the update, as there
        update_weights(optimizer, 0.0)
        return float(read[0])

    return step


def make_plain_step(model: nn.Module, loss: Callable[[Any], Tensor], batches: Iterable[Any], precision: str) -> Step:
    """A step as a plain training script has it: clipped, AdamW in one kernel; the rate is 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01, fused=True)
    device, in_turn = next(model.parameters()).device, cycle(batches)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            value = loss(next(in_turn))
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(value.detach())

    return step


def loss_without_dropout(model: nn.Module, loss: Callable[[Any], Tensor], batch: Any, precision: str) -> float:
    """The loss of a batch in evaluation mode."""
    with evaluation_mode(model), autocast(precision, next(model.parameters()).device):
        return float(loss(batch))


# ---------------------------------------------------------------- what is computed


def load_text(data: Path | None, vocab_size: int | None) -> tuple[PretrainingCorpora, str]:
    """The training split of a data directory, or random ids, and a phrase that says which.

    Raises `CheckpointError` for what is no data directory, or a damaged one.
    """
    if data is not None:
        verify_data(data)
        corpus = TokenCorpus.open(data)
        return PretrainingCorpora(corpus, corpus, Vocabulary.load(corpus.vocabulary_dir)), f"text of {data}"
    size, first, rng = vocab_size or VOCABULARY, 5, np.random.default_rng(0)
    starts = rng.random(size) < 0.7  # of a word
    starts[:first] = True
    documents = np.cumsum([0, *np.maximum(2, rng.geometric(1 / _DOCUMENT, _DOCUMENTS))])
    sentences = np.cumsum([0, *np.maximum(1, rng.poisson(_SENTENCE, int(documents[-1])))])
    ids = rng.integers(min(first, size - 1), size, int(sentences[-1])).astype(np.uint32)
    corpus = TokenCorpus([Shard(ids, sentences.astype(np.uint32), documents.astype(np.uint32))])
    source = f"random ids of {size:,} pieces, in sentences of about {_SENTENCE} (no --data): the work is that of text"
    # No more than these attributes is read of it.
    vocabulary = SimpleNamespace(
        size=size, is_word_start=starts, cls_id=2, sep_id=3, mask_id=4, first_ordinary_id=first
    )
    return PretrainingCorpora(corpus, corpus, cast(Vocabulary, vocabulary)), source


def random_batch(lengths: Sequence[int], vocab_size: int) -> PackedBatch:
    """Random sequences of these lengths, 15 % of the positions masked, seeded."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *lengths])
    chosen = [rng.permutation(n - 1)[: round(costs.MASKED_FRACTION * n)] for n in lengths]
    index = [start + 1 + np.sort(places) for start, places in zip(offsets, chosen, strict=False)]
    positions = np.concatenate([np.arange(n) for n in lengths])
    segments, masked = positions > np.repeat(lengths, lengths) // 2, np.concatenate(index)
    ids, labels = (rng.integers(5, vocab_size, size) for size in (len(positions), len(masked)))
    parts = (ids, segments, positions, offsets, masked, labels, rng.integers(0, 2, len(lengths)))
    return PackedBatch(*(part.astype(np.int32) for part in parts))


def pretraining_loss(model: PretrainingModel, device: torch.device, batch: PackedBatch) -> Tensor:
    """The mean loss at masked positions and that of sentence order, where the batch has any."""
    labels, sop = (torch.from_numpy(a).long().to(device) for a in (batch.masked_labels, batch.order_labels))
    logits = model(pack(batch, device, batch.masked_index))
    loss = F.cross_entropy(logits.masked.float(), labels)
    if bool((batch.order_labels >= 0).any()):
        loss = loss + F.cross_entropy(logits.sentence_order.float(), sop, ignore_index=-1)
    return loss
