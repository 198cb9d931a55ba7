"""Convert named entities between spans of characters and BIO tags of words, and score predicted entities.

In BIO the first word of an entity has the tag B-TYPE, its further words have I-TYPE, and words outside entities have O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from albert_cli.errors import InputError

OUTSIDE = "O"
# Prefixes of tags in BIO, BILOU and BIOES. U and S mark an entity of one word, L and E the last word of an entity.
_BEGIN = frozenset("BUS")
_INSIDE = frozenset("ILE")
_ENDS_ENTITY = frozenset("USLE")
_TAG_HINT = "write tags as B-PER, not PER_B, and I-PER, and write O, not -, outside of entities"


class Entity(NamedTuple):
    """An entity: the first and the end index of its characters in its text, and its type, such as PER."""

    start: int
    end: int
    type: str


def is_tag(tag: str, prefixes: Collection[str] = _BEGIN | _INSIDE) -> bool:
    """Return True if the tag is O, or one of the prefixes (by default of all schemes), a hyphen and a type."""
    prefix, _, kind = tag.partition("-")
    return tag == OUTSIDE or (prefix in prefixes and kind != "")


def check_tag(tag: str, where: str) -> None:
    """Raise `InputError`, with a message that begins with `where`, unless the tag is O or a prefix and a type."""
    if not is_tag(tag):
        raise InputError(f"{where}: the tag {tag!r} is not O or B-TYPE", _TAG_HINT)


def normalize_tags(tags: Sequence[str], where: str) -> tuple[str, ...]:
    """Convert tags in BIO, BILOU or BIOES into BIO; an I, L or E that continues no entity of its type becomes B.

    Raises `InputError`, with a message that begins with `where`, for a tag that is neither O nor a prefix and a type.
    """
    normalized: list[str] = []
    open_type = ""  # the type of the entity that an I would continue; "" if there is none
    for tag in tags:
        check_tag(tag, where)
        prefix, _, kind = tag.partition("-")
        if tag == OUTSIDE:
            normalized.append(OUTSIDE)
            open_type = ""
            continue
        begins_entity = prefix in _BEGIN or kind != open_type
        normalized.append(f"B-{kind}" if begins_entity else f"I-{kind}")
        open_type = "" if prefix in _ENDS_ENTITY else kind
    return tuple(normalized)


def tags_to_entities(tags: Sequence[str], words: Sequence[tuple[int, int]]) -> list[Entity]:
    """Return the entities of BIO tags; `words` are the first and the end character of each tagged word.

    As in the CoNLL script `conlleval`, an I that does not follow an entity of its type begins an entity.
    """
    entities: list[Entity] = []
    open_type = ""
    for tag, (start, end) in zip(tags, words, strict=True):
        kind = tag[2:]  # "" for O
        if tag.startswith("I-") and kind == open_type:
            entities[-1] = entities[-1]._replace(end=end)
        elif tag != OUTSIDE:
            entities.append(Entity(start, end, kind))
        open_type = kind
    return entities


def find_overlapped_words(entity: Entity, words: Sequence[tuple[int, int]]) -> range:
    """Return the indices of the words that an entity overlaps.

    `words` are the first and the end character of each word; they are ascending, and do not overlap each other.
    """
    first = bisect_right(words, entity.start, key=itemgetter(1))
    return range(first, bisect_left(words, entity.end, key=itemgetter(0)))


def entities_to_tags(entities: Sequence[Entity], words: Sequence[tuple[int, int]], where: str) -> tuple[str, ...]:
    """Return a BIO tag for each word; raises `InputError` for entities that overlap each other or no word.

    `words` are the first and the end character of each word. An entity covers the words that it overlaps. If two
    entities overlap one word, the word belongs to the first one.
    """
    tags = [OUTSIDE] * len(words)
    end_of_entities = 0
    for entity in sorted(entities):
        word_indices = find_overlapped_words(entity, words)
        if not word_indices:
            raise InputError(f"{where}: no word at characters {entity.start} to {entity.end}", "correct the span")
        if max(entity.start, words[word_indices[0]][0]) < end_of_entities:
            message = f"{where}: the span {entity.start} to {entity.end} overlaps another one"
            raise InputError(message, "give every character one entity")
        end_of_entities = max(end_of_entities, entity.end)
        prefix = "B"
        for index in word_indices:
            if tags[index] == OUTSIDE:
                tags[index] = f"{prefix}-{entity.type}"
                prefix = "I"
    return tuple(tags)


def count_entities_cutting_words(entities: Sequence[Entity], words: Sequence[tuple[int, int]]) -> int:
    """Return the number of entities that begin or end inside one of the words."""
    inner_positions = {position for start, end in words for position in range(start + 1, end)}
    return sum(entity.start in inner_positions or entity.end in inner_positions for entity in entities)


def tag_labels(types: Iterable[str]) -> tuple[str, ...]:
    """Return the classes of a word: O, then B and I of each type in alphabetical order."""
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(set(types)) for prefix in "BI"))


def entity_types(tags: Iterable[str]) -> list[str]:
    """Return the types of the tags in alphabetical order, each once."""
    return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def inside_tag(tag: str) -> str:
    """Return the tag of a token that continues a word with this tag: the I tag of the same type, or O."""
    return tag if tag == OUTSIDE else f"I-{tag[2:]}"


def score_entities(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of entities, computed by seqeval as in `conlleval`, and the accuracy of tags.

    `gold` and `predicted` are the BIO tags of each text.
    """
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold_tags = [list(tags) for tags in gold]
    predicted_tags = [list(tags) for tags in predicted]
    pairs = zip(chain.from_iterable(gold_tags), chain.from_iterable(predicted_tags), strict=True)
    is_correct = [gold_tag == predicted_tag for gold_tag, predicted_tag in pairs]
    return {
        "entity_f1": float(f1_score(gold_tags, predicted_tags, zero_division=0)),
        "entity_precision": float(precision_score(gold_tags, predicted_tags, zero_division=0)),
        "entity_recall": float(recall_score(gold_tags, predicted_tags, zero_division=0)),
        "accuracy": sum(is_correct) / max(1, len(is_correct)),  # 0 if no text has a word
    }
