"""Measure a vocabulary on a text: the characters that it covers, and the tokens into which it splits words.

The vocabulary is also pruned to its best tokens, and measured again. The statistics are a part of `vocabulary.json`.
The names of their fields call a token a piece, as SentencePiece does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from albert_cli import console
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.unigram import prune_vocabulary

_MIN_MEASURED_SENTENCES = 20_000  # the error of the tokens per word is then about 0.2 %
_PRUNED_FRACTIONS = (1, 1 / 2, 1 / 4)  # fractions of the vocabulary's size; 1 is for comparison
_MAX_LISTED = 10  # tokens or characters in each list of examples


@dataclass(frozen=True)
class TokenRates:
    """Tokens relative to the words, characters and UTF-8 bytes of a text, and the fraction of unknown tokens.

    Words are separated by white space, so `pieces_per_word` means little for scripts without spaces.
    """

    pieces_per_word: float
    characters_per_piece: float
    bytes_per_piece: float
    unknown_rate: float


@dataclass(frozen=True)
class PrunedRates(TokenRates):
    """The rates of the vocabulary pruned to `size` tokens."""

    size: int


@dataclass(frozen=True)
class TokenStatistics(TokenRates):
    """Measurements of a vocabulary on `measured_on` sentences.

    * `character_coverage` is the fraction of the text's characters, without spaces, that have a token. A character
      counts as often as it occurs.
    * `distinct_characters` is the number of different characters in the text, `characters_without_piece` the number of
      those that have no token, and `most_frequent_without_piece` lists the most frequent.
    * `pruned` has the rates of smaller vocabularies.
    """

    measured_on: int
    character_coverage: float
    distinct_characters: int
    characters_without_piece: int
    most_frequent_without_piece: list[str]
    longest_pieces: list[str]
    most_frequent_pieces: list[str]
    pruned: list[PrunedRates]


def measure_tokens(vocabulary: SentencePieceVocabulary, sentences: Sequence[str]) -> TokenStatistics:
    """Measure a vocabulary on cleaned sentences; the result is unbiased if the vocabulary was not trained on them."""
    # All sentences if there are fewer than twice the minimum; else evenly spaced ones, at least the minimum and fewer
    # than twice as many.
    measured = sentences[:: max(1, len(sentences) // _MIN_MEASURED_SENTENCES)]
    normalized = [vocabulary.normalize(sentence) for sentence in measured]
    pieces = set(vocabulary.pieces)
    character_counts = Counter("".join(normalized).replace(" ", ""))
    uncovered_counts = Counter({c: count for c, count in character_counts.items() if c not in pieces})
    token_ids = vocabulary.encode_batch(measured)
    id_counts = Counter(index for row in token_ids for index in row)
    ordinary = [vocabulary.pieces[index] for index in vocabulary.ordinary_ids]
    return TokenStatistics(
        **vars(_measure_rates(normalized, token_ids, vocabulary.unk_id)),
        measured_on=len(measured),
        character_coverage=1 - uncovered_counts.total() / max(character_counts.total(), 1),
        distinct_characters=len(character_counts),
        characters_without_piece=len(uncovered_counts),
        most_frequent_without_piece=[character for character, _ in uncovered_counts.most_common(_MAX_LISTED)],
        longest_pieces=sorted(ordinary, key=lambda piece: (-len(piece), piece))[:_MAX_LISTED],
        most_frequent_pieces=[vocabulary.pieces[index] for index, _ in id_counts.most_common(_MAX_LISTED)],
        pruned=_measure_pruned(vocabulary, measured, normalized),
    )


def _measure_pruned(
    vocabulary: SentencePieceVocabulary, sentences: Sequence[str], normalized: Sequence[str]
) -> list[PrunedRates]:
    """Measure the vocabulary pruned to each fraction of its size; normalized: the normalized sentences."""
    rates_by_size: dict[int, PrunedRates] = {}
    for fraction in _PRUNED_FRACTIONS:
        model = prune_vocabulary(vocabulary.proto, round(vocabulary.size * fraction))
        pruned = SentencePieceVocabulary(model, vocabulary.cleaning)
        # Special tokens and single characters are never removed, so two fractions may give the same vocabulary.
        if pruned.size not in rates_by_size:
            rates = _measure_rates(normalized, pruned.encode_batch(sentences), pruned.unk_id)
            rates_by_size[pruned.size] = PrunedRates(**vars(rates), size=pruned.size)
    return list(rates_by_size.values())


def _measure_rates(normalized: Sequence[str], token_ids: Sequence[Sequence[int]], unk_id: int) -> TokenRates:
    """Return the rates of a text; normalized and token_ids: its sentences as text and as tokens."""
    n_tokens = max(sum(map(len, token_ids)), 1)
    n_words = max(sum(len(sentence.split()) for sentence in normalized), 1)
    return TokenRates(
        pieces_per_word=n_tokens / n_words,
        characters_per_piece=sum(map(len, normalized)) / n_tokens,
        bytes_per_piece=sum(len(sentence.encode()) for sentence in normalized) / n_tokens,
        unknown_rate=sum(row.count(unk_id) for row in token_ids) / n_tokens,
    )


def format_statistics(statistics: TokenStatistics, text_name: str) -> list[str]:
    """Return the statistics as lines of text; text_name: the text that was measured, such as "held-out"."""
    coverage = f"{statistics.character_coverage:.4%} of the characters covered"
    if statistics.most_frequent_without_piece:
        quoted = " ".join(f"'{character}'" for character in statistics.most_frequent_without_piece)
        coverage += f" (without a token: {replace_unprintable(quoted)})"
    rows = [
        [f"{rates.size:,}", f"{rates.pieces_per_word:.3f}", f"{rates.bytes_per_piece:.3f}"]
        for rates in statistics.pruned
    ]
    return [
        coverage,
        f"on {text_name} text {statistics.pieces_per_word:.3f} tokens per word,"
        f" {statistics.characters_per_piece:.2f} characters per token,"
        f" {statistics.unknown_rate:.4%} unknown tokens",
        f"longest tokens: {replace_unprintable(' '.join(statistics.longest_pieces[:5]))}",
        f"most frequent tokens: {replace_unprintable(' '.join(statistics.most_frequent_pieces))}",
        "pruned to its best tokens (a vocabulary trained to that size does about as well):",
        console.format_table(["tokens", "tokens per word", "bytes per token"], rows),
    ]


def replace_unprintable(text: str) -> str:
    """Replace every character that is not printable, and could control a terminal, by U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
