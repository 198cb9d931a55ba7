"""Score minimal pairs: two sentences that differ in one grammatical detail, only one of which is acceptable.

`read_minimal_pairs` reads a file of pairs, and `score_minimal_pairs` returns the fraction of pairs whose acceptable
sentence a model prefers. A model prefers the sentence with the higher pseudo-log-likelihood: the sum of the
log-probabilities of its tokens, each computed with only this token masked (Salazar et al., 2020, arXiv 1910.14659). A
file of pairs has the layout of BLiMP (Warstadt et al., 2020, arXiv 1912.00582); its sentences may be in any language.
"""

from __future__ import annotations

import codecs
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from albert_cli import console
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import InputError
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS, JackknifeEstimate, jackknife_mean
from albert_cli.formatting import count_of
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.text.vocabulary import Vocabulary

_MICRO_BATCH: Final = 64  # sentences with one masked token each


class MinimalPair(BaseModel):
    """A line of a file of minimal pairs, with the keys of BLiMP; other keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    sentence_good: str = Field(min_length=1)
    sentence_bad: str = Field(min_length=1)
    linguistics_term: str | None = None
    uid: str | None = Field(default=None, alias="UID")
    where: str = Field(default="", alias="(file and line)")  # an alias, because a file may have a key `where`
    """The file and the line of the pair, for messages; `read_minimal_pairs` sets it."""

    @property
    def phenomenon(self) -> str:
        """The name of the grammatical phenomenon; "all" if the line names none."""
        return self.linguistics_term or self.uid or "all"


@dataclass(frozen=True)
class PairScore:
    """The fraction of pairs whose acceptable sentence is preferred, with its standard error."""

    accuracy: float
    standard_error: float
    pairs: int


@dataclass(frozen=True)
class MinimalPairScores:
    """The scores of all pairs, and of the pairs of each phenomenon.

    `accuracy` and `preference` are jackknife estimates over all pairs, whose groups are the same pairs for all models.
    An experiment needs them for the error of the difference between two models. The preference for an acceptable
    sentence is p / (p + q), where p and q are the pseudo-likelihoods of the acceptable and the other sentence. Its mean
    is 0.5 by chance, as the accuracy is, but has a smaller sampling error, because a pair counts by degrees.
    `same_tokens` is the number of pairs whose two sentences have the same tokens: no score includes them.
    """

    total: PairScore
    phenomena: Mapping[str, PairScore]
    accuracy: JackknifeEstimate
    preference: JackknifeEstimate
    same_tokens: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the scores for `--json`."""
        phenomena = {name: asdict(score) for name, score in self.phenomena.items()}
        return {**asdict(self.total), "same_tokens": self.same_tokens, "phenomena": phenomena}


def read_minimal_pairs(path: Path) -> list[MinimalPair]:
    """Read a JSON Lines file of pairs; raise `InputError` for a missing or empty file and for an invalid line."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder", f"join its files: cat {path}/*.jsonl > pairs.jsonl")
    if not path.is_file():
        raise InputError(f"{path}: no such file", "name a JSON Lines file with sentence_good and sentence_bad")
    pairs = []
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                pair = MinimalPair.model_validate_json(line)
                pairs.append(pair.model_copy(update={"where": f"{path}, line {number}"}))
            except ValidationError as error:
                first = error.errors()[0]
                key = ".".join(map(str, first["loc"])) or "line"
                hint = "each line is an object with the texts sentence_good and sentence_bad"
                raise InputError(f"{path}, line {number}: {key}: {first['msg']}", hint) from None
    if not pairs:
        raise InputError(f"{path}: no pairs", "write one JSON object per line")
    return pairs


def score_minimal_pairs(
    model: PretrainingModel, vocabulary: Vocabulary, pairs: Sequence[MinimalPair], device: torch.device
) -> MinimalPairScores:
    """Score pairs with the masked-language head of a model.

    A pair whose sentences have the same tokens is left out, because a model cannot tell them apart. Raises `InputError`
    if all pairs are left out, or if a sentence is empty or too long.
    """
    has_different_tokens = _have_different_tokens(model, vocabulary, pairs)
    groups = np.flatnonzero(has_different_tokens) % JACKKNIFE_GROUPS  # the group of each pair that is scored
    same_tokens = len(pairs) - len(groups)
    if not len(groups):
        hint = "use a vocabulary that tells the sentences apart, or other pairs"
        raise InputError("minimal pairs: the two sentences of every pair have the same tokens", hint)
    if same_tokens:
        total = count_of(len(pairs), "minimal pair")
        console.warn(f"left out {same_tokens:,} of {total}, because both sentences have the same tokens")
    pairs = [pair for pair, is_scored in zip(pairs, has_different_tokens, strict=True) if is_scored]
    sentences = [sentence for pair in pairs for sentence in (pair.sentence_good, pair.sentence_bad)]
    likelihoods = pseudo_log_likelihoods(model, vocabulary, sentences, device)
    margins = likelihoods[0::2] - likelihoods[1::2]  # acceptable and unacceptable sentences alternate
    is_correct = margins > 0
    phenomena = np.array([pair.phenomenon for pair in pairs])
    scores = {str(name): _summarize(is_correct[phenomena == name]) for name in dict.fromkeys(phenomena.tolist())}
    preferences = np.exp(-np.logaddexp(0, -margins))  # p / (p + q) = 1 / (1 + exp(log q - log p)), without overflow
    return MinimalPairScores(
        _summarize(is_correct),
        scores,
        _jackknife_pairs(is_correct, groups),
        _jackknife_pairs(preferences, groups),
        same_tokens,
    )


def _have_different_tokens(
    model: PretrainingModel, vocabulary: Vocabulary, pairs: Sequence[MinimalPair]
) -> NDArray[np.bool_]:
    """Return for each pair if its two sentences have different tokens, bool [pairs].

    Raises `InputError` for a sentence that is empty or too long.
    """
    max_tokens = model.config.max_position_embeddings - 2  # without [CLS] and [SEP]
    sentences = [(sentence, pair.where) for pair in pairs for sentence in (pair.sentence_good, pair.sentence_bad)]
    sequences = [list(ids) for ids in vocabulary.encode_batch([sentence for sentence, _ in sentences])]
    for (sentence, where), ids in zip(sentences, sequences, strict=True):
        if not 0 < len(ids) <= max_tokens:
            problem = f"{len(ids)} tokens, and the model has positions for 1 to {max_tokens}"
            raise InputError(f"{where}: {sentence[:40]!r}…: {problem}", "remove this pair")
    return np.array([good != bad for good, bad in zip(sequences[0::2], sequences[1::2], strict=True)])


def _jackknife_pairs(values: NDArray[np.generic], groups: NDArray[np.int64]) -> JackknifeEstimate:
    """Return the jackknife estimate of the mean of `values` [pairs]; `groups` [pairs] has the group of each pair."""
    sums = np.bincount(groups, weights=values, minlength=JACKKNIFE_GROUPS)
    return jackknife_mean(sums, np.bincount(groups, minlength=JACKKNIFE_GROUPS))


@torch.inference_mode()
def pseudo_log_likelihoods(
    model: PretrainingModel, vocabulary: Vocabulary, sentences: Sequence[str], device: torch.device
) -> NDArray[np.float64]:
    """Return the pseudo-log-likelihood of each sentence in nats, float64 [sentences].

    The model must have a position for each token of a sentence, and for [CLS] and [SEP].
    """
    likelihoods = np.zeros(len(sentences))
    copies = _iter_copies(vocabulary, sentences)
    while batch := list(itertools.islice(copies, _MICRO_BATCH)):
        packed = _mask_and_pack(batch, vocabulary)
        logits = model(pack(packed, device, packed.masked_index)).masked.float()
        labels = torch.from_numpy(packed.masked_labels).long().to(device)
        log_probabilities = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0].double().cpu().numpy()
        # Unlike `likelihoods[index] += …`, this adds all copies of a sentence.
        np.add.at(likelihoods, [copy.sentence for copy in batch], log_probabilities)
    return likelihoods


@dataclass(frozen=True)
class _SentenceCopy:
    """A copy of a sentence, and the position of the token that is masked in this copy."""

    sentence: int  # the index of the sentence
    ids: Sequence[int]  # its tokens with [CLS] and [SEP]
    masked_position: int


def _iter_copies(vocabulary: Vocabulary, sentences: Sequence[str]) -> Iterator[_SentenceCopy]:
    """Yield one copy for each token of each sentence.

    Shorter sentences come first: sequences of equal length need no padding.
    """
    sequences = [[vocabulary.cls_id, *ids, vocabulary.sep_id] for ids in vocabulary.encode_batch(sentences)]
    for index in sorted(range(len(sequences)), key=lambda index: len(sequences[index])):
        sequence = sequences[index]
        yield from (_SentenceCopy(index, sequence, position) for position in range(1, len(sequence) - 1))


def _mask_and_pack(copies: Sequence[_SentenceCopy], vocabulary: Vocabulary) -> PackedBatch:
    """Return a batch of the copies with one token masked in each, the masked ids as labels, and no sentence order."""
    lengths = [len(copy.ids) for copy in copies]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.concatenate([copy.ids for copy in copies]).astype(np.int32)
    positions = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    masked_index = (offsets[:-1] + [copy.masked_position for copy in copies]).astype(np.int32)
    labels = ids[masked_index]
    ids[masked_index] = vocabulary.mask_id
    segments = np.zeros_like(ids)
    no_order_labels = np.full(len(copies), -1, np.int32)
    return PackedBatch(ids, segments, positions, offsets, masked_index, labels, no_order_labels)


def _summarize(is_correct: NDArray[np.bool_]) -> PairScore:
    """Return the accuracy with its binomial standard error."""
    accuracy = float(is_correct.mean())
    standard_error = math.sqrt(accuracy * (1 - accuracy) / len(is_correct))
    return PairScore(round(accuracy, 6), round(standard_error, 6), len(is_correct))


def format_minimal_pairs(scores: MinimalPairScores) -> str:
    """Format scores as a table with a row for each phenomenon and one for all pairs."""
    rows = [
        (name, f"{score.pairs:,}", f"{score.accuracy:.1%}", f"{score.standard_error:.1%}")
        for name, score in [*scores.phenomena.items(), ("all pairs", scores.total)]
    ]
    return console.format_table(("minimal pairs", "pairs", "accuracy", "s.e."), rows)
