"""SQuAD 1.1 and 2.0 as tasks: questions that are answered by a span of a text (§4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli.config import validate
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import QuestionAnswering
from albert_cli.tasks.base import Array, Task
from albert_cli.tasks.rows import Line
from albert_cli.tasks.squad.answers import (
    Spans,
    answer_lines,
    average,
    best_answers,
    collect,
    is_unanswered,
    write_official,
)
from albert_cli.tasks.squad.data import Question, SpanSettings, SquadFiles, Version, read_file
from albert_cli.tasks.squad.head import BeamQuestionAnswering, span_loss, window_spans
from albert_cli.tasks.squad.metrics import evaluate
from albert_cli.tasks.squad.windows import SpanFeatures, encode_spans
from albert_cli.text.vocabulary import Vocabulary

LINEAR, BEAM = "ForQuestionAnswering", "ForBeamQuestionAnswering"


@dataclass(frozen=True, kw_only=True)
class SpanAnswering(Task[Question, SpanFeatures, Spans]):
    """The answer to each question, or that it has none (2.0), by SQuAD's rules."""

    version: Version
    settings: SpanSettings = field(default_factory=SpanSettings)

    def example(self, line: Line) -> Question:
        """A JSON object with `question` and `context` (or `text`), perhaps `id`; else the two with a tab between."""
        question, context, identifier = line.fields(("question",), ("context", "text"))
        if not isinstance(question, str) or not isinstance(context, str):
            wanted = 'each line: {"question": "…", "context": "…"}, or with a tab'
            raise InputError(f"{line.where}: needs a question and its context", wanted)
        return Question(identifier, question, context)

    def examples_of_document(self, path: Path) -> list[Question]:
        return read_file(path)

    def encode(self, examples: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int) -> SpanFeatures:
        return encode_spans(examples, vocabulary, max_seq_length, self.settings)

    def by_recipe(self, recipe: Any) -> Self:
        return replace(self, settings=recipe.span)

    def as_trained(self, made_for: hub.FinetunedFor) -> list[str]:
        settings = [f"span.{key}={value}" for key, value in _recorded(made_for.settings).items()]
        return [*super().as_trained(made_for), *settings]

    def too_long(self, max_seq_length: int) -> str:
        return f"questions are longer than {self.settings.max_query_length} tokens"

    def new_model(self, config: ModelConfig) -> QuestionAnswering | BeamQuestionAnswering:
        """The encoder with a fresh head: the one that was asked for, or that the paper uses for the version."""
        beam = self.version == "2.0" if self.settings.head == "auto" else self.settings.head == "beam"
        return BeamQuestionAnswering(config) if beam else QuestionAnswering(config)

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        return span_loss(model, batch, labels, device)

    def predict(self, model: nn.Module, features: SpanFeatures, device: torch.device) -> Spans:
        is_beam = isinstance(model, BeamQuestionAnswering)
        return collect(features, window_spans(model, features, device), relative_null=not is_beam)

    def evaluation(self, outputs: Spans, features: SpanFeatures, examples: Sequence[Question]) -> dict[str, float]:
        """F1 and exact match as published; in 2.0 at the recipe's threshold, and beside them at the best one."""
        texts = [found[0].text for found in best_answers(examples, outputs)]
        return evaluate(texts, _golds(examples), self.version, outputs.null.tolist(), self.settings.threshold)

    def baseline(self, train: Sequence[Question], dev: Sequence[Question]) -> float:
        """F1 of answering nothing."""
        return evaluate([""] * len(dev), _golds(dev), self.version)["f1"]

    def constant_output(self, outputs: Spans, features: SpanFeatures) -> str | None:
        """No answer to any question where some have one, or the same place in every text."""
        silent = is_unanswered(self.version, float(outputs.null.min()), self.settings.threshold)
        if silent and features.is_answered.any():
            return "no question answered"
        first = outputs.offsets[:-1][np.diff(outputs.offsets) > 0]
        places = np.stack([outputs.start[first], outputs.end[first]])
        return "the same place in every text" if len(first) > 1 and (places == places[:, :1]).all() else None

    def average(self, outputs: Sequence[Spans]) -> Spans:
        return average(outputs)

    def prediction_lines(self, examples: Sequence[Question], outputs: Spans, *, scored: bool) -> list[str]:
        return answer_lines(examples, outputs, self.version, self.settings.threshold, is_scored=scored)

    def write_predictions(self, directory: Path, examples: Sequence[Question], outputs: Spans) -> None:
        super().write_predictions(directory, examples, outputs)
        write_official(directory, examples, outputs, self.version, self.settings.threshold, self.settings.n_best)

    def write_model(self, model: nn.Module, directory: Path, made_for: hub.FinetunedFor) -> None:
        """The encoder and its head: the linear one under Hugging Face's class, the other under one of our own."""
        architecture = BEAM if isinstance(model, BeamQuestionAnswering) else LINEAR
        hub.write(model, directory, architecture, (), replace(made_for, settings=asdict(self.settings)))

    def has_head(self, found: hub.Checkpoint) -> bool:
        return found.architecture in (LINEAR, BEAM) and self.is_made_for(found)

    def load(self, found: hub.Checkpoint) -> nn.Module:
        """The model with the head that the checkpoint has, whatever the recipe asks of new ones."""
        settings = replace(self.settings, head="beam" if found.architecture == BEAM else "linear")
        return Task.load(replace(self, settings=settings), found)

    @classmethod
    def of_checkpoint(cls, found: hub.Checkpoint) -> Self | None:
        """The task of a checkpoint with either head, by the settings of its fine-tuning.

        Only a model that was fine-tuned on unanswerable questions leaves any unanswered.
        """
        if found.architecture not in (LINEAR, BEAM):
            return None
        made_for = found.finetuned_for
        short = {"max_query_length": min(64, found.config.max_position_embeddings // 4)}
        origin = found.directory / "config.json"
        try:
            settings = validate(SpanSettings, _recorded(made_for.settings if made_for else short), str(origin))
        except ConfigError as error:
            raise CheckpointError(error.message) from None
        version: Version = "2.0" if made_for and made_for.task == "squad2" else "1.1"
        return cls(name="", title="predict", metrics=(), version=version, settings=settings)


def _golds(examples: Sequence[Question]) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]


def _recorded(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a checkpoint's recorded settings that are `SpanSettings`."""
    return {f.name: made_with[f.name] for f in fields(SpanSettings) if f.name in made_with}


_OF_UNANSWERABLE = ("best_f1", "best_em", "has_answer_f1", "has_answer_em", "no_answer_em")
SQUAD: dict[str, SpanAnswering] = {
    "squad1": SpanAnswering(
        name="squad1",
        title="SQuAD 1.1",
        metrics=("f1", "em"),
        published=("f1", "em"),
        source=SquadFiles("1.1", "hf:rajpurkar/squad"),
        test_splits=(),
        version="1.1",
    ),
    "squad2": SpanAnswering(
        name="squad2",
        title="SQuAD 2.0",
        metrics=("f1", "em", *_OF_UNANSWERABLE),
        # At the threshold that is best on the dev set itself, as its evaluation and the reference's score them.
        published=("best_f1", "best_em"),
        source=SquadFiles("2.0", "hf:rajpurkar/squad_v2"),
        test_splits=(),
        version="2.0",
    ),
}
