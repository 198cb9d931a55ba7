"""SQuAD 1.1 and 2.0 as tasks: questions that are answered by a span of a text (§4.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli import store
from albert_cli.config import validate_recipe
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import QuestionAnswering
from albert_cli.tasks.base import Array, Task
from albert_cli.tasks.rows import InputLine
from albert_cli.tasks.squad.data import Question, SpanSettings, SquadFiles, Version, read_squad_file
from albert_cli.tasks.squad.head import BeamQuestionAnswering, iter_window_spans, span_loss
from albert_cli.tasks.squad.metrics import evaluate_answers, score_answer
from albert_cli.tasks.squad.windows import AnswerSpans, SpanFeatures, collect_spans, encode_spans, iter_best_answers
from albert_cli.text.vocabulary import Vocabulary

LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE = "ForQuestionAnswering", "ForBeamQuestionAnswering"
_PREDICTIONS, _NBEST, _NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"
_AT_THRESHOLD = "predictions_at_threshold.json"
OFFICIAL_FILES = (_PREDICTIONS, _NBEST, _NULL_ODDS, _AT_THRESHOLD)


@dataclass(frozen=True, kw_only=True)
class SpanAnswering(Task[Question, SpanFeatures, AnswerSpans]):
    """The answer to each question, or that it has none (2.0), by SQuAD's rules."""

    version: Version
    settings: SpanSettings = field(default_factory=SpanSettings)

    def example(self, line: InputLine) -> Question:
        """A JSON object with `question` and `context` (or `text`), perhaps `id`; else the two with a tab between."""
        question, context, identifier = line.fields(("question",), ("context", "text"))
        if not isinstance(question, str) or not isinstance(context, str):
            wanted = 'each line: {"question": "…", "context": "…"}, or with a tab'
            raise InputError(f"{line.where}: needs a question and its context", wanted)
        return Question(identifier, question, context)

    def examples_of_document(self, path: Path) -> list[Question]:
        return read_squad_file(path)

    def encode(self, examples: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int) -> SpanFeatures:
        return encode_spans(examples, vocabulary, max_seq_length, self.settings)

    def with_recipe(self, recipe: Any) -> Self:
        return replace(self, settings=recipe.span)

    def overrides_from_checkpoint(self, made_for: hub.FinetunedTask) -> list[str]:
        settings = [f"span.{key}={value}" for key, value in _recorded_span_settings(made_for.settings).items()]
        return [*super().overrides_from_checkpoint(made_for), *settings]

    def too_long(self, max_seq_length: int) -> str:
        return f"questions are longer than {self.settings.max_query_length} tokens"

    def new_model(self, config: ModelConfig) -> QuestionAnswering | BeamQuestionAnswering:
        """The encoder with a fresh head: the one that was asked for, or that the paper uses for the version."""
        beam = self.version == "2.0" if self.settings.head == "auto" else self.settings.head == "beam"
        return BeamQuestionAnswering(config) if beam else QuestionAnswering(config)

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        return span_loss(model, batch, labels, device)

    def predict(self, model: nn.Module, features: SpanFeatures, device: torch.device) -> AnswerSpans:
        is_beam = isinstance(model, BeamQuestionAnswering)
        return collect_spans(features, iter_window_spans(model, features, device), relative_null=not is_beam)

    def evaluation(
        self, outputs: AnswerSpans, features: SpanFeatures, examples: Sequence[Question]
    ) -> dict[str, float]:
        """F1 and exact match as published; in 2.0 at the recipe's threshold, and beside them at the best one."""
        texts = [found[0].text for found in iter_best_answers(examples, outputs)]
        return evaluate_answers(
            texts, _gold_answers(examples), self.version, outputs.null.tolist(), self.settings.threshold
        )

    def baseline(self, train: Sequence[Question], dev: Sequence[Question]) -> float:
        """F1 of answering nothing."""
        return evaluate_answers([""] * len(dev), _gold_answers(dev), self.version)["f1"]

    def describe_collapse(self, outputs: AnswerSpans, features: SpanFeatures) -> str | None:
        """No answer to any question where some have one, or the same place in every text."""
        if self.is_unanswered(float(outputs.null.min())) and features.answer.any():
            return "no question answered"
        first = outputs.offsets[:-1][np.diff(outputs.offsets) > 0]
        places = np.stack([outputs.start[first], outputs.end[first]])
        return "the same place in every text" if len(first) > 1 and (places == places[:, :1]).all() else None

    def is_unanswered(self, null: float) -> bool:
        """Whether a question counts as unanswerable: in 2.0 alone, by its null odds."""
        return self.version == "2.0" and null > self.settings.threshold

    def average(self, outputs: Sequence[AnswerSpans]) -> AnswerSpans:
        """Mean probabilities of the spans, and mean null odds (§4.9).

        A span that a checkpoint does not have counts there as 0, which is close to the truth: each keeps the likeliest
        25 to 40 of every window. A mean over those that have it would prefer what one is sure of to what all find
        likely. Spans are compared as places in the text, so that vocabularies may differ.
        """
        joined = [np.concatenate([getattr(o, name) for o in outputs]) for name in ("question", "start", "end")]
        weights = np.concatenate([o.probability for o in outputs]) / len(outputs)
        keys, same = np.unique(np.stack(joined, axis=1), axis=0, return_inverse=True)
        mean = np.bincount(same.ravel(), weights, minlength=len(keys)).astype(np.float64)
        null = np.mean([o.null for o in outputs], axis=0)
        order = np.lexsort((keys[:, 2], keys[:, 1], -mean, keys[:, 0]))
        question, start, end = keys[order].T
        return AnswerSpans(question, start, end, mean[order], null)

    def format_predictions(self, examples: Sequence[Question], outputs: AnswerSpans, *, scored: bool) -> list[str]:
        """Id, title, question, prediction with its place and probability, null odds in 2.0.

        Where they are `scored`, also the gold answers, and the exact match and F1 against them.
        """
        lines = []
        for question, (best, *_), null in zip(
            examples, iter_best_answers(examples, outputs), outputs.null, strict=True
        ):
            unanswered = self.is_unanswered(null)
            text = "" if unanswered else best.text
            line: dict[str, Any] = {"id": question.id, "title": question.title, "question": question.question}
            golds = [answer.text for answer in question.answers]
            if scored:
                line["answers"] = golds
            start, end = (None, None) if unanswered else (best.start, best.end)
            line |= {"prediction": text, "start": start, "end": end, "probability": round(best.probability, 5)}
            if self.version == "2.0":
                line["null_odds"] = round(float(null), 5)
            if scored:
                line |= {
                    name: round(value, 5) for name, value in score_answer(text, golds, self.version)._asdict().items()
                }
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines

    def write_predictions(self, directory: Path, examples: Sequence[Question], outputs: AnswerSpans) -> None:
        """Also the files of SQuAD's own tools: an answer per question, its n best, and in 2.0 its null odds.

        `predictions.json` always answers, as ALBERT's reference does: with the null odds the published evaluation finds
        the best threshold by itself, which needs the answers on either side of it. In 2.0
        `predictions_at_threshold.json` leaves questions beyond the threshold unanswered (""). `nbest_predictions.json`
        has probabilities that add up to 1 over the n best.
        """
        super().write_predictions(directory, examples, outputs)
        predictions: dict[str, str] = {}
        n_bests: dict[str, list[dict[str, Any]]] = {}
        for question, found in zip(examples, iter_best_answers(examples, outputs, self.settings.n_best), strict=True):
            predictions[question.id] = found[0].text
            total = sum(f.probability for f in found) or 1.0
            n_bests[question.id] = [{"text": f.text, "probability": round(f.probability / total, 6)} for f in found]
        _write_by_id(directory / _PREDICTIONS, predictions)
        _write_by_id(directory / _NBEST, n_bests)
        if self.version == "2.0":
            odds = {question.id: null for question, null in zip(examples, outputs.null.tolist(), strict=True)}
            _write_by_id(directory / _NULL_ODDS, odds)  # in full: rounded, different odds would tie
            kept = {name: "" if self.is_unanswered(odds[name]) else text for name, text in predictions.items()}
            _write_by_id(directory / _AT_THRESHOLD, kept)

    def write_model(self, model: nn.Module, directory: Path, made_for: hub.FinetunedTask) -> None:
        """The encoder and its head: the linear one under Hugging Face's class, the other under one of our own."""
        architecture = BEAM_ARCHITECTURE if isinstance(model, BeamQuestionAnswering) else LINEAR_ARCHITECTURE
        hub.write_checkpoint(model, directory, architecture, (), replace(made_for, settings=asdict(self.settings)))

    def has_head(self, found: hub.Checkpoint) -> bool:
        return found.architecture in (LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE) and self.accepts_checkpoint(found)

    def load(self, found: hub.Checkpoint) -> nn.Module:
        """The model with the head that the checkpoint has, whatever the recipe asks of new ones."""
        settings = replace(self.settings, head="beam" if found.architecture == BEAM_ARCHITECTURE else "linear")
        return Task.load(replace(self, settings=settings), found)

    @classmethod
    def from_checkpoint(cls, found: hub.Checkpoint) -> Self | None:
        """The task of a checkpoint with either head, by the settings of its fine-tuning.

        Only a model that was fine-tuned on unanswerable questions leaves any unanswered.
        """
        if found.architecture not in (LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE):
            return None
        made_for = found.finetuned_task
        short = {"max_query_length": min(64, found.config.max_position_embeddings // 4)}
        origin = found.directory / "config.json"
        try:
            settings = validate_recipe(
                SpanSettings, _recorded_span_settings(made_for.settings if made_for else short), str(origin)
            )
        except ConfigError as error:
            raise CheckpointError(error.message) from None
        version: Version = "2.0" if made_for and made_for.task == "squad2" else "1.1"
        return cls(name="", title="predict", metrics=(), version=version, settings=settings)


def _write_by_id(path: Path, by_id: dict[str, Any]) -> None:
    """One JSON object, one question per line."""
    lines = (f"{json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in by_id.items())
    store.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _gold_answers(examples: Sequence[Question]) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]


def _recorded_span_settings(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a checkpoint's recorded settings that are `SpanSettings`."""
    return {f.name: made_with[f.name] for f in fields(SpanSettings) if f.name in made_with}


SQUAD: dict[str, SpanAnswering] = {
    "squad1": SpanAnswering(
        name="squad1",
        title="SQuAD 1.1",
        metrics=("f1", "em"),
        published=("f1", "em"),
        source=SquadFiles("hf:rajpurkar/squad"),
        test_splits=(),
        version="1.1",
    ),
    "squad2": SpanAnswering(
        name="squad2",
        title="SQuAD 2.0",
        metrics=("f1", "em", "best_f1", "best_em", "has_answer_f1", "has_answer_em", "no_answer_em"),
        # At the threshold that is best on the dev set itself, as its evaluation and the reference's score them.
        published=("best_f1", "best_em"),
        source=SquadFiles("hf:rajpurkar/squad_v2"),
        test_splits=(),
        version="2.0",
    ),
}
