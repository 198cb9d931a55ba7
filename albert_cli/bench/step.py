"""`albert bench step`: forward and backward pass of this model and of `transformers`, on the same batch.

Pretraining batches are full sequences of 128 and of 512 tokens; the fine-tuning batches have the lengths of real
GLUE examples. The optimizer's update is left out: it is the same work for everyone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.bench import harness, peer
from albert_cli.bench.harness import Round, Step
from albert_cli.bench.stream import random_batch
from albert_cli.counting import costs, shapes
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel, SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.training.device import choose_device

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
    # All losses must agree, so nothing is dropped.
    config = replace(
        shapes.find(name).config,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    found = {}
    for work in works:
        if (GLUE_MAX if work == "glue" else int(work[1:])) > config.max_position_embeddings:
            raise ConfigError(f"--work {work}: the model has {config.max_position_embeddings} positions", "choose less")
        torch.manual_seed(0)
        if work == "glue":
            variants, done = _glue(config, options, device)
        else:
            variants, done = _pretraining(config, int(work[1:]), options, device)
        found[work] = harness.compare(variants, [done] * options.rounds, options.precision, device, work)
    peak = max(result.pop("matmul_peak_flops") for result in found.values())
    conditions = harness.conditions(device, options.precision)
    return {"model": name, **conditions, "matmul_peak_flops": peak, "works": found}


def _pretraining(
    config: ModelConfig, length: int, options: Options, device: torch.device
) -> tuple[dict[str, Step], Round]:
    """Variants over one batch of full sequences with 15 % of the positions masked."""
    tokens = options.tokens or (1024 if device.type == "cpu" else 65_536)
    drawn = random_batch([length] * max(1, tokens // length), config.vocab_size)
    model = PretrainingModel(config).to(device).train()
    precision = options.precision
    variants = {"albert": harness.passes(model, partial(pretraining_loss, model, device), [drawn], precision)}
    if options.compiled:
        variants["albert, compiled"] = harness.compiled(model, variants["albert"])
    if not options.alone:
        twin, given = peer.twin(model), peer.pretraining_inputs(model, drawn, device)
        variants["transformers"] = harness.passes(twin, partial(_loss, twin), [given], precision)
        if options.compiled:
            fused = partial(_loss, torch.compile(twin))
            variants["transformers, compiled"] = harness.passes(twin, fused, [given], precision)
    return variants, (len(drawn.ids), len(drawn.ids) * costs.training_flops(config, length))


def _glue(config: ModelConfig, options: Options, device: torch.device) -> tuple[dict[str, Step], Round]:
    """Variants over one batch of each task, one after the other; the sentence-order labels stand for the classes."""
    shuffled = map(np.random.default_rng(1).permutation, GLUE_LENGTHS.values())
    batches = [random_batch(lengths.tolist(), config.vocab_size) for lengths in shuffled]
    model = SequenceClassifier(config, 2).to(device).train()
    pairs = [(b, torch.from_numpy(b.order_labels).long().to(device)) for b in batches]

    def ours(pair: tuple[PackedBatch, Tensor]) -> Tensor:
        return F.cross_entropy(model(pack(pair[0], device)).float(), pair[1])

    variants = {"albert": harness.passes(model, ours, pairs, options.precision)}
    if not options.alone:
        twin = peer.twin(model)

        def theirs(called: Any, width: int) -> Step:
            made = [peer.padded(b, device, width) | {"labels": label} for b, label in pairs]
            return harness.passes(twin, partial(_loss, called), made, options.precision)

        variants["transformers, padded to the longest"] = theirs(twin, 0)
        variants[f"transformers, padded to {GLUE_MAX}"] = theirs(twin, GLUE_MAX)
        if options.compiled:
            variants[f"transformers, compiled, padded to {GLUE_MAX}"] = theirs(torch.compile(twin), GLUE_MAX)
    lengths = [int(n) for b in batches for n in np.diff(b.offsets)]
    return variants, (sum(lengths), sum(n * costs.training_flops(config, n, masked=0.0) for n in lengths))


def _loss(called: Any, given: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = called(**given).loss
    return loss


def pretraining_loss(model: PretrainingModel, device: torch.device, batch: PackedBatch) -> Tensor:
    """The mean loss at masked positions and that of sentence order, where the batch has any."""
    labels, sop = (torch.from_numpy(a).long().to(device) for a in (batch.masked_labels, batch.order_labels))
    logits = model(pack(batch, device, batch.masked_index))
    loss = F.cross_entropy(logits.masked.float(), labels)
    if bool((batch.order_labels >= 0).any()):
        loss = loss + F.cross_entropy(logits.sentence_order.float(), sop, ignore_index=-1)
    return loss


def text(result: dict[str, Any]) -> str:
    """The result of `run` as tables."""
    works = [
        harness.table(f"{work}, {found['tokens']:,.0f} tokens", found["variants"])
        for work, found in result["works"].items()
    ]
    return "\n\n".join([harness.headline(result["model"], result), *works])
