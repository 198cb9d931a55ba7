"""SQuAD 1.1 and 2.0 as tasks: a question is answered by a span of its context (§4.2).

A question's null score is a number that grows with the odds that the question has no answer. `squad.windows` computes
it from the head's outputs. If it exceeds a threshold, the question is left unanswered. Files of predictions call it
`null_odds`, as SQuAD's published tools do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
from albert_cli.formatting import round_prediction
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import QuestionAnswering
from albert_cli.tasks.base import Array, Task
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.squad.data import Question, SquadFiles
from albert_cli.tasks.squad.head import BeamQuestionAnswering, iter_window_spans, span_loss
from albert_cli.tasks.squad.metrics import evaluate_answers, score_answer
from albert_cli.tasks.squad.settings import SpanSettings, Version
from albert_cli.tasks.squad.windows import AnswerSpans, SpanFeatures, collect_spans, encode_spans, iter_best_answers
from albert_cli.text.vocabulary import Vocabulary

LINEAR_ARCHITECTURE = "ForQuestionAnswering"
BEAM_ARCHITECTURE = "ForBeamQuestionAnswering"
_ARCHITECTURES = (LINEAR_ARCHITECTURE, BEAM_ARCHITECTURE)
_PREDICTIONS = "predictions.json"
_N_BEST = "nbest_predictions.json"
_NULL_ODDS = "null_odds.json"
_AT_THRESHOLD = "predictions_at_threshold.json"
OFFICIAL_FILES = (_PREDICTIONS, _N_BEST, _NULL_ODDS, _AT_THRESHOLD)


@dataclass(frozen=True, kw_only=True)
class SpanAnswering(Task[Question, SpanFeatures, AnswerSpans]):
    """Extraction of answer spans from contexts; in version 2.0 a question may have no answer.

    Outputs are several spans of each question with their probabilities, and the question's null score.
    """

    version: Version
    settings: SpanSettings = field(default_factory=SpanSettings)

    # ---------------------------------------------------------------- reading

    def parse_example(self, line: InputLine) -> Question:
        """Parse a record with `question` and `context` (or `text`), or a line with a question, a tab and a context."""
        question, context, identifier = line.fields(("question",), ("context", "text"))
        if not isinstance(question, str) or not isinstance(context, str):
            hint = 'write {"question": "…", "context": "…"}, or separate the two by a tab'
            raise InputError(f"{line.where}: no question and context", hint)
        return Question(identifier, question, context)

    def example_fields(self, example: Question) -> dict[str, object]:
        return {"question": example.question, "context": example.context}

    def with_span_settings(self, settings: SpanSettings) -> Self:
        source = self.source
        if isinstance(source, SquadFiles):
            source = replace(source, settings=settings)
        return replace(self, settings=settings, source=source)

    def overrides_from_checkpoint(self, finetuned: hub.FinetunedTask) -> list[str]:
        span_overrides = [f"span.{name}={value}" for name, value in _recorded_span_settings(finetuned.settings).items()]
        return super().overrides_from_checkpoint(finetuned) + span_overrides

    def encode(self, examples: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int) -> SpanFeatures:
        return encode_spans(examples, vocabulary, max_seq_length, self.settings)

    def describe_truncation(self, max_seq_length: int) -> str:
        return f"questions are longer than {self.settings.max_query_length} tokens"

    # ---------------------------------------------------------------- model

    def new_model(self, config: ModelConfig) -> QuestionAnswering | BeamQuestionAnswering:
        """Return an encoder with a new head, by `settings.head`; "auto" is the paper's head for the version."""
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
        """Return F1 and exact match by the published rules; in 2.0 at the settings' threshold and at the best one."""
        texts = [answers[0].text for answers in iter_best_answers(examples, outputs)]
        null_scores = outputs.null_score.tolist()
        return evaluate_answers(texts, _gold_answers(examples), self.version, null_scores, self.settings.threshold)

    def score_majority(self, train: Sequence[Question], dev: Sequence[Question]) -> float:
        """Return F1 on dev if all questions are left unanswered."""
        return evaluate_answers([""] * len(dev), _gold_answers(dev), self.version)["f1"]

    def describe_collapse(self, outputs: AnswerSpans, features: SpanFeatures) -> str | None:
        """Describe outputs that answer no question, or all by the same character offsets; return None for others.

        Answers with the same offsets are no collapse if these are the offsets of all gold answers.
        """
        has_gold_answer = features.answer.any()  # a window without an answer has the positions 0 and 0
        if has_gold_answer and self.is_unanswered(float(outputs.null_score.min())):
            return "no question answered"
        has_span = np.diff(outputs.offsets) > 0
        best = outputs.offsets[:-1][has_span]  # the index of each question's best span
        spans = np.stack([outputs.start[best], outputs.end[best]])
        is_constant = len(best) > 1 and (spans == spans[:, :1]).all()
        if is_constant and features.gold_spans.tolist() != [spans[:, 0].tolist()]:
            return "the same span in every context"
        return None

    def with_null_threshold(self, threshold: float) -> Self:
        """Return the task that leaves questions with null scores above the threshold unanswered.

        This is the rule of `run_qa.py` in `transformers`, whose null score is that of the linear head: the sum of the
        start and end logits at [CLS], minus the sum of these logits for the best span.
        """
        return replace(self, version="2.0", settings=replace(self.settings, threshold=threshold))

    @property
    def null_threshold(self) -> float | None:
        return self.settings.threshold if self.version == "2.0" else None

    def is_unanswered(self, null_score: float) -> bool:
        """Return True if a question with this null score is left unanswered; in version 1.1 no question is."""
        return self.version == "2.0" and null_score > self.settings.threshold

    def average(self, outputs: Sequence[AnswerSpans]) -> AnswerSpans:
        """Average the probabilities of spans and the null scores (§4.9).

        Spans are character offsets, so the models may have different vocabularies. If a span is not among a model's
        outputs, its probability by this model counts as 0. The error is small, because the outputs have the most
        probable spans of every window: by default 25 with the beam head and 40 with the linear head. A mean over only
        the models that output a span would be worse: it would rank a span of one confident model above a span that all
        models find probable.
        """
        question = np.concatenate([output.question for output in outputs])
        start = np.concatenate([output.start for output in outputs])
        end = np.concatenate([output.end for output in outputs])
        weights = np.concatenate([output.probability for output in outputs]) / len(outputs)
        spans, span_index = np.unique(np.stack([question, start, end], axis=1), axis=0, return_inverse=True)
        span_index = span_index.ravel()  # NumPy 2.0 returns a column
        probability = np.bincount(span_index, weights, minlength=len(spans)).astype(np.float64)
        null = np.mean([output.null_score for output in outputs], axis=0)
        # Sorted by question, then by falling probability, then by position.
        order = np.lexsort((spans[:, 2], spans[:, 1], -probability, spans[:, 0]))
        spans = spans[order]
        return AnswerSpans(spans[:, 0], spans[:, 1], spans[:, 2], probability[order], null)

    # ---------------------------------------------------------------- predictions

    def iter_predictions(
        self, examples: Sequence[Question], outputs: AnswerSpans, *, with_details: bool
    ) -> Iterator[dict[str, object]]:
        """Yield id, title, question, best answer, its span and its probability; in 2.0 also the null score.

        An empty title is left out, because the columns that `predict` repeats may contain the title. If the question is
        left unanswered, the answer is "" and its span None. `with_details` adds the gold answers, and exact match and
        F1 against them.
        """
        best_answers = [answers[0] for answers in iter_best_answers(examples, outputs)]
        for question, best, null_score in zip(examples, best_answers, outputs.null_score.tolist(), strict=True):
            line: dict[str, object] = {"id": question.id}
            if question.title:
                line["title"] = question.title
            line["question"] = question.question
            golds = [answer.text for answer in question.answers]
            if with_details:
                line["answers"] = golds
            is_unanswered = self.is_unanswered(null_score)
            prediction = "" if is_unanswered else best.text
            line["prediction"] = prediction
            line["start"] = None if is_unanswered else best.start
            line["end"] = None if is_unanswered else best.end
            line["probability"] = round_prediction(best.probability)
            if self.version == "2.0":
                line["null_odds"] = round_prediction(null_score)
            if with_details:
                score = score_answer(prediction, golds, self.version)
                line["em"] = round(score.em, 5)
                line["f1"] = round(score.f1, 5)
            yield line

    def write_predictions(self, directory: Path, examples: Sequence[Question], outputs: AnswerSpans) -> None:
        """Write `predictions.dev.jsonl`, and the files that SQuAD's published tools read.

        * `predictions.json` answers every question, as ALBERT's released code does. The published evaluation
          script needs all answers to find the best threshold.
        * `nbest_predictions.json` has several answers per question, with probabilities that add up to 1.
        * In 2.0, `null_odds.json` has the null scores, and `predictions_at_threshold.json` answers only the questions
          with null scores of at most the threshold.
        """
        super().write_predictions(directory, examples, outputs)
        predictions: dict[str, str] = {}
        n_best: dict[str, list[dict[str, str | float]]] = {}
        for question, answers in zip(examples, iter_best_answers(examples, outputs, self.settings.n_best), strict=True):
            predictions[question.id] = answers[0].text
            total = sum(answer.probability for answer in answers) or 1.0  # the sum is 0 for a question without a span
            n_best[question.id] = [
                {"text": answer.text, "probability": round_prediction(answer.probability / total)} for answer in answers
            ]
        _write_by_id(directory / _PREDICTIONS, predictions)
        _write_by_id(directory / _N_BEST, n_best)
        if self.version == "2.0":
            # The scores are not rounded: different scores could become equal, which could change the best threshold.
            ids = (question.id for question in examples)
            null_scores = dict(zip(ids, outputs.null_score.tolist(), strict=True))
            _write_by_id(directory / _NULL_ODDS, null_scores)
            at_threshold = dict(predictions)
            for question_id, null_score in null_scores.items():
                if self.is_unanswered(null_score):
                    at_threshold[question_id] = ""
            _write_by_id(directory / _AT_THRESHOLD, at_threshold)

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        """Write a checkpoint with the settings in `config.json`; `transformers` can load it only with a linear head."""
        architecture = BEAM_ARCHITECTURE if isinstance(model, BeamQuestionAnswering) else LINEAR_ARCHITECTURE
        hub.write_checkpoint(model, directory, architecture, (), replace(finetuned, settings=asdict(self.settings)))

    def match_head(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        return [] if checkpoint.architecture in _ARCHITECTURES else None

    def wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        message = f"{checkpoint.directory}: has no question-answering head"
        hint = "pass a run of squad1 (for mini/squad2 a run of mini/squad1), or use -s model.head=new"
        return CheckpointError(message, hint)

    def load(self, checkpoint: hub.Checkpoint) -> nn.Module:
        """Load the checkpoint's model with the checkpoint's head, whatever head `settings.head` names."""
        head: Literal["beam", "linear"] = "beam" if checkpoint.architecture == BEAM_ARCHITECTURE else "linear"
        task = replace(self, settings=replace(self.settings, head=head))
        return Task.load(task, checkpoint)  # `task.load` would call this function again

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task from a checkpoint with either head, with the settings that its `config.json` records.

        Only a checkpoint that records the task `squad2` leaves questions unanswered. A model of another program records
        no task and answers all questions, also if it was fine-tuned on SQuAD 2.0; `--null-threshold` changes this.
        Raises `CheckpointError` for settings that are not valid.
        """
        if checkpoint.architecture not in _ARCHITECTURES:
            return None
        finetuned = checkpoint.finetuned_task
        version: Version = "1.1"
        if finetuned is None:  # fine-tuned by another program; questions are truncated as in scoring
            default = SpanSettings().clamp_to_positions(checkpoint.config.max_position_embeddings)
            values: dict[str, object] = {"max_query_length": default.max_query_length}
        else:
            values = _recorded_span_settings(finetuned.settings)
            if finetuned.task == "squad2":
                version = "2.0"
        try:
            settings = validate_recipe(SpanSettings, values, str(checkpoint.directory / "config.json"))
        except ConfigError as error:
            raise CheckpointError(error.message) from None
        return cls(name="", title="predict", metrics=(), version=version, settings=settings)


def _write_by_id(path: Path, values: Mapping[str, object]) -> None:
    """Write a JSON object with a value for each question id, one per line."""
    lines = []
    for question_id, value in values.items():
        lines.append(f"{json.dumps(question_id, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}")
    store.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _gold_answers(examples: Sequence[Question]) -> list[list[str]]:
    """Return the texts of each question's gold answers."""
    return [[answer.text for answer in example.answers] for example in examples]


def _recorded_span_settings(recorded: Mapping[str, object]) -> dict[str, object]:
    """Select the fields of `SpanSettings` from the settings that a checkpoint's `config.json` records."""
    return {setting.name: recorded[setting.name] for setting in fields(SpanSettings) if setting.name in recorded}


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
        # The published evaluation script and ALBERT's released code report scores at the best threshold on dev.
        published=("best_f1", "best_em"),
        source=SquadFiles("hf:rajpurkar/squad_v2", "2.0"),
        test_splits=(),
        version="2.0",
    ),
}
