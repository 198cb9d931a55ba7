"""Answering questions by a span of a text, as a kind of task: SQuAD's two heads (§4.2 and appendix A.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli import console, store
from albert_cli.data.batches import PackedBatch
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import QuestionAnswering
from albert_cli.model.packing import PackedTokens, pack
from albert_cli.model.spans import BeamQuestionAnswering
from albert_cli.tasks.encode import Int64, ranges
from albert_cli.tasks.squad import Question, SquadFiles, Version
from albert_cli.tasks.squad_answers import (
    Spans,
    WindowSpans,
    answer_lines,
    average,
    best_answers,
    collect,
    is_unanswered,
    write_official,
)
from albert_cli.tasks.squad_features import SpanFeatures, encode_spans
from albert_cli.tasks.squad_metrics import evaluate
from albert_cli.tasks.task import Task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.classify import EVALUATION_TOKENS, PREDICTIONS
from albert_cli.training.task_recipe import FinetuneRecipe

Array = NDArray[Any]
LINEAR, BEAM = "ForQuestionAnswering", "ForBeamQuestionAnswering"
_HEADS = {LINEAR: ("span",), BEAM: ("start", "end", "answerable")}
_KEPT = 40  # spans of a window at least: enough for an ensemble to find those of its other members
_NEVER = -1e30


class SpanAnswering:
    """The kind `span` (`kinds.TaskKind`): outputs are `Spans` of all questions."""

    def encode(
        self, task: Task, examples: Sequence[Question], vocabulary: Vocabulary, recipe: FinetuneRecipe
    ) -> SpanFeatures:
        """Windows of the recipe's length; says where questions had to be cut."""
        features = encode_spans(examples, vocabulary, recipe.data.max_seq_length, recipe.span)
        if features.cut_questions:
            console.note(
                f"{task.title}: {features.cut_questions:,} of {features.questions:,} questions are longer than "
                f"{recipe.span.max_query_length} pieces and were cut"
            )
        return features

    def new_model(self, task: Task, config: ModelConfig, recipe: FinetuneRecipe) -> nn.Module:
        """The encoder with a fresh head: the recipe's, or the one that the paper uses for the version."""
        beam = version_of(task) == "2.0" if recipe.span.head == "auto" else recipe.span.head == "beam"
        model = BeamQuestionAnswering(config) if beam else QuestionAnswering(config)
        model.made_with = dataclasses.asdict(recipe.span)
        return model

    def loss_sum(self, task: Task, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Half the cross-entropies of start and end, summed over windows; half that of answerability added."""
        answer_N2 = torch.from_numpy(labels).to(device)
        tokens = pack(batch, device)
        if isinstance(model, BeamQuestionAnswering):
            return _beam_loss(model, tokens, _Layout.of(batch, device), answer_N2)
        logits_NS2 = tokens.grid.spread(model(tokens).float())
        is_token_NS = tokens.grid.spread(torch.ones_like(tokens.ids, dtype=torch.bool))
        logits_NS2 = logits_NS2.masked_fill(~is_token_NS[..., None], _NEVER)
        return F.cross_entropy(logits_NS2, answer_N2, reduction="sum") / 2

    def predict(self, task: Task, model: nn.Module, features: SpanFeatures, device: torch.device) -> Spans:
        """The best spans of every question."""
        return predict_spans(model, features, device)

    def evaluation(
        self, task: Task, outputs: Spans, features: SpanFeatures, examples: Sequence[Question]
    ) -> dict[str, float]:
        """F1 and exact match as published; in 2.0 at the recipe's threshold, and beside them at the best one."""
        texts = [found[0].text for found in best_answers(examples, outputs)]
        return evaluate(texts, _golds(examples), version_of(task), outputs.null.tolist(), features.settings.threshold)

    def baseline(self, task: Task, train: Sequence[Question], dev: Sequence[Question]) -> float:
        """F1 of answering nothing."""
        return evaluate([""] * len(dev), _golds(dev), version_of(task))["f1"]

    def chance_loss(self, task: Task, train: Sequence[Question]) -> None:
        """Not known: it depends on how long the windows are."""

    def one_answer(self, task: Task, outputs: Spans, features: SpanFeatures) -> str | None:
        """None to any question where some have one, or the same place in every text: always the first words, say."""
        silent = is_unanswered(version_of(task), float(outputs.null.min()), features.settings.threshold)
        if silent and features.is_answered.any():
            return "no question answered"
        first = outputs.offsets[:-1][np.diff(outputs.offsets) > 0]
        places = np.stack([outputs.start[first], outputs.end[first]])
        return "the same place in every text" if len(first) > 1 and (places == places[:, :1]).all() else None

    def average(self, task: Task, outputs: Sequence[Spans]) -> Spans:
        """Mean probabilities of the spans."""
        return average(outputs)

    def write_predictions(
        self, directory: Path, task: Task, outputs: Spans, features: SpanFeatures, examples: Sequence[Question]
    ) -> None:
        """A JSON line a question, and the three files of SQuAD's own tools."""
        version, settings = version_of(task), features.settings
        lines = answer_lines(examples, outputs, version, settings.threshold, is_scored=True)
        store.write_text(directory / PREDICTIONS, "".join(lines))
        write_official(directory, examples, outputs, version, settings.threshold, settings.n_best)

    def write_model(self, model: nn.Module, directory: Path, task: Task, made_for: hub.FinetunedFor) -> None:
        """The encoder and its head: the linear one under Hugging Face's class, the other under one of our own."""
        architecture = BEAM if isinstance(model, BeamQuestionAnswering) else LINEAR
        made_with: dict[str, Any] = model.made_with  # type: ignore[assignment]
        hub.write(model, directory, architecture, (), dataclasses.replace(made_for, settings=made_with))

    def has_head(self, task: Task, found: hub.Checkpoint) -> bool:
        """Whether the checkpoint has one of the two heads, fine-tuned on this task or elsewhere."""
        made_for = found.finetuned_for
        return found.architecture in _HEADS and (made_for is None or made_for.task == task.name)

    def load(self, task: Task, found: hub.Checkpoint) -> nn.Module:
        """The checkpoint's model."""
        return load(found)


def version_of(task: Task) -> Version:
    """Which SQuAD's rules a task follows."""
    assert isinstance(task.source, SquadFiles)
    return task.source.version


def load(found: hub.Checkpoint) -> nn.Module:
    """The model of a checkpoint that `answers_questions`."""
    model = BeamQuestionAnswering(found.config) if found.architecture == BEAM else QuestionAnswering(found.config)
    hub.load_into(model, found, _HEADS[str(found.architecture)])
    return model


def answers_questions(found: hub.Checkpoint) -> bool:
    """Whether a checkpoint has one of the two heads."""
    return found.architecture in _HEADS


def _golds(examples: Sequence[Question]) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]


# ---------------------------------------------------------------- training


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Places in a packed batch: `sequence` [T] whose token it is, `first` [N] each [CLS], `context` [T] bool."""

    sequence: Tensor
    first: Tensor
    context: Tensor

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> _Layout:
        offsets = batch.offsets.astype(np.int64)
        sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        context = batch.segment_ids == 1
        context[offsets[1:] - 1] = False  # the last [SEP]
        return cls(*(torch.from_numpy(a).to(device) for a in (sequence, offsets[:-1], context)))

    @property
    def allowed(self) -> Tensor:
        """bool [T]: what an answer may begin and end with: the context, and [CLS] where there is none."""
        return self.context.index_fill(0, self.first, True)


def _beam_loss(model: BeamQuestionAnswering, tokens: PackedTokens, layout: _Layout, answer_N2: Tensor) -> Tensor:
    x_TH, start_T = model(tokens)
    allowed_NS = tokens.grid.spread(layout.allowed)
    start_NS = _grid(start_T, tokens, allowed_NS)
    gold_NH = x_TH.index_select(0, layout.first + answer_N2[:, 0])
    end_NS = _grid(model.end(x_TH, gold_NH[:, None], layout.sequence)[:, 0], tokens, allowed_NS)
    null_N = _null_logits(model, x_TH, start_NS, tokens, layout)
    is_impossible_N = (answer_N2[:, 0] == 0).float()
    spans = F.cross_entropy(start_NS, answer_N2[:, 0], reduction="sum")
    spans = spans + F.cross_entropy(end_NS, answer_N2[:, 1], reduction="sum")
    return (spans + F.binary_cross_entropy_with_logits(null_N, is_impossible_N, reduction="sum")) / 2


def _grid(logits_T: Tensor, tokens: PackedTokens, allowed_NS: Tensor) -> Tensor:
    """Logits of tokens as [N, S] float32, far below any other where an answer may not be."""
    return tokens.grid.spread(logits_T.float()).masked_fill(~allowed_NS, _NEVER)


def _null_logits(
    model: BeamQuestionAnswering, x_TH: Tensor, start_NS: Tensor, tokens: PackedTokens, layout: _Layout
) -> Tensor:
    """Logits [N] of there being no answer, float32."""
    chance_NS = start_NS.softmax(dim=1).to(x_TH.dtype)
    mean_NH = torch.einsum("ns,nsh->nh", chance_NS, tokens.grid.spread(x_TH))
    return model.answerable(mean_NH, x_TH.index_select(0, layout.first)).float()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- prediction


def predict_spans(model: nn.Module, features: SpanFeatures, device: torch.device) -> Spans:
    """The best spans of every question, in the order of the features; windows are grouped by length."""
    is_beam = isinstance(model, BeamQuestionAnswering)
    return collect(features, _windows(model, features, device), relative_null=not is_beam)


def _windows(model: nn.Module, features: SpanFeatures, device: torch.device) -> Iterator[tuple[Int64, WindowSpans]]:
    kept = max(_KEPT, features.settings.n_best)
    for index in features.eval_batches(EVALUATION_TOKENS):
        with torch.inference_mode():
            batch, _ = features.batch(index)
            tokens, layout = pack(batch, device), _Layout.of(batch, device)
            begins = np.zeros(len(batch.ids), dtype=bool)
            inside = batch.offsets[:-1].astype(np.int64) + features.context_start(index)
            begins[ranges(inside, features.length[index])] = features.is_best_window(index)
            may_start_NS = tokens.grid.spread(torch.from_numpy(begins).to(device))
            if isinstance(model, BeamQuestionAnswering):
                *found, null = _decode_beam(model, tokens, layout, may_start_NS, features)
            else:
                *found, null = _decode_linear(model, tokens, layout, may_start_NS, features)
            first, last, start, end = (values.flatten(1) for values in found)
            scores, best = (start + end).topk(min(kept, start.shape[1]), dim=1)
            first, last, start, end = (values.gather(1, best) for values in (first, last, start, end))
            terms = torch.stack([start, end], dim=2).double().masked_fill(scores[..., None] < _NEVER / 2, -torch.inf)
        yield index, WindowSpans(*(t.cpu().numpy() for t in (first, last, terms, null.double())))


def _decode_linear(
    model: nn.Module, tokens: PackedTokens, layout: _Layout, may_start_NS: Tensor, features: SpanFeatures
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All pairs of the `n_best` starts and ends: first, last, their logits [N, K, K]; and null [N], a sum of logits."""
    logits_T2 = model(tokens).float()
    start_NS = _grid(logits_T2[:, 0], tokens, may_start_NS)
    end_NS = _grid(logits_T2[:, 1], tokens, tokens.grid.spread(layout.context))
    count = min(features.settings.n_best, start_NS.shape[1])
    (start_NK, first_NK), (end_NK, last_NK) = start_NS.topk(count, dim=1), end_NS.topk(count, dim=1)
    first, last = first_NK[:, :, None].expand(-1, -1, count), last_NK[:, None, :].expand(-1, count, -1)
    fits = (last >= first) & (last - first < features.settings.max_answer_length)
    null_N = logits_T2.index_select(0, layout.first).sum(dim=1)
    start, end = start_NK[:, :, None].expand_as(first), end_NK[:, None, :].expand_as(last)
    return first, last, start, end.masked_fill(~fits, _NEVER), null_N


def _decode_beam(
    model: BeamQuestionAnswering, tokens: PackedTokens, layout: _Layout, may_start_NS: Tensor, features: SpanFeatures
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The best ends of the best starts: first, last, their log-probabilities [N, E, K]; and null logits [N]."""
    settings = features.settings
    x_TH, start_T = model(tokens)
    allowed_NS = tokens.grid.spread(layout.allowed)
    start_NS = _grid(start_T, tokens, allowed_NS)
    width = start_NS.shape[1]
    chance_NS = start_NS.log_softmax(dim=1).masked_fill(~may_start_NS, _NEVER)
    start_NK, first_NK = chance_NS.topk(min(settings.start_top, width), dim=1)
    # A short context has fewer starts than that; what stands for the others may lie behind the last token of all.
    first_NK = first_NK.masked_fill(start_NK < _NEVER / 2, 0)
    start_NKH = x_TH.index_select(0, (layout.first[:, None] + first_NK).flatten()).unflatten(0, first_NK.shape)
    end_NSK = tokens.grid.spread(model.end(x_TH, start_NKH, layout.sequence).float())
    end_NSK = end_NSK.masked_fill(~allowed_NS[..., None], _NEVER).log_softmax(dim=1)
    beyond = torch.arange(width, device=x_TH.device)[:, None] - first_NK[:, None, :]
    fits = (beyond >= 0) & (beyond < settings.max_answer_length) & tokens.grid.spread(layout.context)[..., None]
    end_NEK, last_NEK = end_NSK.masked_fill(~fits, _NEVER).topk(min(settings.end_top, width), dim=1)
    null_N = _null_logits(model, x_TH, start_NS, tokens, layout)
    first_NEK, start_NEK = (values[:, None, :].expand_as(last_NEK) for values in (first_NK, start_NK))
    return first_NEK, last_NEK, start_NEK, end_NEK, null_N
