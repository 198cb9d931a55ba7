"""SQuAD 1.1 and 2.0 as tasks: a span of a text answers a question (§4.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, Self

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
from albert_cli.tasks.base import Array, Task, TaskRecipe
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.squad.data import Question, SquadFiles
from albert_cli.tasks.squad.head import BeamQuestionAnswering, iter_window_spans, span_loss
from albert_cli.tasks.squad.metrics import evaluate_answers, score_answer
from albert_cli.tasks.squad.settings import SpanSettings, Version
from albert_cli.tasks.squad.windows import AnswerSpans, SpanFeatures, collect_spans, encode_spans, iter_best_answers
from albert_cli.text.vocabulary import Vocabulary

LINEAR_ARCHITECTURE = "ForQuestionAnswering"
BEAM_ARCHITECTURE = "ForBeamQuestionAnswering"
_PREDICTIONS = "predictions.json"
_N_BEST = "nbest_predictions.json"
_NULL_ODDS = "null_odds.json"
_AT_THRESHOLD = "predictions_at_threshold.json"
OFFICIAL_FILES = (_PREDICTIONS, _N_BEST, _NULL_ODDS, _AT_THRESHOLD)


@dataclass(frozen=True, kw_only=True)
class SpanAnswering(Task[Question, SpanFeatures, AnswerSpans]):
    """Answers to questions by spans of their contexts; in version 2.0 a question may have no answer."""

    version: Version
    settings: SpanSettings = field(default_factory=SpanSettings)

    # ---------------------------------------------------------------- reading

    def example(self, line: InputLine) -> Question:
        """Parse `question` and `context` (or `text`) of an object, or the two texts around a tab."""
        question, context, identifier = line.fields(("question",), ("context", "text"))
        if not isinstance(question, str) or not isinstance(context, str):
            hint = 'write {"question": "…", "context": "…"}, or separate the two by a tab'
            raise InputError(f"{line.where}: no question and context", hint)
        return Question(identifier, question, context)

    def example_fields(self, example: Question) -> dict[str, object]:
        return {"question": example.question, "context": example.context}

    def with_recipe(self, recipe: TaskRecipe) -> Self:
        source = self.source
        if isinstance(source, SquadFiles):
            source = replace(source, settings=recipe.span)
        return replace(self, settings=recipe.span, source=source)

    def overrides_from_checkpoint(self, finetuned: hub.FinetunedTask) -> list[str]:
        settings = _recorded_span_settings(finetuned.settings)
        overrides = [f"span.{name}={value}" for name, value in settings.items()]
        return [*super().overrides_from_checkpoint(finetuned), *overrides]

    def encode(self, examples: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int) -> SpanFeatures:
        return encode_spans(examples, vocabulary, max_seq_length, self.settings)

    def describe_truncation(self, max_seq_length: int) -> str:
        return f"questions are longer than {self.settings.max_query_length} tokens"

    # ---------------------------------------------------------------- model

    def new_model(self, config: ModelConfig) -> QuestionAnswering | BeamQuestionAnswering:
        """Return an encoder with a new head: the settings' head or, for "auto", the paper's head for the version."""
        is_beam = self.settings.head == "beam" or (self.settings.head == "auto" and self.version == "2.0")
        return BeamQuestionAnswering(config) if is_beam else QuestionAnswering(config)

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        return span_loss(model, batch, labels, device)

    def predict(self, model: nn.Module, features: SpanFeatures, device: torch.device) -> AnswerSpans:
        is_beam = isinstance(model, BeamQuestionAnswering)
        return collect_spans(features, iter_window_spans(model, features, device), relative_null=not is_beam)

    # ---------------------------------------------------------------- scoring

    def compute_metrics(
        self, outputs: AnswerSpans, features: SpanFeatures, examples: Sequence[Question]
    ) -> dict[str, float]:
        """Compute F1 and exact match by the published rules; in 2.0 at the recipe's and at the best null threshold."""
        texts = [answers[0].text for answers in iter_best_answers(examples, outputs)]
        null_odds = outputs.null.tolist()
        return evaluate_answers(texts, _gold_answers(examples), self.version, null_odds, self.settings.threshold)

    def score_baseline(self, train: Sequence[Question], dev: Sequence[Question]) -> float:
        """Compute F1 of empty answers to all questions."""
        return evaluate_answers([""] * len(dev), _gold_answers(dev), self.version)["f1"]

    def describe_collapse(self, outputs: AnswerSpans, features: SpanFeatures) -> str | None:
        """Describe outputs without an answer to any question, or with the same span in every context."""
        if self.is_unanswered(float(outputs.null.min())) and features.answer.any():
            return "no question answered"
        best = outputs.offsets[:-1][np.diff(outputs.offsets) > 0]
        spans = np.stack([outputs.start[best], outputs.end[best]])
        if len(best) > 1 and (spans == spans[:, :1]).all():
            return "the same span in every context"
        return None

    def with_null_threshold(self, threshold: float) -> Self:
        """Return the task that leaves questions unanswered, as `run_qa.py` does with models of SQuAD 2.0.

        The null odds are the sum of the start and end logits at [CLS] minus the same sum for the best span.
        """
        return replace(self, version="2.0", settings=replace(self.settings, threshold=threshold))

    @property
    def null_threshold(self) -> float | None:
        return self.settings.threshold if self.version == "2.0" else None

    def is_unanswered(self, null: float) -> bool:
        """Return True if these null odds mean no answer; in version 1.1 every question has an answer."""
        return self.version == "2.0" and null > self.settings.threshold

    def average(self, outputs: Sequence[AnswerSpans]) -> AnswerSpans:
        """Average the probabilities of spans and the null odds (§4.9).

        A span that a model has not retained counts as 0 for this model. The error is small, because a model retains the
        25 to 40 most probable spans of every window. A mean over only the models that retained a span would rank a span
        of one confident model above a span that all models find probable. Spans are character offsets, so the models
        may have different vocabularies.
        """
        question = np.concatenate([output.question for output in outputs])
        start = np.concatenate([output.start for output in outputs])
        end = np.concatenate([output.end for output in outputs])
        weights = np.concatenate([output.probability for output in outputs]) / len(outputs)
        spans, span_index = np.unique(np.stack([question, start, end], axis=1), axis=0, return_inverse=True)
        mean = np.bincount(span_index.ravel(), weights, minlength=len(spans)).astype(np.float64)
        null = np.mean([output.null for output in outputs], axis=0)
        # By question, then the most probable span first, then by position.
        order = np.lexsort((spans[:, 2], spans[:, 1], -mean, spans[:, 0]))
        spans = spans[order]
        return AnswerSpans(spans[:, 0], spans[:, 1], spans[:, 2], mean[order], null)

    # ---------------------------------------------------------------- predictions

    def format_predictions(self, examples: Sequence[Question], outputs: AnswerSpans, *, scored: bool) -> list[str]:
        """Return a JSON line per question: the prediction with its span and probability, in 2.0 also the null odds.

        `scored` adds the gold answers, and exact match and F1 against them.
        """
        lines = []
        answers = iter_best_answers(examples, outputs)
        for question, (best, *_), null in zip(examples, answers, outputs.null, strict=True):
            is_unanswered = self.is_unanswered(null)
            prediction = "" if is_unanswered else best.text
            golds = [answer.text for answer in question.answers]
            line: dict[str, object] = {"id": question.id, "title": question.title, "question": question.question}
            if scored:
                line["answers"] = golds
            line["prediction"] = prediction
            line["start"] = None if is_unanswered else best.start
            line["end"] = None if is_unanswered else best.end
            line["probability"] = round(best.probability, 5)
            if self.version == "2.0":
                line["null_odds"] = round(float(null), 5)
            if scored:
                score = score_answer(prediction, golds, self.version)
                line["em"] = round(score.em, 5)
                line["f1"] = round(score.f1, 5)
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines

    def write_predictions(self, directory: Path, examples: Sequence[Question], outputs: AnswerSpans) -> None:
        """Write `predictions.dev.jsonl` and the files of SQuAD's tools.

        `predictions.json` answers every question, as ALBERT's reference does. The published evaluation needs all
        answers, because it finds the best threshold itself, from `null_odds.json`. In 2.0
        `predictions_at_threshold.json` has an empty answer for each question with null odds above the threshold. The
        probabilities of a question in `nbest_predictions.json` add up to 1.
        """
        super().write_predictions(directory, examples, outputs)
        predictions: dict[str, str] = {}
        n_best: dict[str, list[dict[str, str | float]]] = {}
        for question, answers in zip(examples, iter_best_answers(examples, outputs, self.settings.n_best), strict=True):
            predictions[question.id] = answers[0].text
            total = sum(answer.probability for answer in answers) or 1.0
            n_best[question.id] = [
                {"text": answer.text, "probability": round(answer.probability / total, 6)} for answer in answers
            ]
        _write_by_id(directory / _PREDICTIONS, predictions)
        _write_by_id(directory / _N_BEST, n_best)
        if self.version == "2.0":
            # Not rounded, so that different odds do not tie.
            odds = {question.id: null for question, null in zip(examples, outputs.null.tolist(), strict=True)}
            _write_by_id(directory / _NULL_ODDS, odds)
            at_threshold = {name: "" if self.is_unanswered(odds[name]) else text for name, text in predictions.items()}
            _write_by_id(directory / _AT_THRESHOLD, at_threshold)

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        """Write a checkpoint; the linear head has Hugging Face's architecture name, the beam head our own."""
        architecture = BEAM_ARCHITECTURE if isinstance(model, BeamQuestionAnswering) else LINEAR_ARCHITECTURE
        hub.write_checkpoint(model, directory, architecture, (), replace(finetuned, settings=asdict(self.settings)))

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        is_span_head = checkpoint.architecture in (LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE)
        return is_span_head and self.accepts_checkpoint(checkpoint)

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        """Return the checkpoint unchanged; raises `CheckpointError` if it has no head that finds spans."""
        if checkpoint.architecture not in (LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE):
            message = f'{checkpoint.directory}: has no head that finds answers, but model.head is "checkpoint"'
            hint = "pass a run of squad1 (for mini/squad2 a run of mini/squad1), or use -s model.head=new"
            raise CheckpointError(message, hint)
        return checkpoint

    def load(self, checkpoint: hub.Checkpoint) -> nn.Module:
        """Load the checkpoint's head; `settings.head` is for new heads."""
        head: Literal["beam", "linear"] = "beam" if checkpoint.architecture == BEAM_ARCHITECTURE else "linear"
        return Task.load(replace(self, settings=replace(self.settings, head=head)), checkpoint)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task from a checkpoint with either head and from the settings of its fine-tuning.

        Only a model that was fine-tuned on unanswerable questions leaves questions unanswered.
        """
        if checkpoint.architecture not in (LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE):
            return None
        finetuned = checkpoint.finetuned_task
        # Without recorded settings: the reference's limit, or a quarter of the positions of a short model.
        recorded: Mapping[str, object] = {"max_query_length": min(64, checkpoint.config.max_position_embeddings // 4)}
        if finetuned is not None:
            recorded = finetuned.settings
        origin = checkpoint.directory / "config.json"
        try:
            settings = validate_recipe(SpanSettings, _recorded_span_settings(recorded), str(origin))
        except ConfigError as error:
            raise CheckpointError(error.message) from None
        version: Version = "2.0" if finetuned is not None and finetuned.task == "squad2" else "1.1"
        return cls(name="", title="predict", metrics=(), version=version, settings=settings)


def _write_by_id(path: Path, values: Mapping[str, object]) -> None:
    """Write a JSON object with one question per line."""
    lines = []
    for name, value in values.items():
        lines.append(f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}")
    store.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _gold_answers(examples: Sequence[Question]) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]


def _recorded_span_settings(recorded: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a checkpoint's fine-tuning that are fields of `SpanSettings`."""
    names = [setting.name for setting in fields(SpanSettings)]
    return {name: recorded[name] for name in names if name in recorded}


SQUAD: dict[str, SpanAnswering] = {
    "squad1": SpanAnswering(
        name="squad1",
        title="SQuAD 1.1",
        metrics=("f1", "em"),
        published=("f1", "em"),
        source=SquadFiles("hf:rajpurkar/squad", "1.1"),
        test_splits=(),
        version="1.1",
    ),
    "squad2": SpanAnswering(
        name="squad2",
        title="SQuAD 2.0",
        metrics=("f1", "em", "best_f1", "best_em", "has_answer_f1", "has_answer_em", "no_answer_em"),
        # Published scores use the best threshold on dev, as the published evaluation and the reference do.
        published=("best_f1", "best_em"),
        source=SquadFiles("hf:rajpurkar/squad_v2", "2.0"),
        test_splits=(),
        version="2.0",
    ),
}
