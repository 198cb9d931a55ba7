"""Fine-tuning a classifier or regressor as a job of the loop (§4.2), and predicting with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from albert_cli.data.batches import PackedBatch
from albert_cli.distributed import Group
from albert_cli.model import card, costs, hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.tasks.encode import Features
from albert_cli.tasks.metrics import scores
from albert_cli.tasks.task import Example, Task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.loop import MicroBatch, micro_batches
from albert_cli.training.settings import TrainSettings

Array = NDArray[Any]
_EVALUATION_TOKENS = 16_384  # a forward pass without gradients; bounds memory, not the result


@dataclass
class ClassificationJob:
    """One fine-tuning run; `keep` is called with the step, dev metrics and logits whenever dev is best so far."""

    model: SequenceClassifier
    task: Task
    train: Features
    dev: Features
    vocabulary: Vocabulary
    settings: TrainSettings
    device: torch.device
    recipe: str
    max_seq_length: int
    keep: Callable[[int, Mapping[str, float], Array], None]

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The one loss of the task."""
        return ("loss",)

    @property
    def shown(self) -> Mapping[str, str]:
        """Nothing beside the loss: dev says more."""
        return {}

    def draw(self, step: int, group: Group) -> list[MicroBatch]:
        """This rank's micro-batches of the step."""
        size = self.settings.batch_size
        index = self.train.batch_index(self.settings.seed, step, size)
        parts = []
        for number, start, stop in micro_batches(size, self.settings.micro_batch_size, group):
            packed, labels = self.train.batch(index[start:stop])
            flops = costs.batch_flops(self.model.config, np.diff(packed.offsets), 0)
            parts.append(MicroBatch(number, (packed, labels), {"loss": stop - start}, len(packed.ids), flops))
        return parts

    def loss_sums(self, data: tuple[PackedBatch, Array]) -> dict[str, Tensor]:
        """Summed cross-entropy over the labels, or squared error for a regression."""
        packed, labels = data
        logits = self.model(pack(packed, self.device)).float()
        return {"loss": summed_loss(self.task, logits, torch.from_numpy(labels).to(self.device))}

    def evaluate(self, group: Group) -> dict[str, float]:
        """The task's metrics on dev, and the mean loss."""
        self.logits = predict_logits(self.model, self.dev, self.device)
        return evaluation(self.task, self.logits, self.dev)

    def score(self, metrics: Mapping[str, float]) -> float:
        """The task's first metric chooses the checkpoint (§4.2: early stopping on dev)."""
        return metrics[self.task.metrics[0]]

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Hand the best weights so far to whoever keeps them."""
        self.keep(state.step, metrics, self.logits)

    def write_model(self, directory: Path) -> None:
        """The encoder and its classifier with its labels, tokenizer and card."""
        made_for = hub.FinetunedFor(self.task.name, self.task.inputs, self.max_seq_length)
        hub.write(self.model, directory, "ForSequenceClassification", self.task.output_names, made_for)
        self.vocabulary.copy_to(directory, self.model.config.max_position_embeddings)


def write_task_card(directory: Path, job: ClassificationJob, metrics: Mapping[str, float]) -> None:
    """Write the model card of a task checkpoint."""
    card.write(directory, card.finetuned(job.model.config, job.task.title, metrics, job.recipe))


def summed_loss(task: Task, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Cross-entropy, or squared error on the raw values, summed over N examples."""
    if task.kind == "regression":
        return F.mse_loss(logits_NC[:, 0], labels_N.float(), reduction="sum")
    return F.cross_entropy(logits_NC, labels_N, reduction="sum")


@torch.inference_mode()
def predict_logits(model: SequenceClassifier, features: Features, device: torch.device) -> Array:
    """Logits [N, C] float32 in the order of the features; batches are grouped by length."""
    logits = np.empty((len(features), model.num_labels), dtype=np.float32)
    for index in features.eval_batches(_EVALUATION_TOKENS):
        packed, _ = features.batch(index)
        logits[index] = model(pack(packed, device)).float().cpu().numpy()
    return logits


def predictions_of(task: Task, logits: Array) -> Array:
    """What the logits [N, C] say: class indices [N], or values [N] for a regression."""
    return logits[:, 0] if task.kind == "regression" else logits.argmax(axis=1)


def evaluation(task: Task, logits: Array, features: Features) -> dict[str, float]:
    """Every metric of the task, and the mean loss, of logits [N, C] against the features' labels."""
    assert features.labels is not None, "only labelled splits are scored"
    labels = torch.from_numpy(features.labels)
    loss = float(summed_loss(task, torch.from_numpy(logits), labels)) / len(features)
    return {**scores(task.metrics, predictions_of(task, logits), features.labels), "loss": loss}


def prediction_lines(task: Task, logits: Array, examples: Iterable[Example]) -> list[str]:
    """One JSON line an example: id, gold label where known, prediction, and probabilities by label."""
    predicted = predictions_of(task, logits)
    if task.kind == "regression":
        found: list[dict[str, Any]] = [{"prediction": round(float(value), 5)} for value in predicted]
    else:
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        found = [
            {
                "prediction": task.labels[int(label)],
                "probabilities": {n: round(float(q), 5) for n, q in zip(task.labels, row, strict=True)},
            }
            for label, row in zip(predicted, probabilities, strict=True)
        ]
    lines = []
    for example, entry in zip(examples, found, strict=True):
        gold: dict[str, Any] = {}
        if example.label is not None:
            gold["label"] = task.labels[int(example.label)] if task.kind == "classification" else example.label
        lines.append(json.dumps({"id": example.id, **gold, **entry}, ensure_ascii=False) + "\n")
    return lines
