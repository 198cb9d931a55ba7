"""`albert bench finetune`: a step of fine-tuning on a task's own examples, of this model and of `transformers`.

Everyone gets the same weights, the same examples in the same batches and the same number of steps, alternating. The
peer pads as its own example script (`run_glue.py`) does, to a fixed length by default, or to the longest of the batch;
nobody drops anything inside the encoder, as the paper fine-tunes (Table 14).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_cli import console
from albert_cli.bench import peer
from albert_cli.bench.step import GLUE_MAX, evaluating, padded, plain_step
from albert_cli.bench.timing import Timing, alternate
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError, InputError
from albert_cli.model import costs, shapes
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.tasks.classification import Classification, encode
from albert_cli.tasks.spec import find_task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast, choose_device, matmul, matmul_peak, place, resolve_auto, use_threads
from albert_cli.training.loop import clip
from albert_cli.training.run import make_optimizer
from albert_cli.training.task_recipe import resolve

WIDTHS: Final = {"transformers, padded to the longest": 0, f"transformers, padded to {GLUE_MAX}": GLUE_MAX}
Labelled = tuple[PackedBatch, NDArray[Any]]


@dataclass(frozen=True)
class Options:
    """How to measure: which model with which vocabulary, on which data, how often, and against what."""

    model: str
    vocabulary: Path
    data: str | None = None
    overrides: tuple[str, ...] = ()
    rounds: int = 5
    against: str | None = None
    device: str = "auto"


def run(name: str, options: Options) -> dict[str, Any]:
    """Measure; raises `ConfigError` for a task, a model or a device that cannot be."""
    bench = _Bench(name, options)
    with use_threads(bench.train.threads):
        return bench.run()


class _Bench:
    """The task's batches, and a model with random weights: they decide no speed."""

    def __init__(self, name: str, options: Options) -> None:
        self.options, self.device = options, choose_device(options.device)
        self.recipe = resolve(name, (f"data.max_seq_length={GLUE_MAX}", *options.overrides))
        if self.recipe.task == "table":
            raise ConfigError("bench finetune times the tasks that come with albert", "name one of GLUE's")
        task = find_task(self.recipe.task)
        if not isinstance(task, Classification) or task.train_split is None:
            raise ConfigError(f"bench finetune times classifiers; {task.title} is none", "name a task of GLUE")
        self.task = task
        vocabulary = Vocabulary.load(options.vocabulary)
        settings = self.recipe.model
        self.config = replace(
            shapes.find(options.model).config,
            vocab_size=vocabulary.size,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            classifier_dropout_prob=settings.classifier_dropout,
        )
        examples = task.read(task.train_split, options.data)
        features = encode(examples, vocabulary, min(self.recipe.data.max_seq_length, GLUE_MAX))
        if features.labels is None:
            raise InputError(f"{self.task.title}: the training data have no labels")
        self.train = resolve_auto(
            self.recipe.train, self.config, self.device,
            sequences=self.recipe.train.micro_batch_size, length=round(float(features.lengths.mean())),
        )  # fmt: skip
        # Two calls of every variant warm up.
        steps = range(options.rounds + 2)
        index = [features.batch_index(self.train.seed, step, self.train.batch_size) for step in steps]
        self.batches: list[Labelled] = [features.batch(i) for i in index]  # type: ignore[misc]
        self.filled = float(features.lengths.mean()) / GLUE_MAX

    def run(self) -> dict[str, Any]:
        torch.manual_seed(0)
        model = SequenceClassifier(self.config, len(self.task.output_names))
        place(model, self.train, self.device)
        variants, losses = self._variants(model)
        peak = matmul_peak(self.train.precision, self.device)
        # What disturbs the rounds disturbs the products between them alike.
        product, flops = matmul(self.train.precision, self.device)
        timings = alternate({**variants, "peak": product}, self.options.rounds, self.device, self.task.title)
        peak = max(peak, flops / timings.pop("peak").minimum, matmul_peak(self.train.precision, self.device))
        lengths = np.concatenate([np.diff(batch.offsets) for batch, _ in self._timed()])
        return {
            "task": self.task.name,
            "model": self.options.model,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
            "threads": torch.get_num_threads(),
            "precision": self.train.precision,
            "matmul_peak_flops": round(peak),
            "batch_size": self.train.batch_size,
            "rounds": self.options.rounds,
            "tokens_a_step": round(float(lengths.sum()) / self.options.rounds, 1),
            "tokens_an_example": round(GLUE_MAX * self.filled, 2),
            "cut_to": GLUE_MAX,
            "variants": {
                name: self._described(timing, timings["albert"], peak, losses[name]) for name, timing in timings.items()
            },
        }

    def _timed(self) -> list[Labelled]:
        return self.batches[2:]

    def _variants(self, model: SequenceClassifier) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
        """Everyone's step, and everyone's loss on the first batch without dropout before anything is timed."""
        variants = {"albert": self._own(model)}
        losses = {"albert": self._loss(lambda: _own_loss(self.task, model, *self.batches[0], self.device), model)}
        if self.options.against == "transformers":
            twin = peer.twin(model)
            for name, width in WIDTHS.items():
                rounds = count()

                def loss(batch: Labelled, width: int = width) -> Tensor:
                    return _peer_loss(twin, *batch, width, self.device)

                losses[name] = self._loss(lambda loss=loss: loss(self.batches[0]), twin)  # type: ignore[misc]
                variants[name] = plain_step(
                    twin,
                    lambda loss=loss, rounds=rounds: loss(self._next(rounds)),  # type: ignore[misc]
                    self.train.precision,
                    self.device,
                )
        return variants, losses

    def _next(self, rounds: count[int]) -> Labelled:
        return self.batches[next(rounds) % len(self.batches)]

    def _own(self, model: SequenceClassifier) -> Callable[[], float]:
        """One whole step of ours; the rate is 0, so that all rounds compute with the same weights."""
        optimizer, rounds = make_optimizer(model, self.recipe.optimizer), count()

        def step() -> float:
            with autocast(self.train.precision, self.device):
                loss = _own_loss(self.task, model, *self._next(rounds), self.device)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = clip(optimizer, self.recipe.optimizer.clip_norm)
            read = torch.stack([loss.detach(), norm]).tolist()  # as the loop does before it updates
            optimizer.step(0.0)
            optimizer.zero_grad()
            return float(read[0])

        return step

    def _loss(self, loss: Callable[[], Tensor], model: torch.nn.Module) -> float:
        with torch.inference_mode(), evaluating(model), autocast(self.train.precision, self.device):
            return float(loss())

    def _described(self, timing: Timing, ours: Timing, peak: float, loss: float) -> dict[str, float]:
        """Medians over the rounds, each with its own examples; `mfu` counts the full model's FLOPs over real tokens."""
        timed = [
            (seconds, own, int(batch.offsets[-1]), costs.batch_flops(self.config, np.diff(batch.offsets), 0))
            for seconds, own, (batch, _) in zip(timing.seconds, ours.seconds, self._timed(), strict=True)
        ]
        return {
            "median_ms": round(1e3 * timing.median, 2),
            "sequences_per_second": round(self.train.batch_size / timing.median, 2),
            "tokens_per_second": round(median(tokens / seconds for seconds, _, tokens, _ in timed)),
            "mfu": round(median(flops / seconds for seconds, _, _, flops in timed) / peak, 4),
            "albert_is_faster": round(median(seconds / own for seconds, own, _, _ in timed), 3),
            "loss": round(loss, 6),
        }


def _own_loss(
    task: Classification, model: SequenceClassifier, batch: PackedBatch, labels: NDArray[Any], device: torch.device
) -> Tensor:
    logits = model(pack(batch, device)).float()
    return task.summed_loss(logits, torch.from_numpy(labels).to(device)) / len(labels)


def _peer_loss(
    twin: torch.nn.Module, batch: PackedBatch, labels: NDArray[Any], width: int, device: torch.device
) -> Tensor:
    """`transformers`' own loss on the batch, padded to `width` (0: to its longest)."""
    loss: Tensor = twin(**padded(batch, device, width), labels=torch.from_numpy(labels).to(device)).loss
    return loss


# ---------------------------------------------------------------- shown


def text(result: Mapping[str, Any]) -> str:
    """The result of `run` as a table, with what is to be known about it."""
    headers = (
        f"{result['task']}: a step of {result['batch_size']} examples",
        "median ms", "sequences/s", "tokens/s", "of peak", "albert is", "loss",
    )  # fmt: skip
    rows = [
        (
            name,
            f"{v['median_ms']:,.1f}",
            f"{v['sequences_per_second']:,.1f}",
            f"{v['tokens_per_second']:,}",
            f"{v['mfu']:.0%}",
            "" if name == "albert" else f"{v['albert_is_faster']:.2f}x",
            f"{v['loss']:.5f}",
        )
        for name, v in result["variants"].items()
    ]
    said = (
        f"{result['model']} on {result['device']}, {result['threads']} threads, {result['precision']}; matrix products "
        f"reach {result['matmul_peak_flops'] / 1e9:,.0f} GFLOP/s"
    )
    notes = [
        f"An example has {result['tokens_an_example']:,.1f} tokens on average, and is cut at {result['cut_to']}. The "
        "tokens are those of the examples, for everyone; nobody's padding is counted.",
        "Ours computes the last layer only for [CLS], which alone is read (pruning): exact, and some 7 % fewer FLOPs "
        "with 12 layers. The share of the peak counts the full model's, for everyone alike.",
    ]
    return "\n\n".join([said, console.table(headers, rows), console.wrapped(notes)])
