"""Multiple choice: which option answers a question about a passage, by one logit an option (RACE, §4.2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli import store
from albert_cli.data.batches import PackedBatch
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import MultipleChoice
from albert_cli.model.packing import pack
from albert_cli.tasks.choice import ChoiceFeatures, encode
from albert_cli.tasks.encode import Tokenizer
from albert_cli.tasks.task import ChoiceExample, Task
from albert_cli.training.classify import PREDICTIONS, Array, averaged, predict_logits, probabilities
from albert_cli.training.task_recipe import FinetuneRecipe

ARCHITECTURE = "ForMultipleChoice"


class Choice:
    """The kind `choice` (`kinds.TaskKind`): outputs are logits [N, C] float32, a column an option.

    The task's labels name the places of the options.
    """

    def encode(
        self, task: Task, examples: Sequence[ChoiceExample], vocabulary: Tokenizer, recipe: FinetuneRecipe
    ) -> ChoiceFeatures:
        """A sequence for each option, the passage first."""
        return encode(examples, vocabulary, recipe.data.max_seq_length)

    def new_model(self, task: Task, config: ModelConfig, recipe: FinetuneRecipe) -> MultipleChoice:
        """The encoder with a fresh head of one output."""
        return MultipleChoice(config, len(task.labels))

    def loss_sum(self, task: Task, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Cross-entropy over the options, summed over the questions."""
        logits = model(pack(batch, device)).float()
        return F.cross_entropy(logits, torch.from_numpy(labels).to(device), reduction="sum")

    def predict(self, task: Task, model: nn.Module, features: ChoiceFeatures, device: torch.device) -> Array:
        """Logits [N, C] in the order of the features."""
        return predict_logits(model, features, features.choices, device)

    def evaluation(
        self, task: Task, outputs: Array, features: ChoiceFeatures, examples: Sequence[ChoiceExample]
    ) -> dict[str, float]:
        """Accuracy, of every group of the examples too, and the mean loss."""
        assert features.labels is not None, "only labelled splits are scored"
        right = outputs.argmax(axis=1) == features.labels
        groups = np.array([e.group for e in examples])
        loss = F.cross_entropy(torch.from_numpy(outputs), torch.from_numpy(features.labels))
        by_group = {f"{name}_accuracy": float(right[groups == name].mean()) for name in np.unique(groups) if name}
        return {"accuracy": float(right.mean()), **by_group, "loss": float(loss)}

    def baseline(self, task: Task, train: Sequence[ChoiceExample], dev: Sequence[ChoiceExample]) -> float:
        """The commonest place of the right option."""
        commonest = np.bincount([e.label for e in train if e.label is not None]).argmax()
        return float(np.mean([e.label == commonest for e in dev]))

    def chance_loss(self, task: Task, train: Sequence[ChoiceExample]) -> float:
        """That of options drawn blindly: their places say nothing that a model of one logit an option could learn."""
        return float(np.log(len(task.labels)))

    def one_answer(self, task: Task, outputs: Array, features: ChoiceFeatures) -> str | None:
        """The same place for all questions."""
        assert features.labels is not None, "only labelled splits are judged"
        is_one = np.ptp(outputs.argmax(axis=1)) == 0 < np.ptp(features.labels)
        return "the choice in the same place for all questions" if is_one else None

    def average(self, task: Task, outputs: Sequence[Array]) -> Array:
        """Logits whose softmax is the mean of the models' probabilities (§4.9)."""
        return averaged(outputs)

    def write_predictions(
        self, directory: Path, task: Task, outputs: Array, features: ChoiceFeatures, examples: Sequence[ChoiceExample]
    ) -> None:
        """One JSON line a question, with its text."""
        store.write_text(directory / PREDICTIONS, "".join(prediction_lines(task, outputs, examples, with_text=True)))

    def write_model(self, model: nn.Module, directory: Path, task: Task, made_for: hub.FinetunedFor) -> None:
        """The encoder and its head, as `transformers` has them; the options have no names there."""
        hub.write(model, directory, ARCHITECTURE, (), made_for)

    def has_head(self, task: Task, found: hub.Checkpoint) -> bool:
        """Whether the checkpoint has a head for choices, and was not fine-tuned for another task."""
        made_for = found.finetuned_for
        return has_head(found) and (made_for is None or made_for.task in (task.name, task.classifier_of))

    def load(self, task: Task, found: hub.Checkpoint) -> MultipleChoice:
        """That model for as many options as the task has."""
        return load(found, len(task.labels))


def has_head(found: hub.Checkpoint) -> bool:
    """Whether a checkpoint has a head for multiple choice."""
    return found.architecture == ARCHITECTURE and len(found.tensors.get("classifier.weight", ())) == 1


def load(found: hub.Checkpoint, choices: int) -> MultipleChoice:
    """A checkpoint's model for questions with that many options: the head is the same for any number."""
    model = MultipleChoice(found.config, choices)
    hub.load_into(model, found, ["classifier"])
    return model


def prediction_lines(
    task: Task, logits: Array, examples: Sequence[ChoiceExample], *, with_text: bool = False
) -> list[str]:
    """One JSON line a question: id, perhaps its text, gold label where known, prediction, probabilities by label."""
    lines = []
    for example, row in zip(examples, probabilities(logits), strict=True):
        entry: dict[str, Any] = {"id": example.id}
        if with_text:
            entry |= {"text": example.passage, "question": example.question, "choices": list(example.options)}
        if example.label is not None:
            entry["label"] = task.labels[example.label]
        entry["prediction"] = task.labels[int(row.argmax())]
        entry["probabilities"] = {name: round(float(q), 5) for name, q in zip(task.labels, row, strict=True)}
        lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    return lines
