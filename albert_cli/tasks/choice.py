"""Questions with a choice of answers: `[CLS] passage [SEP] question and option [SEP]`, a sequence for each option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.tasks.encode import Int64, Pieces, Tokenizer, by_length, offsets_of, packed_batch, ranges, step_index
from albert_cli.tasks.task import ChoiceExample

# Of question and option the last pieces are kept, as in the reference: what comes last is the option.
MAX_QUESTION = 128
_SPECIAL = 3


@dataclass(frozen=True)
class ChoiceFeatures:
    """N encoded questions of C options each; a passage is kept once and becomes tokens when a batch is drawn.

    `passage_length`, `answer_length` int64 [N * C]: pieces kept of each; `labels` int64 [N], None where hidden;
    `truncated` counts the questions of which something was cut.
    """

    pieces: Pieces
    choices: int
    passage_length: Int64
    answer_length: Int64
    labels: NDArray[np.int64] | None
    truncated: int
    cls_id: int
    sep_id: int

    def __len__(self) -> int:
        return len(self.answer_length) // self.choices

    @property
    def lengths(self) -> Int64:
        """Tokens of each question's longest sequence, int64 [N]."""
        sequences = self.passage_length + self.answer_length + _SPECIAL
        return np.asarray(sequences.reshape(-1, self.choices).max(axis=1, initial=0))

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[np.int64] | None]:
        """The questions at `index` [B] as B * C packed sequences, options in order, and their labels [B]."""
        sequences = (index[:, None] * self.choices + np.arange(self.choices)).ravel()
        kept_passage, kept_answer = self.passage_length[sequences], self.answer_length[sequences]
        lengths = kept_passage + kept_answer + _SPECIAL
        offsets = offsets_of(lengths)
        starts = offsets[:-1]
        ids = np.full(int(offsets[-1]), self.sep_id, dtype=np.int32)
        segment_ids = np.zeros_like(ids)
        ids[starts] = self.cls_id
        ids[ranges(starts + 1, kept_passage)] = self.pieces.first(sequences // self.choices, kept_passage)
        start_answer = starts + 2 + kept_passage
        ids[ranges(start_answer, kept_answer)] = self.pieces.last(len(self) + sequences, kept_answer)
        segment_ids[ranges(start_answer, kept_answer + 1)] = 1
        packed = packed_batch(ids, segment_ids, offsets)
        return packed, None if self.labels is None else self.labels[index]

    def batch_index(self, seed: int, step: int, batch_size: int) -> Int64:
        """The questions of a training step, int64 [batch_size], a function of (seed, step)."""
        return step_index(len(self), seed, step, batch_size)

    def eval_batches(self, max_tokens: int) -> Iterator[Int64]:
        """Index arrays that hold every question exactly once, grouped by length, the longest first."""
        return by_length(self.lengths * self.choices, max_tokens)


def encode(examples: Sequence[ChoiceExample], vocabulary: Tokenizer, max_seq_length: int) -> ChoiceFeatures:
    """Encode questions that have one number of options; every distinct text is tokenised once.

    Question and option keep their last 128 pieces (and at most half of a shorter limit), the passage what room is
    left, from its beginning. Raises `ConfigError` where the limit leaves no token of either.
    """
    if max_seq_length < _SPECIAL + 2:
        raise ConfigError(f"data.max_seq_length = {max_seq_length} leaves no room for two texts", "5 or more")
    choices = len(examples[0].options) if examples else 1
    assert all(len(e.options) == choices for e in examples), "a task has one number of options"
    pieces = Pieces([e.passage for e in examples] + [text for e in examples for text in e.answers], vocabulary)
    passage = np.repeat(pieces.lengths[: len(examples)], choices)
    answer = pieces.lengths[len(examples) :]
    room = max_seq_length - _SPECIAL
    kept_answer = np.minimum(answer, min(MAX_QUESTION, (room + 1) // 2))
    kept_passage = np.minimum(passage, room - kept_answer)
    is_cut = ((kept_passage < passage) | (kept_answer < answer)).reshape(-1, choices).any(axis=1)
    labels = [e.label for e in examples]
    return ChoiceFeatures(
        pieces,
        choices,
        kept_passage,
        kept_answer,
        None if None in labels else np.array(labels, dtype=np.int64),
        int(np.count_nonzero(is_cut)),
        vocabulary.cls_id,
        vocabulary.sep_id,
    )
