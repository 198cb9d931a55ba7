"""Multiple choice: which option answers a question about a passage, by one logit an option (RACE, §4.2).

Each option is a sequence `[CLS] passage [SEP] question and option [SEP]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from albert_cli.data.pairs import SPECIALS
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import MultipleChoice
from albert_cli.tasks.base import Array
from albert_cli.tasks.classification import LogitsTask
from albert_cli.tasks.features import PairFeatures, TokenSlices, tokenize
from albert_cli.tasks.rows import InputLine
from albert_cli.text.vocabulary import Vocabulary

MAX_ANSWER_TOKENS = 128  # tokens of question and option, the last as in the reference: what comes last is the option
_ARCHITECTURE = "ForMultipleChoice"
_BLANK = re.compile("_+")
_SHAPE = 'each line: {"text": "…", "question": "…", "choices": ["…", "…"]}'


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question about a passage (perhaps an empty one) with its options.

    `label` is the index of the right option, None where it is hidden; `group` names a part of the data that is scored
    apart, such as RACE's "middle" and "high".
    """

    id: str
    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    group: str = ""

    @property
    def answers(self) -> list[str]:
        """The question with each option: in the place of its `_` (or `___`), or after it."""
        if "_" in self.question:
            parts = _BLANK.split(self.question)
            return [option.join(parts) for option in self.options]
        return [f"{self.question} {option}".strip() for option in self.options]


@dataclass(frozen=True, kw_only=True)
class Choice(LogitsTask[ChoiceExample]):
    """The right option of each question; `labels` name the places of the options."""

    collapse_message = "the choice in the same place for all questions"

    def example(self, line: InputLine) -> ChoiceExample:
        """A JSON object with `choices` (`options`), `question`, a passage as `text` (`passage`, `article`), `id`."""
        value = line.values()
        options = next((value[name] for name in ("choices", "options") if name in value), None)
        names = ("text", "passage", "article", "context")
        passage = next((value[name] for name in names if name in value), "")
        question = value.get("question", "")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(o, str) for o in options):
            raise InputError(f'{line.where}: needs "choices", a list of two texts or more', _SHAPE)
        if len(options) > len(ascii_uppercase):
            raise InputError(f"{line.where}: {len(options)} choices; {len(ascii_uppercase)} have a letter")
        if not isinstance(passage, str) or not isinstance(question, str) or not (passage or question):
            raise InputError(f'{line.where}: needs a "text" or a "question"', _SHAPE)
        return ChoiceExample(str(value.get("id", line.number)), passage, question, tuple(options), None)

    def together(self, examples: Sequence[ChoiceExample]) -> Iterable[Sequence[ChoiceExample]]:
        return (list(group) for _, group in groupby(examples, key=lambda example: len(example.options)))

    def encode(self, examples: Sequence[ChoiceExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        """A sequence for each option, the passage first; all questions have the same number of options.

        Question and option keep their last 128 tokens (and at most half of a shorter limit), the passage what room is
        left, from its beginning.
        """
        size, choices = len(examples), len(examples[0].options) if examples else 1
        assert all(len(e.options) == choices for e in examples), "a task has one number of options"
        ids, texts = tokenize([e.passage for e in examples] + [a for e in examples for a in e.answers], vocabulary)
        passage, answer = texts.at(np.repeat(np.arange(size), choices)), texts.at(np.arange(size, len(texts.start)))
        room = max_seq_length - SPECIALS
        kept_answer = np.minimum(answer.length, min(MAX_ANSWER_TOKENS, (room + 1) // 2))
        kept_passage = np.minimum(passage.length, room - kept_answer)
        is_cut = ((kept_passage < passage.length) | (kept_answer < answer.length)).reshape(-1, choices).any(axis=1)
        labels = [e.label for e in examples]
        return PairFeatures(
            ids, TokenSlices(passage.start, kept_passage),
            TokenSlices(answer.start + answer.length - kept_answer, kept_answer), np.ones(size * choices, dtype=bool),
            None if None in labels else np.array(labels, dtype=np.int64),
            int(np.count_nonzero(is_cut)), vocabulary.cls_id, vocabulary.sep_id, choices,
        )  # fmt: skip

    def new_model(self, config: ModelConfig) -> MultipleChoice:
        return MultipleChoice(config, len(self.labels))

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        assert isinstance(model, MultipleChoice)
        model.choices = features.group
        return super().predict(model, features, device)

    def evaluation(self, outputs: Array, features: PairFeatures, examples: Sequence[ChoiceExample]) -> dict[str, float]:
        """Accuracy, of every group of the examples too, and the mean loss."""
        right = outputs.argmax(axis=1) == features.gold
        groups = np.array([e.group for e in examples])
        by_group = {f"{name}_accuracy": float(right[groups == name].mean()) for name in np.unique(groups) if name}
        return {"accuracy": float(right.mean()), **by_group, "loss": self.mean_loss(outputs, features)}

    def chance_loss(self, train: Sequence[ChoiceExample]) -> float:
        """That of options drawn blindly: their places say nothing that a model of one logit an option could learn."""
        return float(np.log(len(self.labels)))

    def texts(self, example: ChoiceExample) -> dict[str, Any]:
        return {"text": example.passage, "question": example.question, "choices": list(example.options)}

    def write_model(self, model: nn.Module, directory: Path, made_for: hub.FinetunedTask) -> None:
        """The encoder and its head, as `transformers` has them; the options have no names there."""
        hub.write_checkpoint(model, directory, _ARCHITECTURE, (), made_for)

    def has_head(self, found: hub.Checkpoint) -> bool:
        is_one = found.architecture == _ARCHITECTURE and len(found.tensors.get("classifier.weight", ())) == 1
        return is_one and self.accepts_checkpoint(found)

    @classmethod
    def from_checkpoint(cls, found: hub.Checkpoint) -> Self | None:
        task = cls(name="", title="predict", metrics=(), labels=tuple(ascii_uppercase))
        return task if found.architecture == _ARCHITECTURE else None
