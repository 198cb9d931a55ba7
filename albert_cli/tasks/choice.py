"""Multiple choice: select the option that answers a question about a passage, by one logit per option (RACE, §4.2).

Each option is a sequence `[CLS] passage [SEP] question and option [SEP]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli.data.batches import PackedBatch
from albert_cli.data.pairs import SPECIALS
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import MultipleChoice
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array
from albert_cli.tasks.classification import LogitsTask, label_array
from albert_cli.tasks.features import PairFeatures, TokenSlices, tokenize
from albert_cli.tasks.input_lines import InputLine, first_of
from albert_cli.text.vocabulary import Vocabulary

MAX_ANSWER_TOKENS = 128  # of question and option; the last ones as in the reference, because the option comes last
MAX_OPTIONS = len(ascii_uppercase)  # an option is named by a letter
_ARCHITECTURE = "ForMultipleChoice"
_MASKED_LOGIT = -1e30  # the logit of an option that a question lacks
_BLANK = re.compile("_+")
_SHAPE = 'write {"text": "…", "question": "…", "choices": ["…", "…"]}'


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question about a passage, which may be empty, with its options.

    `label` is the correct option's index, None if it is hidden. `group` names a part of the data that is also scored
    separately, such as RACE's "middle" and "high".
    """

    id: str
    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    group: str = ""

    @property
    def answers(self) -> list[str]:
        """The question with each option, which replaces its blank (`_`, `___`) or follows it."""
        if "_" in self.question:
            parts = _BLANK.split(self.question)
            return [option.join(parts) for option in self.options]
        return [f"{self.question} {option}".strip() for option in self.options]


@dataclass(frozen=True, kw_only=True)
class Choice(LogitsTask[ChoiceExample]):
    """Selection of one option for each question; `labels` name the options' positions."""

    collapse_message = "the same option for all questions"

    def example(self, line: InputLine) -> ChoiceExample:
        """Parse an object with `choices` (`options`), `question`, a passage (`text`, `article`, …) and `id`."""
        values = line.values()
        options = _parse_options(first_of(values, ("choices", "options")), line.where)
        passage = first_of(values, ("text", "passage", "article", "context"))
        question = values.get("question", "")
        passage = "" if passage is None else passage
        if not isinstance(passage, str) or not isinstance(question, str) or not (passage or question):
            raise InputError(f'{line.where}: neither "text" nor "question" is a text', _SHAPE)
        return ChoiceExample(str(values.get("id", line.number)), passage, question, options, None)

    def group_for_encoding(self, examples: Sequence[ChoiceExample]) -> Iterable[Sequence[ChoiceExample]]:
        """Split into runs of examples with the same number of options."""
        return (list(group) for _, group in groupby(examples, key=lambda example: len(example.options)))

    def encode(self, examples: Sequence[ChoiceExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        """Encode a sequence per option, passage first; questions with fewer options are padded with empty sequences.

        Question and option retain their last 128 tokens (at most half of a shorter limit), passages their first.
        """
        size = len(examples)
        counts = np.array([len(example.options) for example in examples], dtype=np.int64)
        choices = int(counts.max(initial=1))
        passages = [example.passage for example in examples]
        answers = [answer for e in examples for answer in [*e.answers, *[""] * (choices - len(e.options))]]
        ids, slices = tokenize(passages + answers, vocabulary)
        is_padding = (np.arange(choices) >= counts[:, None]).ravel()
        passage = slices.select(np.repeat(np.arange(size), choices))
        answer = slices.select(np.arange(size, len(slices.start)))
        room = max_seq_length - SPECIALS
        answer_length = np.minimum(answer.length, min(MAX_ANSWER_TOKENS, (room + 1) // 2))
        passage_length = np.where(is_padding, 0, np.minimum(passage.length, room - answer_length))
        is_cut = (passage_length < passage.length) | (answer_length < answer.length)
        is_cut &= ~is_padding
        return PairFeatures(
            ids=ids,
            first=TokenSlices(passage.start, passage_length),
            second=TokenSlices(answer.start + answer.length - answer_length, answer_length),
            is_pair=np.ones(size * choices, dtype=bool),
            labels=label_array([example.label for example in examples]),
            truncated=int(np.count_nonzero(is_cut.reshape(-1, choices).any(axis=1))),
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            group=choices,
            options=counts if is_padding.any() else None,
        )

    def new_model(self, config: ModelConfig) -> MultipleChoice:
        return MultipleChoice(config, len(self.labels))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Return the cross-entropy over each question's options, summed over questions."""
        assert isinstance(model, MultipleChoice)
        model.choices = (len(batch.offsets) - 1) // len(labels)
        if labels.ndim == 1:
            return super().loss_sum(model, batch, labels, device)
        label_N, count_N = to_device([labels[:, 0].copy(), labels[:, 1].copy()], device)
        logits_NC = model(pack(batch, device)).float()
        is_padding_NC = torch.arange(model.choices, device=device) >= count_N[:, None]
        return self.summed_loss(logits_NC.masked_fill(is_padding_NC, _MASKED_LOGIT), label_N)

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        if isinstance(model, MultipleChoice):
            model.choices = features.group
        logits = super().predict(model, features, device)
        if features.options is not None:
            logits[np.arange(features.group) >= features.options[:, None]] = _MASKED_LOGIT
        return logits

    def output_labels(self, example: ChoiceExample) -> tuple[str, ...]:
        return self.labels[: len(example.options)]

    def compute_metrics(
        self, outputs: Array, features: PairFeatures, examples: Sequence[ChoiceExample]
    ) -> dict[str, float]:
        """Compute accuracy, also of every group of examples, and the mean loss."""
        correct = outputs.argmax(axis=1) == features.gold
        groups = np.array([example.group for example in examples])
        by_group = {f"{name}_accuracy": float(correct[groups == name].mean()) for name in np.unique(groups) if name}
        return {"accuracy": float(correct.mean()), **by_group, "loss": self.mean_loss(outputs, features)}

    def chance_loss(self, train: Sequence[ChoiceExample]) -> float:
        """Return the loss of uniform guesses: a model with one logit per option cannot learn the options' positions."""
        return float(np.mean(np.log([len(example.options) for example in train])))

    def example_fields(self, example: ChoiceExample) -> dict[str, object]:
        return {"text": example.passage, "question": example.question, "choices": list(example.options)}

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        """Write encoder and head as in `transformers`, where options have no names."""
        hub.write_checkpoint(model, directory, _ARCHITECTURE, (), finetuned)

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        has_one_logit = len(checkpoint.tensors.get("classifier.weight", ())) == 1
        return checkpoint.architecture == _ARCHITECTURE and has_one_logit and self.accepts_checkpoint(checkpoint)

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        """Return the checkpoint, whose options have no names; raises `CheckpointError` for another head."""
        if checkpoint.architecture != _ARCHITECTURE:
            message = f'{checkpoint.directory}: has no multiple-choice head, but model.head is "checkpoint"'
            raise CheckpointError(
                message, "pass a model that was fine-tuned on questions with options, or use -s model.head=new"
            )
        return checkpoint

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        if checkpoint.architecture != _ARCHITECTURE:
            return None
        return cls(name="", title="predict", metrics=(), labels=tuple(ascii_uppercase))


def _parse_options(value: object, where: str) -> tuple[str, ...]:
    """Return the options of a question to predict; raises `InputError` for anything but a list of texts."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(option, str) for option in value):
        raise InputError(f'{where}: "choices" is not a list of two texts or more', _SHAPE)
    if len(value) > MAX_OPTIONS:
        raise InputError(f"{where}: {len(value)} choices", f"give at most {MAX_OPTIONS}, one for each letter")
    return tuple(value)
