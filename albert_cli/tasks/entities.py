"""Tags of words and entities: BIO and BILOU schemes, spans of characters, and entity scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from albert_cli.errors import InputError

OUTSIDE = "O"
_BEGIN = frozenset("BUS")  # U and S are entities of one word in BILOU and BIOES
_INSIDE = frozenset("ILE")


class Entity(NamedTuple):
    """An entity's characters in its text, and its type."""

    start: int
    end: int
    type: str


def normalize_tags(tags: Sequence[str], where: str) -> tuple[str, ...]:
    """Return tags in the BIO scheme; raises `InputError` for a tag that is neither O nor has a prefix.

    Reads BIO (also with entities that begin with I), BILOU and BIOES.
    """
    normalized: list[str] = []
    previous = ""  # the type of the entity that a following I continues
    for tag in tags:
        prefix, dash, kind = tag.partition("-")
        if tag == OUTSIDE:
            normalized.append(tag)
            previous = ""
            continue
        if not (dash and kind and prefix in _BEGIN | _INSIDE):
            raise InputError(f"{where}: the tag {tag!r} is not O or B-TYPE", "write tags as B-PER, I-PER and O")
        begins = prefix in _BEGIN or kind != previous
        normalized.append(f"{'B' if begins else 'I'}-{kind}")
        previous = "" if prefix in "USLE" else kind
    return tuple(normalized)


def tags_to_entities(tags: Sequence[str], words: Sequence[tuple[int, int]]) -> list[Entity]:
    """Return the entities of BIO tags; an I without a beginning of its type begins an entity, as in conlleval."""
    entities: list[Entity] = []
    previous = ""
    for tag, (start, end) in zip(tags, words, strict=True):
        kind = tag[2:]
        if tag != OUTSIDE and tag.startswith("I-") and kind == previous:
            entities[-1] = entities[-1]._replace(end=end)
        elif tag != OUTSIDE:
            entities.append(Entity(start, end, kind))
        previous = kind
    return entities


def entities_to_tags(entities: Sequence[Entity], words: Sequence[tuple[int, int]], where: str) -> tuple[str, ...]:
    """Return a BIO tag for each word; raises `InputError` for entities that overlap or contain no word."""
    tags = [OUTSIDE] * len(words)
    for entity in sorted(entities):
        inside = [index for index, (start, end) in enumerate(words) if start < entity.end and end > entity.start]
        if not inside:
            raise InputError(f"{where}: no word at characters {entity.start} to {entity.end}", "correct the span")
        if any(tags[index] != OUTSIDE for index in inside):
            message = f"{where}: the span {entity.start} to {entity.end} overlaps another one"
            raise InputError(message, "give every word one entity")
        tags[inside[0]] = f"B-{entity.type}"
        for index in inside[1:]:
            tags[index] = f"I-{entity.type}"
    return tuple(tags)


def tag_labels(types: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of words: O, and B and I of each type."""
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(set(types)) for prefix in "BI"))


def score_entities(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of entities by seqeval (conlleval's rules), and the accuracy of tags."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold_tags = [list(tags) for tags in gold]
    predicted_tags = [list(tags) for tags in predicted]
    pairs = [pair for g, p in zip(gold_tags, predicted_tags, strict=True) for pair in zip(g, p, strict=True)]
    return {
        "entity_f1": float(f1_score(gold_tags, predicted_tags, zero_division=0)),
        "entity_precision": float(precision_score(gold_tags, predicted_tags, zero_division=0)),
        "entity_recall": float(recall_score(gold_tags, predicted_tags, zero_division=0)),
        "accuracy": sum(g == p for g, p in pairs) / max(1, len(pairs)),
    }
