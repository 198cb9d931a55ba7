"""`albert bench finetune`: a step of fine-tuning on a task's own examples, of this model and of `transformers`.

Everyone gets the same weights, the same examples in the same batches and the same number of steps, alternating. The
peer pads as its own example script (`run_glue.py`) does, to a fixed length by default, or to the longest of the batch;
nobody drops anything inside the encoder, as the paper fine-tunes (Table 14).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_cli import console
from albert_cli.bench import harness, peer
from albert_cli.bench.step import GLUE_MAX
from albert_cli.counting import costs, shapes
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError, InputError
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.registry import find_task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device, prepare_model, resolve_auto, use_threads
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.task_recipe import load_recipe

Labelled = tuple[PackedBatch, NDArray[Any]]


@dataclass(frozen=True)
class FinetuneBenchOptions:
    """How to measure: which model with which vocabulary, on which data, how often, and against what."""

    model: str
    vocabulary: Path
    data: str | None = None
    overrides: tuple[str, ...] = ()
    rounds: int = 5
    against: str | None = None
    device: str = "auto"


def run(name: str, options: FinetuneBenchOptions) -> dict[str, Any]:
    """Measure; raises `ConfigError` for a task, a model or a device that cannot be used."""
    bench = FinetuneBench(name, options)
    with use_threads(bench.train.threads):
        return bench.run()


class FinetuneBench:
    """The task's batches, and a model with random weights: they decide no speed."""

    def __init__(self, name: str, options: FinetuneBenchOptions) -> None:
        self.options, self.device = options, choose_device(options.device)
        self.recipe = load_recipe(name, (f"data.max_seq_length={GLUE_MAX}", *options.overrides))
        if self.recipe.task == "table":
            raise ConfigError("bench finetune times the tasks that come with albert", "name one of GLUE's")
        task = find_task(self.recipe.task)
        if not isinstance(task, Classification) or task.train_split is None:
            raise ConfigError(f"bench finetune times classifiers; {task.title} is none", "name a task of GLUE")
        self.task = task
        vocabulary = Vocabulary.load(options.vocabulary)
        settings = self.recipe.model
        self.shape = replace(
            shapes.find_shape(options.model).config,
            vocab_size=vocabulary.size,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            classifier_dropout_prob=settings.classifier_dropout,
        )
        examples = self.task.read(task.train_split, options.data)
        self.cut_to = min(self.recipe.data.max_seq_length, self.shape.max_position_embeddings)
        features = task.encode(examples, vocabulary, self.cut_to)
        if features.labels is None:
            raise InputError(f"{self.task.title}: the training data have no labels")
        self.mean_length = float(features.lengths.mean())
        self.train = resolve_auto(
            self.recipe.train, self.shape, self.device,
            sequences=self.recipe.train.micro_batch_size, length=round(self.mean_length),
        )  # fmt: skip
        steps = range(options.rounds + harness.WARM_UP)
        index = [features.batch_index(self.train.seed, step, self.train.batch_size) for step in steps]
        self.batches: list[Labelled] = [features.batch(i) for i in index]  # type: ignore[misc]

    def run(self) -> dict[str, Any]:
        """Time all variants and return the measurements."""
        torch.manual_seed(0)
        model = SequenceClassifier(self.shape, len(self.task.output_names))
        prepare_model(model, self.train, self.device)
        precision, settings, first = self.train.precision, self.recipe.optimizer, self.batches[0]
        own, optimizer = partial(self._own_loss, model), make_optimizer(model, settings)
        variants = {
            "albert": harness.make_training_step(model, own, self.batches, optimizer, settings.clip_norm, precision)
        }
        losses = {"albert": harness.loss_without_dropout(model, own, first, precision)}
        if self.options.against == "transformers":
            twin = peer.make_transformers_model(model)
            for name, width in (("the longest", 0), (self.cut_to, self.cut_to)):
                name = f"transformers, padded to {name}"
                loss = partial(self._peer_loss, twin, width)
                variants[name] = harness.make_plain_step(twin, loss, self.batches, precision)
                losses[name] = harness.loss_without_dropout(twin, loss, first, precision)
        rounds = [
            (int(batch.offsets[-1]), costs.batch_flops(self.shape, np.diff(batch.offsets), 0))
            for batch, _ in self.batches[harness.WARM_UP :]
        ]
        compared = harness.compare_variants(variants, rounds, precision, self.device, self.task.title, losses=losses)
        return {
            "task": self.task.name,
            "model": self.options.model,
            **harness.conditions(self.device, precision),
            "matmul_peak_flops": compared["matmul_peak_flops"],
            "batch_size": self.train.batch_size,
            "rounds": self.options.rounds,
            "tokens_a_step": compared["tokens"],
            "tokens_an_example": round(self.mean_length, 2),
            "cut_to": self.cut_to,
            "variants": compared["variants"],
        }

    def _own_loss(self, model: SequenceClassifier, labelled: Labelled) -> Tensor:
        batch, labels = labelled
        logits = model(pack(batch, self.device)).float()
        return self.task.summed_loss(logits, torch.from_numpy(labels).to(self.device)) / len(labels)

    def _peer_loss(self, twin: torch.nn.Module, width: int, labelled: Labelled) -> Tensor:
        batch, labels = labelled
        given = {"labels": torch.from_numpy(labels).to(self.device)}
        return peer.compute_loss(twin, given | peer.pad_batch(batch, self.device, width))


def text(result: Mapping[str, Any]) -> str:
    """The result of `run` as a table with notes."""
    notes = [
        f"An example has {result['tokens_an_example']:,.1f} tokens on average, and is cut at {result['cut_to']}. The "
        "tokens are those of the examples, for everyone; nobody's padding is counted.",
        "Ours computes the last layer only for [CLS], which alone is read (pruning): exact, and some 7 % fewer FLOPs "
        "with 12 layers. The share of the peak counts the full model's, for everyone alike.",
    ]
    title = f"{result['task']}: a step of {result['batch_size']} examples"
    table = harness.format_variants(title, result["variants"])
    return "\n\n".join([harness.headline(result["model"], result), table, console.wrap_notes(notes)])
