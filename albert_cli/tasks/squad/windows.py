"""Questions as windows of tokens, `[CLS] question [SEP] window of the context [SEP]`, and spans of tokens as text.

Every distinct context is tokenised once; windows are places in it and become tokens when a batch is drawn. Shapes:
W windows, Q questions, C contexts, P tokens of all contexts, B windows of a batch of T tokens with K spans each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import concatenate_ranges, offsets_from_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.data.pairs import SPECIALS
from albert_cli.tasks.features import Features, Int32, Int64, TokenSlices, pack_pairs, tokenize
from albert_cli.tasks.squad.data import NOT_FOUND, Question, SpanSettings
from albert_cli.tasks.squad.metrics import Float64
from albert_cli.text.vocabulary import Vocabulary

_TOKENS_BEFORE_CONTEXT = 2  # the [CLS] and the [SEP] before the context
NULL_ODDS_WITHOUT_SPAN = 1e9  # null odds where there is no span at all: beyond any threshold, yet a number in JSON


@dataclass(frozen=True)
class Contexts:
    """The tokens of C contexts: ids, and starts and ends in the context's text, int32 [P]; offsets int64 [C + 1]."""

    ids: Int32
    starts: Int32
    ends: Int32
    offsets: Int64

    @property
    def lengths(self) -> Int64:
        """Tokens of each context, int64 [C]."""
        return np.diff(self.offsets)

    def tokens_at(self, context: Int64, start: Int64, stop: Int64) -> tuple[Int64, Int64]:
        """The first and the last token that hold characters of `text[start:stop]`, counted from each context's first.

        All arguments and results int64 [N]. The last is before the first where no token holds any of them.
        """
        # Places of one context after those of another, so that one search serves all.
        span = 1 + max(int(self.ends.max(initial=0)), int(stop.max(initial=0)))
        of_token = np.repeat(np.arange(len(self.lengths)) * span, self.lengths)
        first = np.searchsorted(of_token + self.ends, context * span + start, side="right")
        last = np.searchsorted(of_token + self.starts, context * span + stop, side="left") - 1
        base = self.offsets[:-1][context]
        return first - base, last - base


@dataclass(frozen=True)
class SpanFeatures(Features):
    """W windows of Q questions.

    question int64 [W], increasing, is whose window it is; start and length int64 [W] which tokens of its context it
    shows; answer int64 [W, 2] the first and last token of the answer, counted from [CLS], 0 where the window does not
    hold it whole. context int64 [Q] is each question's context, `query` [Q] its tokens in `query_ids`. `truncated`
    counts the questions that were too long.
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
        """The token of each window [B] at which the context begins, counted from [CLS]: int64 [B]."""
        return self.query.length[self.question[index]] + _TOKENS_BEFORE_CONTEXT

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[np.int64]]:
        """The windows at `index` [B], packed, and their answers int64 [B, 2]: 0, 0 where [CLS] says there is none."""
        of = self.question[index]
        begin = self.contexts.offsets[:-1][self.context[of]] + self.start[index]
        shown = (self.contexts.ids, TokenSlices(begin, self.length[index]))
        is_pair = np.ones(len(index), dtype=bool)
        packed = pack_pairs((self.query_ids, self.query.at(of)), shown, is_pair, self.cls_id, self.sep_id)
        return packed, self.answer[index]

    def is_best_window(self, index: Int64) -> NDArray[np.bool_]:
        """Whether each context token of the windows [B] has more context around it here than in any other window.

        That is the most tokens on its poorer side, a longer window being a little better, and of equal ones the first:
        the rule that BERT's code calls maximum context. bool, `length` values a window, one window after the other.
        """
        token, window = concatenate_ranges(self.start[index], self.length[index]), np.repeat(index, self.length[index])
        first = np.searchsorted(self.question, self.question[window])
        last = np.searchsorted(self.question, self.question[window], side="right") - 1
        best: Int64 = window
        highest = np.full(len(token), -np.inf)
        for number in range(int((last - first).max(initial=-1)) + 1):
            other = np.minimum(first + number, last)
            left = token - self.start[other]
            right = self.length[other] - 1 - left
            context = np.where((left >= 0) & (right >= 0), np.minimum(left, right) + 0.01 * self.length[other], -np.inf)
            best = np.where(context > highest, other, best)
            highest = np.maximum(context, highest)
        return np.asarray(best == window)


def encode_spans(
    questions: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int, settings: SpanSettings
) -> SpanFeatures:
    """Windows of at most `max_seq_length` tokens; questions keep their first `max_query_length` tokens.

    Raises `ConfigError` where that leaves no room for the context.
    """
    settings.check(max_seq_length)
    slots = {text: slot for slot, text in enumerate(dict.fromkeys(q.context for q in questions))}
    encoded = list(vocabulary.encode_with_offsets(list(slots)))
    nothing = np.empty(0, np.int32)
    contexts = Contexts(
        ids=np.concatenate([nothing, *(text.ids for text in encoded)]),
        starts=np.concatenate([nothing, *(text.starts for text in encoded)]),
        ends=np.concatenate([nothing, *(text.ends for text in encoded)]),
        offsets=offsets_from_lengths(np.array([len(text.ids) for text in encoded], dtype=np.int64)),
    )
    context = np.fromiter((slots[q.context] for q in questions), dtype=np.int64, count=len(questions))
    query_ids, whole = tokenize([q.question for q in questions], vocabulary)
    query = np.minimum(whole.length, settings.max_query_length)

    room = max_seq_length - SPECIALS - query
    stride = np.minimum(settings.doc_stride, room)
    tokens = contexts.lengths[context]
    windows = 1 + np.maximum(0, -(-(tokens - room) // stride))
    question = np.repeat(np.arange(len(questions)), windows)
    start = concatenate_ranges(np.zeros_like(windows), windows) * stride[question]
    length = np.minimum(tokens[question] - start, room[question])
    answers = [next((a for a in q.answers if a.start != NOT_FOUND), None) for q in questions]
    places = np.array([a.place if a else (0, 0) for a in answers], dtype=np.int64).reshape(-1, 2)
    first, last = contexts.tokens_at(context, places[:, 0], places[:, 1])
    is_there = np.array([a is not None for a in answers], dtype=bool) & (first <= last)
    answer = np.where(is_there[:, None], np.stack([first, last], axis=1), -1)
    inside = (answer[question, 0] >= start) & (answer[question, 1] < start + length)
    placed = answer[question] - (start - query[question] - _TOKENS_BEFORE_CONTEXT)[:, None]
    return SpanFeatures(
        contexts, context, query_ids, TokenSlices(whole.start, query), question, start, length,
        np.where(inside[:, None], placed, 0), settings,
        vocabulary.cls_id, vocabulary.sep_id, int(np.count_nonzero(whole.length > query)),
    )  # fmt: skip


# ---------------------------------------------------------------- the way back


class WindowSpans(NamedTuple):
    """A head's output for B windows, K spans of each.

    window [B]: places in the features. first, last [B, K]: tokens, counted from [CLS]. score [B, K] may be compared
    between the windows of a question, and is -inf where there is no span. null [B] grows with the odds that a window
    holds no answer.
    """

    window: Int64
    first: Int64
    last: Int64
    score: Float64
    null: Float64


@dataclass(frozen=True)
class AnswerSpans:
    """M scored spans of Q questions, those of a question together and the best first.

    question int64 [M]; start and end int64 [M], characters of the context as written; probability [M] among the
    question's own spans; null [Q] grows with the odds that there is no answer.
    """

    question: Int64
    start: Int64
    end: Int64
    probability: Float64
    null: Float64

    @property
    def offsets(self) -> Int64:
        """Where each question's spans begin and end, int64 [Q + 1]."""
        return offsets_from_lengths(np.bincount(self.question, minlength=len(self.null)))


def collect_spans(features: SpanFeatures, parts: Iterable[WindowSpans], *, relative_null: bool) -> AnswerSpans:
    """The spans of all windows by question.

    A question's null odds are the least of its windows', since one that holds the answer is enough; under
    `relative_null` the score of its best span is taken off, as both are sums of logits (and not of log-probabilities);
    without one they are `NOTHING_THERE`.

    Several tokens may stand for the same characters (½ is 1, ⁄ and 2), or for none at all (a space): of equal spans
    the best is taken, and none without a character.
    """
    columns: list[tuple[NDArray[Any], ...]] = []
    null = np.full(len(features.context), np.inf)
    for index, first, last, score_of, null_of in parts:
        of = features.question[index]
        np.minimum.at(null, of, null_of)
        shift = features.start[index] - features.context_start(index)
        window, kept = np.nonzero(np.isfinite(score_of))
        base = features.contexts.offsets[:-1][features.context[of]] + shift
        start = features.contexts.starts[first[window, kept] + base[window]].astype(np.int64)
        end = features.contexts.ends[last[window, kept] + base[window]].astype(np.int64)
        columns.append((of[window], start, end, score_of[window, kept]))
    question, start, end, scores = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.lexsort((-scores, end, start, question))
    places = np.stack([question, start, end])[:, order]
    is_new = (np.diff(places, prepend=-1) != 0).any(axis=0)
    order = order[is_new & (places[1] < places[2])]
    order = order[np.lexsort((end[order], start[order], -scores[order], question[order]))]
    question, start, end, scores = (column[order] for column in (question, start, end, scores))
    best = np.full(len(null), -np.inf)
    np.maximum.at(best, question, scores)
    weights = np.exp(scores - best[question])
    total = np.bincount(question, weights, minlength=len(null))
    if relative_null:
        null = np.where(np.isfinite(best), null - best, NULL_ODDS_WITHOUT_SPAN)
    return AnswerSpans(question, start, end, weights / total[question], null)


@dataclass(frozen=True)
class AnswerCandidate:
    """An answer: its text as the context has it, the place of its first character and of the one after its last."""

    text: str
    start: int
    end: int
    probability: float


def iter_best_answers(
    questions: Sequence[Question], spans: AnswerSpans, n_best: int = 1
) -> Iterator[list[AnswerCandidate]]:
    """The best answers of each question, at most `n_best`, of equal texts only the first; never none."""
    offsets = spans.offsets.tolist()
    for number, question in enumerate(questions):
        found: dict[str, AnswerCandidate] = {}
        for i in range(offsets[number], offsets[number + 1]):
            start, end = int(spans.start[i]), int(spans.end[i])
            text = question.context[start:end]
            if text.strip() and text not in found:
                found[text] = AnswerCandidate(text, start, end, float(spans.probability[i]))
                if len(found) == n_best:
                    break
        # A context without a single token has none.
        yield list(found.values()) or [AnswerCandidate("", 0, 0, 0.0)]
