"""`albert bench step`: forward and backward pass of this model and of `transformers`, on the same batch.

Pretraining batches are full sequences of 128 and of 512 tokens; the fine-tuning batches have the lengths of real
GLUE examples. The optimizer's update is left out: it is the same work for everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.bench import harness, peer
from albert_cli.bench.harness import Workload, pretraining_loss, random_batch
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


# A model, the loss of a batch, the batches, the same for `transformers` by how they are padded, and what they hold.
_Work = tuple[Any, Callable[[Any], Tensor], Sequence[Any], Mapping[str, Sequence[Any]], Workload]


def run(
    name: str, works: Sequence[str], tokens: int, rounds: int, alone: bool, compiled: bool, precision: str, device_: str
) -> dict[str, Any]:
    """Time every work; raises `ConfigError` for an unknown work, shape or device.

    tokens: of a pretraining batch, 0 for a number by the device; alone: without `transformers`.
    """
    for work in works:
        if work not in WORKS:
            raise ConfigError(f"--work {work}: unknown", f"choose from {', '.join(WORKS)}")
    device = choose_device(device_)
    # All losses must agree, so nothing is dropped.
    config = replace(
        shapes.find_shape(name).config,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    found = {}
    for work in works:
        if (GLUE_MAX if work == "glue" else int(work[1:])) > config.max_position_embeddings:
            raise ConfigError(f"--work {work}: the model has {config.max_position_embeddings} positions", "choose less")
        torch.manual_seed(0)
        made = _glue(config, device) if work == "glue" else _pretraining(config, int(work[1:]), tokens, device)
        model, loss, batches, padded, done = made
        variants = {"albert": harness.make_passes(model, loss, batches, precision)}
        if compiled and isinstance(model, PretrainingModel):
            variants["albert, compiled"] = harness.with_compiled_block(model, variants["albert"])
        if not alone:
            twin = peer.make_transformers_model(model)
            for how, given in padded.items():
                variants[f"transformers{how}"] = harness.make_passes(
                    twin, partial(peer.compute_loss, twin), given, precision
                )
            if compiled:  # of two ways to pad, to the one width
                fused = partial(peer.compute_loss, torch.compile(twin))
                variants[f"transformers, compiled{how}"] = harness.make_passes(twin, fused, given, precision)
        found[work] = harness.compare_variants(variants, [done] * rounds, precision, device, work)
    peak = max(result.pop("matmul_peak_flops") for result in found.values())
    conditions = harness.conditions(device, precision)
    return {"model": name, **conditions, "matmul_peak_flops": peak, "works": found}


def _pretraining(config: ModelConfig, length: int, tokens: int, device: torch.device) -> _Work:
    """One batch of full sequences with 15 % of the positions masked."""
    tokens = tokens or (1024 if device.type == "cpu" else 65_536)
    drawn = random_batch([length] * max(1, tokens // length), config.vocab_size)
    model = PretrainingModel(config).to(device).train()
    padded = {"": [peer.pretraining_inputs(model, drawn, device)]}
    done = len(drawn.ids), len(drawn.ids) * costs.training_flops(config, length)
    return model, partial(pretraining_loss, model, device), [drawn], padded, done


def _glue(config: ModelConfig, device: torch.device) -> _Work:
    """One batch of each task, one after the other; the sentence-order labels stand for the classes."""
    shuffled = map(np.random.default_rng(1).permutation, GLUE_LENGTHS.values())
    batches = [random_batch(lengths.tolist(), config.vocab_size) for lengths in shuffled]
    model = SequenceClassifier(config, 2).to(device).train()
    pairs = [(b, torch.from_numpy(b.order_labels).long().to(device)) for b in batches]

    def loss(pair: tuple[PackedBatch, Tensor]) -> Tensor:
        return F.cross_entropy(model(pack(pair[0], device)).float(), pair[1])

    padded = {
        f", padded to {name}": [peer.pad_batch(b, device, width) | {"labels": label} for b, label in pairs]
        for name, width in (("the longest", 0), (GLUE_MAX, GLUE_MAX))
    }
    lengths = [int(n) for b in batches for n in np.diff(b.offsets)]
    done = sum(lengths), sum(n * costs.training_flops(config, n, masked=0.0) for n in lengths)
    return model, loss, pairs, padded, done


def text(result: dict[str, Any]) -> str:
    """The result of `run` as tables."""
    works = [
        harness.format_variants(f"{work}, {found['tokens']:,.0f} tokens", found["variants"])
        for work, found in result["works"].items()
    ]
    return "\n\n".join([harness.headline(result["model"], result), *works])
