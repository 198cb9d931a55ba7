"""Encode questions as windows, `[CLS] question [SEP] window of the context [SEP]`, and map token spans to answers.

Every distinct context is tokenized once. A window is a range of a context's tokens, from which a sequence is assembled
when a batch is made. Shapes: W windows, Q questions, C contexts, P tokens of all contexts, B windows of a batch with K
spans each, M spans of all questions.
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
from albert_cli.tasks.features import (
    Features,
    Int32,
    Int64,
    TokenizedTexts,
    TokenSlices,
    pack_pairs,
    slide_windows,
    tokenize,
    tokenize_with_offsets,
)
from albert_cli.tasks.squad.data import NOT_FOUND, Question
from albert_cli.tasks.squad.metrics import Float64
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.text.vocabulary import Vocabulary

_SPECIALS_BEFORE_CONTEXT = 2  # [CLS], and the [SEP] after the question
NULL_SCORE_WITHOUT_SPAN = 1e9  # above any threshold, but finite, because JSON has no infinity


@dataclass(frozen=True)
class SpanFeatures(Features):
    """W windows of Q questions.

    Questions and their contexts:
    * `contexts` are the C distinct contexts.
    * `context_of_question` int64 [Q] is the index of each question's context in `contexts`.
    * `query_ids` int32 are the tokens of all questions. `query_slices` has the slice of each question in them.
    * `truncated` counts the questions of more than `settings.max_query_length` tokens.

    Windows, grouped by question:
    * `question_of_window` int64 [W] is the index of each window's question, ascending.
    * `context_offset` int64 [W] is the index of each window's first context token, counted from the context's first
      token.
    * `context_length` int64 [W] is the number of context tokens in each window.
    * `answer` int64 [W, 2] are the positions of the answer's first and last token, counted from [CLS]; both are 0 if
      the window does not contain the whole answer.
    """

    contexts: TokenizedTexts
    context_of_question: Int64
    query_ids: Int32
    query_slices: TokenSlices
    question_of_window: Int64
    context_offset: Int64
    context_length: Int64
    answer: Int64
    settings: SpanSettings
    cls_id: int
    sep_id: int
    truncated: int

    @property
    def lengths(self) -> Int64:
        return self.context_length + self.query_slices.length[self.question_of_window] + SPECIALS

    def context_start_in_sequence(self, index: Int64) -> Int64:
        """Return the position of the first context token in each window [B], counted from [CLS]: int64 [B]."""
        return self.query_slices.length[self.question_of_window[index]] + _SPECIALS_BEFORE_CONTEXT

    def window_start_in_contexts(self, index: Int64) -> Int64:
        """Return the index of each window's first context token in the tokens of all contexts [P]: int64 [B]."""
        context = self.context_of_question[self.question_of_window[index]]
        return self.contexts.offsets[context] + self.context_offset[index]

    def characters_at(self, index: Int64, first: Int64, last: Int64) -> tuple[Int64, Int64]:
        """Return the first and the end character of B spans of tokens in their contexts, int64 [B] each.

        `index` are the windows of the spans, `first` and `last` their tokens, counted from [CLS]; all are int64 [B].
        """
        # From a position in the window's sequence to the index in the tokens of all contexts.
        shift = self.window_start_in_contexts(index) - self.context_start_in_sequence(index)
        return self.contexts.starts[first + shift].astype(np.int64), self.contexts.ends[last + shift].astype(np.int64)

    @property
    def gold_spans(self) -> Int64:
        """The distinct gold answers as first and end characters of their contexts, int64 [distinct, 2]."""
        index = np.flatnonzero(self.answer.any(axis=1))  # of the windows with an answer
        spans = self.characters_at(index, self.answer[index, 0], self.answer[index, 1])
        return np.unique(np.stack(spans, axis=1), axis=0)

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[np.int64]]:
        """Pack the windows at `index` [B]; return the batch and the windows' answers, int64 [B, 2]."""
        query = (self.query_ids, self.query_slices.select(self.question_of_window[index]))
        window = (self.contexts.ids, TokenSlices(self.window_start_in_contexts(index), self.context_length[index]))
        is_pair = np.ones(len(index), dtype=bool)
        packed = pack_pairs(query, window, is_pair, self.cls_id, self.sep_id)
        return packed, self.answer[index]

    def has_most_context(self, index: Int64) -> NDArray[np.bool_]:
        """Return for each context token of the windows at `index` [B] whether no other window gives it more context.

        A window's score for a token is the number of context tokens to the token's left or right, whichever is less,
        plus a hundredth of the window's length. Of windows with equal scores the first is the best. BERT's code calls
        this rule "max context". The result has `context_length` bools for each window, one window after the other.
        """
        # All arrays have an item for each context token of the windows at `index`.
        token = concatenate_ranges(self.context_offset[index], self.context_length[index])
        window = np.repeat(index, self.context_length[index])
        first_window = np.searchsorted(self.question_of_window, self.question_of_window[window])  # of the same question
        last_window = np.searchsorted(self.question_of_window, self.question_of_window[window], side="right") - 1
        best_window: Int64 = window
        best_score = np.full(len(token), -np.inf)
        max_windows = 1 + int((last_window - first_window).max(initial=-1))  # of a question
        for number in range(max_windows):
            # Score each token in window `number` of its question. A question with fewer windows repeats its last one.
            other = np.minimum(first_window + number, last_window)
            left = token - self.context_offset[other]
            right = self.context_length[other] - 1 - left
            contains_token = (left >= 0) & (right >= 0)
            score = np.where(contains_token, np.minimum(left, right) + 0.01 * self.context_length[other], -np.inf)
            best_window = np.where(score > best_score, other, best_window)
            best_score = np.maximum(score, best_score)
        return np.asarray(best_window == window)


def encode_spans(
    questions: Sequence[Question], vocabulary: Vocabulary, max_seq_length: int, settings: SpanSettings
) -> SpanFeatures:
    """Encode windows of at most `max_seq_length` tokens; questions keep their first `max_query_length` tokens.

    Raises `ConfigError` if the longest question leaves no room for the context.
    """
    settings.check(max_seq_length)
    texts = list(dict.fromkeys(question.context for question in questions))
    index_of_text = {text: index for index, text in enumerate(texts)}
    contexts = tokenize_with_offsets(texts, vocabulary)
    context_of_question = np.array([index_of_text[question.context] for question in questions], dtype=np.int64)
    query_ids, whole_query = tokenize([q.question for q in questions], vocabulary)
    query_slices = TokenSlices(whole_query.start, np.minimum(whole_query.length, settings.max_query_length))
    max_context_tokens = max_seq_length - SPECIALS - query_slices.length
    stride = np.minimum(settings.doc_stride, max_context_tokens)
    question_of_window, context_start_W, length_W = slide_windows(
        contexts.lengths[context_of_question], max_context_tokens, stride
    )
    # An answer's tokens are counted from the context's first token, their positions in a window from [CLS]. A
    # missing answer has the tokens -1, which no window contains.
    answer_Q2 = _answer_tokens(questions, contexts, context_of_question)
    answer_W2 = answer_Q2[question_of_window]
    is_inside_W = (answer_W2[:, 0] >= context_start_W) & (answer_W2[:, 1] < context_start_W + length_W)
    query_length_W = query_slices.length[question_of_window]
    position_W2 = answer_W2 - context_start_W[:, None] + query_length_W[:, None] + _SPECIALS_BEFORE_CONTEXT
    return SpanFeatures(
        contexts=contexts,
        context_of_question=context_of_question,
        query_ids=query_ids,
        query_slices=query_slices,
        question_of_window=question_of_window,
        context_offset=context_start_W,
        context_length=length_W,
        answer=np.where(is_inside_W[:, None], position_W2, 0),
        settings=settings,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        truncated=int(np.count_nonzero(whole_query.length > query_slices.length)),
    )


def _answer_tokens(questions: Sequence[Question], contexts: TokenizedTexts, context: Int64) -> Int64:
    """Return the first and the last token of each question's first answer with a start, int64 [Q, 2].

    Tokens are counted from the context's first token. Both are -1 if there is no such answer, or if it has no token.
    """
    has_answer = np.zeros(len(questions), dtype=bool)
    spans = np.zeros((len(questions), 2), dtype=np.int64)  # in characters
    for index, question in enumerate(questions):
        answer = next((answer for answer in question.answers if answer.start != NOT_FOUND), None)
        if answer is not None:
            has_answer[index] = True
            spans[index] = answer.span
    first, last = contexts.tokens_at(context, spans[:, 0], spans[:, 1])
    has_tokens = has_answer & (first <= last)
    return np.where(has_tokens[:, None], np.stack([first, last], axis=1), -1)


# ---------------------------------------------------------------- from spans of tokens to answers


class WindowSpans(NamedTuple):
    """The K best spans of B windows, as a head scores them.

    * `window` [B] are the indices of the windows in the features.
    * `first` and `last` [B, K] are each span's first and last token, counted from [CLS].
    * `score` [B, K] is comparable between the windows of a question. It is -inf for the padding of windows with fewer
      than K spans.
    * `null_score` [B] grows with the odds that a window has no answer.
    """

    window: Int64
    first: Int64
    last: Int64
    score: Float64
    null_score: Float64


@dataclass(frozen=True)
class AnswerSpans:
    """M spans of Q questions with their probabilities, grouped by question, the most probable first.

    * `question` int64 [M] is each span's question.
    * `start` and `end` int64 [M]: each span has the characters [start, end) of its context.
    * `probability` [M] of the spans of a question adds up to 1.
    * `null_score` [Q] grows with the odds that a question has no answer.
    """

    question: Int64
    start: Int64
    end: Int64
    probability: Float64
    null_score: Float64

    @property
    def offsets(self) -> Int64:
        """The index of each question's first span, and the end of the last span, int64 [Q + 1]."""
        return offsets_from_lengths(np.bincount(self.question, minlength=len(self.null_score)))


class _ScoredSpans(NamedTuple):
    """M spans in characters of their contexts, with their scores."""

    question: Int64
    start: Int64
    end: Int64
    score: Float64

    def select(self, index: Int64) -> _ScoredSpans:
        """Return the spans at `index`."""
        return _ScoredSpans(self.question[index], self.start[index], self.end[index], self.score[index])


def collect_spans(features: SpanFeatures, window_batches: Iterable[WindowSpans], *, relative_null: bool) -> AnswerSpans:
    """Collect the spans of all windows by question; a span's probability is the softmax over its question's spans.

    A question's null score is the lowest of its windows, because one window with the answer is enough. With
    `relative_null` the score of the question's best span is subtracted, and the null score of a question without spans
    is `NULL_SCORE_WITHOUT_SPAN`. This is for the linear head, whose null scores and span scores are both sums of two
    logits.
    """
    batches: list[_ScoredSpans] = []
    null_score = np.full(len(features.context_of_question), np.inf)
    for window_spans in window_batches:
        np.minimum.at(null_score, features.question_of_window[window_spans.window], window_spans.null_score)
        batches.append(_to_characters(features, window_spans))
    all_spans = _ScoredSpans(
        question=np.concatenate([batch.question for batch in batches]),
        start=np.concatenate([batch.start for batch in batches]),
        end=np.concatenate([batch.end for batch in batches]),
        score=np.concatenate([batch.score for batch in batches]),
    )
    spans = _drop_duplicates(all_spans)
    # Grouped by question, the best spans first; spans with equal scores are in the order of the text.
    spans = spans.select(np.lexsort((spans.end, spans.start, -spans.score, spans.question)))
    best_score = np.full(len(null_score), -np.inf)
    np.maximum.at(best_score, spans.question, spans.score)
    weight = np.exp(spans.score - best_score[spans.question])
    total_weight = np.bincount(spans.question, weight, minlength=len(null_score))
    probability = weight / total_weight[spans.question]
    if relative_null:
        null_score = np.where(np.isfinite(best_score), null_score - best_score, NULL_SCORE_WITHOUT_SPAN)
    return AnswerSpans(spans.question, spans.start, spans.end, probability, null_score)


def _to_characters(features: SpanFeatures, batch: WindowSpans) -> _ScoredSpans:
    """Convert the spans of a batch of windows from tokens to characters, and drop the padding."""
    row, column = np.nonzero(np.isfinite(batch.score))
    window = batch.window[row]
    start, end = features.characters_at(window, batch.first[row, column], batch.last[row, column])
    return _ScoredSpans(features.question_of_window[window], start, end, batch.score[row, column])


def _drop_duplicates(spans: _ScoredSpans) -> _ScoredSpans:
    """Return each span of characters once, with its best score, and drop spans without a character.

    Different spans of tokens may have the same characters, because several tokens may come from one character (1, ⁄ and
    2 from ½), or a token from no character (a space). The result is sorted by question, start and end.
    """
    in_order = spans.select(np.lexsort((-spans.score, spans.end, spans.start, spans.question)))
    positions = np.stack([in_order.question, in_order.start, in_order.end])
    is_first = (np.diff(positions, prepend=-1) != 0).any(axis=0)  # differs from the span before it
    has_characters = in_order.start < in_order.end
    return in_order.select(np.flatnonzero(is_first & has_characters))


@dataclass(frozen=True)
class AnswerCandidate:
    """An answer: its text, which has the characters [start, end) of the context, and its probability."""

    text: str
    start: int
    end: int
    probability: float


def iter_best_answers(
    questions: Sequence[Question], spans: AnswerSpans, n_best: int = 1
) -> Iterator[list[AnswerCandidate]]:
    """Yield the `n_best` most probable answers of each question, fewer if it has fewer spans with different texts.

    A question without any span, for example because its context has no token, has one empty answer with probability 0.
    """
    offsets = spans.offsets.tolist()
    for question, first_span, end_span in zip(questions, offsets[:-1], offsets[1:], strict=True):
        answers: dict[str, AnswerCandidate] = {}
        for index in range(first_span, end_span):
            start = int(spans.start[index])
            end = int(spans.end[index])
            text = question.context[start:end]
            if text.strip() and text not in answers:
                answers[text] = AnswerCandidate(text, start, end, float(spans.probability[index]))
                if len(answers) == n_best:
                    break
        if not answers:
            answers[""] = AnswerCandidate("", 0, 0, 0.0)
        yield list(answers.values())
