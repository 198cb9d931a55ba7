"""What a vocabulary is worth: how it covers and cuts text that it was not trained on, and what fewer tokens do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from unicodedata import normalize

from pydantic import AfterValidator
from typing_extensions import TypedDict

from albert_cli import console, store
from albert_cli.text.unigram import prune_vocabulary
from albert_cli.text.vocabulary import Vocabulary

_MEASURED_SENTENCES = 20_000  # sentences: tokens a word to about 0.2 %
_SIZE_FRACTIONS = (1, 1 / 2, 1 / 4)  # of the tokens


class TokenRates(TypedDict):
    """Token counts relative to words, characters and bytes."""

    pieces_per_word: float
    characters_per_piece: float
    bytes_per_piece: float
    unknown_rate: float


class PrunedRates(TokenRates):
    """The rates of the vocabulary pruned to `size` tokens."""

    size: int


class TokenStatistics(TokenRates):
    """What `measure` finds, and how many sentences there were."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # noqa: RUF012
    sentences: Annotated[dict[str, int], AfterValidator(store.require_keys("read", "training", "held_back"))]
    character_coverage_achieved: float
    commonest_without_piece: list[str]
    longest_pieces: list[str]
    commonest_pieces: list[str]
    fewer_pieces: list[PrunedRates]


def measure_tokens(vocabulary: Vocabulary, sentences: Sequence[str]) -> dict[str, Any]:
    """Figures of `vocabulary` on cleaned sentences; for an unbiased picture they were not trained on.

    character_coverage_achieved: of the running text, those that have a token; pieces_per_word: words are what white
    space separates, so that the figure says little of scripts without it; unknown_rate: share of the tokens.
    """
    studied = sentences[:: max(1, len(sentences) // _MEASURED_SENTENCES)]
    composed = [normalize("NFKC", sentence) for sentence in studied]
    characters = Counter("".join(composed).replace(" ", ""))
    known = set(vocabulary.pieces)
    missing = Counter({c: n for c, n in characters.items() if c not in known})
    ids = vocabulary.encode_batch(studied)
    used = Counter(index for row in ids for index in row)
    ordinary = vocabulary.pieces[vocabulary.first_ordinary_id :]
    smaller = (prune_vocabulary(vocabulary.model, round(vocabulary.size * share)) for share in _SIZE_FRACTIONS)
    by_size = {v.size: v for v in (Vocabulary(model, vocabulary.cleaning) for model in smaller)}
    return {
        "measured_on": len(studied),
        "character_coverage_achieved": 1 - missing.total() / max(characters.total(), 1),
        "distinct_characters": len(characters),
        "characters_without_piece": len(missing),
        "commonest_without_piece": [c for c, _ in missing.most_common(10)],
        **_measure_rates(composed, ids, vocabulary.unk_id),
        "longest_pieces": sorted(ordinary, key=lambda piece: (-len(piece), piece))[:10],
        "commonest_pieces": [vocabulary.pieces[i] for i, _ in used.most_common(10)],
        "fewer_pieces": [
            {"size": size, **_measure_rates(composed, v.encode_batch(studied), v.unk_id)} for size, v in by_size.items()
        ],
    }


def _measure_rates(composed: Sequence[str], ids: Sequence[Sequence[int]], unknown: int) -> dict[str, float]:
    pieces = max(sum(map(len, ids)), 1)
    return {
        "pieces_per_word": pieces / max(sum(len(sentence.split()) for sentence in composed), 1),
        "characters_per_piece": sum(map(len, composed)) / pieces,
        "bytes_per_piece": sum(len(sentence.encode()) for sentence in composed) / pieces,
        "unknown_rate": sum(row.count(unknown) for row in ids) / pieces,
    }


def format_statistics(report: Mapping[str, Any]) -> list[str]:
    """The figures of `measure` for a person."""
    without = report["commonest_without_piece"]
    where = "held-back" if report["sentences"]["held_back"] else "training"
    rows = [
        [f"{row['size']:,}", *(f"{row[name]:.3f}" for name in ("pieces_per_word", "bytes_per_piece"))]
        for row in report["fewer_pieces"]
    ]
    return [
        f"{report['character_coverage_achieved']:.4%} of the characters covered"
        + (f" (not: {replace_unprintable(' '.join(without))})" if without else ""),
        f"on {where} text {report['pieces_per_word']:.3f} tokens a word, {report['characters_per_piece']:.2f}"
        f" characters a token, {report['unknown_rate']:.4%} of the tokens unknown",
        f"longest tokens: {replace_unprintable(' '.join(report['longest_pieces'][:5]))}",
        f"commonest tokens: {replace_unprintable(' '.join(report['commonest_pieces']))}",
        "with only the best of its tokens (a vocabulary trained to that size does about as well):",
        console.format_table(["tokens", "tokens a word", "bytes a token"], rows),
    ]


def replace_unprintable(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
