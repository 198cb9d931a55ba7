"""Encode questions as windows of tokens, `[CLS] question [SEP] window of the context [SEP]`, and map spans to text.

Every distinct context is tokenized once. A window is a range of a context's tokens and is assembled when a batch is
sampled. Shapes: W windows, Q questions, C contexts, P tokens of all contexts, B windows of a batch with K spans each,
M spans of all questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import concatenate_ranges, offsets_from_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.data.pairs import SPECIALS
from albert_cli.tasks.features import Features, Int32, Int64, TokenSlices, pack_pairs, slide_windows, tokenize
from albert_cli.tasks.squad.data import NOT_FOUND, Question
from albert_cli.tasks.squad.metrics import Float64
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.text.vocabulary import Vocabulary

_SEPARATORS_BEFORE_CONTEXT = 2  # [CLS], and the [SEP] after the question
NULL_ODDS_WITHOUT_SPAN = 1e9  # beyond any threshold, but finite, so that JSON can hold it


@dataclass(frozen=True)
class Contexts:
    """The tokens of C contexts: ids, and their starts and ends in the text, int32 [P]; offsets int64 [C + 1]."""

    ids: Int32
    starts: Int32
    ends: Int32
    offsets: Int64

    @property
    def lengths(self) -> Int64:
        """Tokens of each context, int64 [C]."""
        return np.diff(self.offsets)

    def tokens_at(self, context: Int64, start: Int64, stop: Int64) -> tuple[Int64, Int64]:
        """Return the first and last token that hold characters of `text[start:stop]`, counted from the context's first.

        All arguments and results are int64 [N]. The last is before the first if no token holds any of the characters.
        """
        # Shift the positions of each context beyond the previous context, so that one search serves all.
        stride = 1 + max(int(self.ends.max(initial=0)), int(stop.max(initial=0)))
        shift = np.repeat(np.arange(len(self.lengths)) * stride, self.lengths)
        first = np.searchsorted(shift + self.ends, context * stride + start, side="right")
        last = np.searchsorted(shift + self.starts, context * stride + stop, side="left") - 1
        base = self.offsets[:-1][context]
        return first - base, last - base


@dataclass(frozen=True)
class SpanFeatures(Features):
    """W windows of Q questions.

    `question` int64 [W], increasing, is each window's question; `start` and `length` int64 [W] are the range of its
    context's tokens. `answer` int64 [W, 2] is the first and last token of the answer, counted from [CLS], or 0 if the
    window does not contain all of it. `context` int64 [Q] is each question's context and `query` [Q] its tokens in
    `query_ids`. `truncated` counts the questions that were too long.
    """

    contexts: Contexts
    context: Int64
    query_ids: Int32
    query: TokenSlices
    question: Int64
    start: Int64
    length: Int64
    answer: Int64
    settings: SpanSettings
    cls_id: int
    sep_id: int
    truncated: int

    @property
    def lengths(self) -> Int64:
        return self.length + self.query.length[self.question] + SPECIALS

    def context_start(self, index: Int64) -> Int64:
        """Return the position of the first context token in each window [B], counted from [CLS]: int64 [B]."""
        return self.query.length[self.question[index]] + _SEPARATORS_BEFORE_CONTEXT

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[np.int64]]:
        """Pack the windows at `index` [B]; return them with their answers int64 [B, 2] (0, 0: [CLS], no answer)."""
        question = self.question[index]
        first_token = self.contexts.offsets[:-1][self.context[question]] + self.start[index]
        query = (self.query_ids, self.query.select(question))
        window = (self.contexts.ids, TokenSlices(first_token, self.length[index]))
        is_pair = np.ones(len(index), dtype=bool)
        packed = pack_pairs(query, window, is_pair, self.cls_id, self.sep_id)
        return packed, self.answer[index]

    def is_best_window(self, index: Int64) -> NDArray[np.bool_]:
        """Return True for each passage token of the windows [B] whose margin is larger here than in any other window.

        A token's margin is the number of tokens on its shorter side, plus a hundredth of the window's length; of equal
        windows the first counts. BERT's code calls this maximum context. The result has `length` values per window.
        """
        token = concatenate_ranges(self.start[index], self.length[index])
        window = np.repeat(index, self.length[index])
        first = np.searchsorted(self.question, self.question[window])
        last = np.searchsorted(self.question, self.question[window], side="right") - 1
        best: Int64 = window
        highest = np.full(len(token), -np.inf)
        for number in range(int((last - first).max(initial=-1)) + 1):
            other = np.minimum(first + number, last)
            left = token - self.start[other]
            right = self.length[other] - 1 - left
            contains_token = (left >= 0) & (right >= 0)
            margin = np.where(contains_token, np.minimum(left, right) + 0.01 * self.length[other], -np.inf)
            best = np.where(margin > highest, other, best)
            highest = np.maximum(margin, highest)
        return np.asarray(best == window)


def encode_spans(
    questions: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int, settings: SpanSettings
) -> SpanFeatures:
    """Encode windows of at most `max_seq_length` tokens; questions retain their first `max_query_length` tokens.

    Raises `ConfigError` if that leaves no room for the context.
    """
    settings.check(max_seq_length)
    slots = {text: slot for slot, text in enumerate(dict.fromkeys(question.context for question in questions))}
    contexts = _tokenize_contexts(list(slots), vocabulary)
    context = np.fromiter((slots[question.context] for question in questions), dtype=np.int64, count=len(questions))
    query_ids, whole_query = tokenize([question.question for question in questions], vocabulary)
    query = TokenSlices(whole_query.start, np.minimum(whole_query.length, settings.max_query_length))
    # Windows of each question, and then of all questions one after the other.
    room = max_seq_length - SPECIALS - query.length
    stride = np.minimum(settings.doc_stride, room)
    question, _, start, length = slide_windows(contexts.lengths[context], room, stride)
    # The answer's tokens counted from the context's first token, then from the window's [CLS].
    answer = _answer_tokens(questions, contexts, context)[question]
    is_inside = (answer[:, 0] >= start) & (answer[:, 1] < start + length)
    position = answer - (start - query.length[question] - _SEPARATORS_BEFORE_CONTEXT)[:, None]
    return SpanFeatures(
        contexts=contexts,
        context=context,
        query_ids=query_ids,
        query=query,
        question=question,
        start=start,
        length=length,
        answer=np.where(is_inside[:, None], position, 0),
        settings=settings,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        truncated=int(np.count_nonzero(whole_query.length > query.length)),
    )


def _tokenize_contexts(texts: list[str], vocabulary: Vocabulary) -> Contexts:
    """Tokenize distinct contexts with the characters of each token."""
    encoded = list(vocabulary.encode_with_offsets(texts))
    lengths = np.array([len(tokens.ids) for tokens in encoded], dtype=np.int64)
    return Contexts(
        ids=_concatenate([tokens.ids for tokens in encoded]),
        starts=_concatenate([tokens.starts for tokens in encoded]),
        ends=_concatenate([tokens.ends for tokens in encoded]),
        offsets=offsets_from_lengths(lengths),
    )


def _concatenate(arrays: Sequence[Int32]) -> Int32:
    return np.concatenate([np.empty(0, np.int32), *arrays]).astype(np.int32)


def _answer_tokens(questions: Sequence[Question], contexts: Contexts, context: Int64) -> Int64:
    """Return the first and last token of each question's first located answer, int64 [Q, 2]; -1 if there is none."""
    spans = np.full((len(questions), 2), -1, dtype=np.int64)
    for index, question in enumerate(questions):
        for answer in question.answers:
            if answer.start != NOT_FOUND:
                spans[index] = answer.span
                break
    has_answer = spans[:, 1] >= 0
    first, last = contexts.tokens_at(context, np.maximum(spans[:, 0], 0), np.maximum(spans[:, 1], 0))
    is_covered = has_answer & (first <= last)
    return np.where(is_covered[:, None], np.stack([first, last], axis=1), -1)


# ---------------------------------------------------------------- from spans of tokens to answers


class WindowSpans(NamedTuple):
    """A head's output for B windows, with K spans each.

    `window` [B] are indices of the features. `first` and `last` [B, K] are tokens, counted from [CLS]. `score` [B, K]
    is comparable between the windows of a question, and -inf if there is no span. `null` [B] grows with the odds that
    a window holds no answer.
    """

    window: Int64
    first: Int64
    last: Int64
    score: Float64
    null: Float64


@dataclass(frozen=True)
class AnswerSpans:
    """M scored spans of Q questions, grouped by question, the best first.

    `question` int64 [M]; `start` and `end` int64 [M] are characters of the original context; `probability` [M] is among
    the question's own spans; `null` [Q] grows with the odds that there is no answer.
    """

    question: Int64
    start: Int64
    end: Int64
    probability: Float64
    null: Float64

    @property
    def offsets(self) -> Int64:
        """First index of each question's spans, and the end of the last, int64 [Q + 1]."""
        return offsets_from_lengths(np.bincount(self.question, minlength=len(self.null)))


class _ScoredSpans(NamedTuple):
    """M spans in characters of their contexts, with their scores."""

    question: Int64
    start: Int64
    end: Int64
    score: Float64

    def select(self, index: Int64) -> _ScoredSpans:
        return _ScoredSpans(self.question[index], self.start[index], self.end[index], self.score[index])


def collect_spans(features: SpanFeatures, window_batches: Iterable[WindowSpans], *, relative_null: bool) -> AnswerSpans:
    """Collect the spans of all windows by question.

    A question's null odds are the lowest of its windows, because one window with the answer is enough. Under
    `relative_null` the null score is a sum of logits, so the score of the best span is subtracted; without a span the
    odds are `NULL_ODDS_WITHOUT_SPAN`. Otherwise it is a logit of its own and needs no comparison.
    """
    batches: list[_ScoredSpans] = []
    null = np.full(len(features.context), np.inf)
    for batch in window_batches:
        np.minimum.at(null, features.question[batch.window], batch.null)
        batches.append(_to_characters(features, batch))
    spans = _sort_by_score(_drop_duplicates(_ScoredSpans(*map(np.concatenate, zip(*batches, strict=True)))))
    best = np.full(len(null), -np.inf)
    np.maximum.at(best, spans.question, spans.score)
    weight = np.exp(spans.score - best[spans.question])
    total = np.bincount(spans.question, weight, minlength=len(null))
    if relative_null:
        null = np.where(np.isfinite(best), null - best, NULL_ODDS_WITHOUT_SPAN)
    return AnswerSpans(spans.question, spans.start, spans.end, weight / total[spans.question], null)


def _to_characters(features: SpanFeatures, batch: WindowSpans) -> _ScoredSpans:
    """Convert the spans of a batch of windows from tokens to characters, without spans of score -inf."""
    window, span = np.nonzero(np.isfinite(batch.score))
    index = batch.window[window]
    question = features.question[index]
    # Positions in a window count from [CLS]; positions in `contexts` from the first token of the first context.
    context_base = features.contexts.offsets[:-1][features.context[question]]
    shift = context_base + features.start[index] - features.context_start(index)
    start = features.contexts.starts[batch.first[window, span] + shift].astype(np.int64)
    end = features.contexts.ends[batch.last[window, span] + shift].astype(np.int64)
    return _ScoredSpans(question, start, end, batch.score[window, span])


def _drop_duplicates(spans: _ScoredSpans) -> _ScoredSpans:
    """Retain the best of equal spans and none without a character, in the order of question, start and end.

    Several tokens may come from the same characters (1, ⁄ and 2 from ½), or from none (a space).
    """
    in_order = spans.select(np.lexsort((-spans.score, spans.end, spans.start, spans.question)))
    positions = np.stack([in_order.question, in_order.start, in_order.end])
    is_first = (np.diff(positions, prepend=-1) != 0).any(axis=0)
    has_characters = in_order.start < in_order.end
    return in_order.select(np.flatnonzero(is_first & has_characters))


def _sort_by_score(spans: _ScoredSpans) -> _ScoredSpans:
    """Group spans by question, the best first; equal scores in the order of the text."""
    return spans.select(np.lexsort((spans.end, spans.start, -spans.score, spans.question)))


@dataclass(frozen=True)
class AnswerCandidate:
    """An answer: its text in the context, the index of its first character, and the index after its last one."""

    text: str
    start: int
    end: int
    probability: float


def iter_best_answers(
    questions: Sequence[Question], spans: AnswerSpans, n_best: int = 1
) -> Iterator[list[AnswerCandidate]]:
    """Yield the best answers of each question: at most `n_best`, of equal texts only the first, and at least one."""
    offsets = spans.offsets.tolist()
    for number, question in enumerate(questions):
        answers: dict[str, AnswerCandidate] = {}
        for index in range(offsets[number], offsets[number + 1]):
            start = int(spans.start[index])
            end = int(spans.end[index])
            text = question.context[start:end]
            if text.strip() and text not in answers:
                answers[text] = AnswerCandidate(text, start, end, float(spans.probability[index]))
                if len(answers) == n_best:
                    break
        # A context without a single token has no span.
        yield list(answers.values()) or [AnswerCandidate("", 0, 0, 0.0)]
