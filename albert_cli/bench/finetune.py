"""`albert bench finetune`: time a fine-tuning step on a task's examples, of albert and of `transformers`.

Both models have the same weights and get the same batches, in alternating rounds. `transformers` pads batches as its
example scripts (`run_glue.py`, `run_ner.py`) do: to a fixed length, or to the longest example of the batch. The fixed
length is 128 tokens instead of the recipe's maximum; `-s data.max_seq_length` changes it. The dropout rates are those
of the task's recipe.

Shapes: N texts, S tokens of the longest text, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli import console
from albert_cli.bench import harness, peer
from albert_cli.bench.harness import Comparison, Conditions, TimedCall, Workload
from albert_cli.bench.step import GLUE_MAX
from albert_cli.counting import costs, shapes
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.token_classification import NER, TokenClassification, open_token_task
from albert_cli.tasks.token_features import IGNORED
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device, prepare_model, resolve_auto, use_threads
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.task_recipe import FinetuneRecipe, load_recipe

LabeledBatch = tuple[PackedBatch, NDArray[Any]]


@dataclass(frozen=True)
class FinetuneBenchOptions:
    """Options of the benchmark: the model's shape, the vocabulary, the data, the rounds and the peer."""

    model: str  # a preset or a recipe; only its shape is used
    vocabulary: Path
    data: str | None = None
    overrides: tuple[str, ...] = ()
    rounds: int = 5
    against: str | None = None  # "transformers", or None for albert alone
    device: str = "auto"


@dataclass(frozen=True)
class FinetuneBenchResult:
    """The timings of a step of `batch_size` examples of at most `max_length` tokens."""

    task: str
    model: str
    conditions: Conditions
    batch_size: int
    rounds: int
    tokens_per_example: float
    max_length: int
    comparison: Comparison


def run_finetune_bench(name: str, options: FinetuneBenchOptions) -> FinetuneBenchResult:
    """Time a step of the recipe `name`; raise `ConfigError` for a task, a model or a device that cannot be used."""
    bench = FinetuneBench(name, options)
    with use_threads(bench.train.threads):
        return bench.run()


class FinetuneBench:
    """The batches of a task, and the shape of a model with random weights, because speed does not depend on them."""

    def __init__(self, name: str, options: FinetuneBenchOptions) -> None:
        self.options = options
        self.device = choose_device(options.device)
        recipe = load_recipe(name, (f"data.max_seq_length={GLUE_MAX}", *options.overrides))
        self.task = _find_task(recipe, options.data)
        assert self.task.train_split is not None
        examples = self.task.read(self.task.train_split, options.data)
        # The recipe's values "auto" are resolved by the number of labeled examples.
        self.recipe = recipe.with_auto_values(len(examples))
        vocabulary = Vocabulary.load(options.vocabulary)
        settings = self.recipe.model
        shape = replace(shapes.find_shape(options.model).config, vocab_size=vocabulary.size)
        self.shape = shape.with_dropout(settings.encoder_dropout, settings.classifier_dropout)
        self.max_length = min(self.recipe.data.max_seq_length, self.shape.max_position_embeddings)
        features = self.task.encode(examples, vocabulary, self.max_length)
        self.mean_length = float(features.lengths.mean())
        self.train = resolve_auto(
            self.recipe.train,
            self.shape,
            self.device,
            sequences=self.recipe.train.micro_batch_size * features.sequences_per_item,
            length=round(self.mean_length),
        )
        self.batches: list[LabeledBatch] = []
        for step in range(options.rounds + harness.WARM_UP):
            index = features.batch_index(self.train.seed, step, self.train.batch_size)
            batch, labels = features.batch(index)
            if labels is None:
                raise InputError(f"{self.task.title}: the training data have no labels")
            self.batches.append((batch, labels))

    def run(self) -> FinetuneBenchResult:
        """Time all variants and return the measurements."""
        precision = self.train.precision
        variants, losses = self._make_variants()
        workloads = [
            Workload(int(batch.offsets[-1]), costs.batch_flops(self.shape, np.diff(batch.offsets), masked=0))
            for batch, _ in self.batches[harness.WARM_UP :]
        ]
        title = self.task.title
        comparison = harness.compare_variants(variants, workloads, precision, self.device, title, losses=losses)
        return FinetuneBenchResult(
            task=self.task.name,
            model=self.options.model,
            conditions=harness.current_conditions(self.device, precision),
            batch_size=self.train.batch_size,
            rounds=self.options.rounds,
            tokens_per_example=round(self.mean_length, 2),
            max_length=self.max_length,
            comparison=comparison,
        )

    def _make_variants(self) -> tuple[dict[str, TimedCall], dict[str, float]]:
        """Return each variant's step, and each variant's loss on the first batch without dropout, by name.

        Every step consists of forward and backward pass, gradient clipping and the optimizer's update.
        """
        torch.manual_seed(0)
        model = self.task.new_model(self.shape)
        prepare_model(model, self.train, self.device)
        precision = self.train.precision
        settings = self.recipe.optimizer
        first = self.batches[0]
        loss_of = partial(self._albert_loss, model)
        optimizer = make_optimizer(model, settings)
        step = harness.make_training_step(model, loss_of, self.batches, optimizer, settings.clip_norm, precision)
        variants = {"albert": step}
        losses = {"albert": harness.loss_without_dropout(model, loss_of, first, precision)}
        if self.options.against == "transformers":
            hf_model = peer.make_transformers_model(model)
            # As in `run_glue.py`: to the longest example of the batch (a width of 0), or to a fixed length.
            for padding, width in (("the longest", 0), (str(self.max_length), self.max_length)):
                name = f"transformers, padded to {padding}"
                peer_loss_of = partial(self._peer_loss, hf_model, width)
                variants[name] = harness.make_plain_training_step(hf_model, peer_loss_of, self.batches, precision)
                losses[name] = harness.loss_without_dropout(hf_model, peer_loss_of, first, precision)
        return variants, losses

    def _albert_loss(self, model: nn.Module, labeled: LabeledBatch) -> Tensor:
        """Return albert's mean loss over the examples of a batch."""
        batch, labels = labeled
        return self.task.loss_sum(model, batch, labels, self.device) / (len(batch.offsets) - 1)

    def _peer_loss(self, hf_model: nn.Module, width: int, labeled: LabeledBatch) -> Tensor:
        """Return the loss of `transformers` on the same batch, padded to `width`, or to the longest example for 0."""
        batch, labels = labeled
        inputs = peer.pad_batch(batch, self.device, width)
        if isinstance(self.task, TokenClassification):
            padded = peer.pad_tokens(batch, labels, self.device, width, filler=IGNORED)
            return mean_loss_of_tokens(hf_model(**inputs).logits, padded)
        inputs["labels"] = torch.from_numpy(labels).to(self.device)
        return peer.compute_loss(hf_model, inputs)


def mean_loss_of_tokens(logits_NSC: Tensor, label_NS: Tensor) -> Tensor:
    """Return the cross-entropy, averaged as albert does: over the labeled tokens of each text, and then over the texts.

    logits_NSC: [N, S, C] for C classes; label_NS: [N, S], `IGNORED` for tokens without a label.
    """
    loss_NS = F.cross_entropy(logits_NSC.float().transpose(1, 2), label_NS, ignore_index=IGNORED, reduction="none")
    labeled_N = (label_NS != IGNORED).sum(dim=1)
    return (loss_NS.sum(dim=1) / labeled_N.clamp(min=1)).mean()


def _find_task(recipe: FinetuneRecipe, data: str | None) -> AnyTask:
    """Return the recipe's task; raise `ConfigError` unless it classifies texts or tokens and has training data."""
    if recipe.task == "table":
        raise ConfigError("bench finetune times the built-in tasks", "choose a task of GLUE, or ner")
    task = open_token_task(recipe.table, data, ()) if recipe.task == NER else find_task(recipe.task)
    is_classifier = isinstance(task, Classification | TokenClassification)
    if not is_classifier or task.train_split is None:
        message = f"bench finetune times classifiers with training data; {task.title} is not one"
        raise ConfigError(message, "choose a task of GLUE, or ner")
    return task


def format_result(result: FinetuneBenchResult) -> str:
    """Return the result as a table with notes."""
    cut = "split into windows" if result.task == NER else "cut"
    notes = [
        f"An example has {result.tokens_per_example:,.1f} tokens on average, and is {cut} at {result.max_length}. "
        "For every variant, the tokens are those of the examples, without padding.",
    ]
    if result.task != NER:
        notes.append(
            "Albert computes the last layer only for [CLS], the only position that is read (pruning): exact, and some "
            "7 % fewer FLOPs with 12 layers. For every variant, the MFU counts the full model's FLOPs."
        )
    title = f"{result.task}: a step of {result.batch_size} examples"
    comparison = result.comparison
    headline = harness.format_headline(result.model, result.conditions, comparison.matmul_peak_flops)
    table = harness.format_variants(title, comparison.variants)
    return "\n\n".join([headline, table, console.wrap_notes(notes)])
