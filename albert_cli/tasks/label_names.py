"""Compare the names of classes, which labels and checkpoints spell differently."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import normalize

# Zero-width spaces, soft hyphens, direction marks, and the selectors of an emoji's look, which spreadsheets and web
# pages leave in cells. The joiners U+200C and U+200D are letters of some spellings.
_INVISIBLE = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufe0e\ufe0f\ufeff]")


def visible_name(label: str) -> str:
    """Return a class name in NFC and without invisible marks; names that look the same have the same result."""
    return normalize("NFC", _INVISIBLE.sub("", label))


def comparable_name(label: str) -> str:
    """Return a class name in lower case and NFC, without blanks, hyphens and underscores, to compare spellings.

    `NOT-ENTAILMENT` and `not_entailment` both become `notentailment`. A name of only blanks, hyphens and underscores
    is not changed. In a number, only a plus sign and zeros that do not change its value are removed: 1.0, 01 and +1
    become 1, but -1 is another class. Invisible marks are removed from every name. The letter i equals the Turkish ı
    and the lower case of İ, because lower case alone does not show if I is a Turkish letter.
    """
    label = visible_name(label)
    if number := re.fullmatch(r"(-?)\+?0*([0-9]+)(?:\.([0-9]*?)0*)?", label):
        sign, whole, fraction = number.groups()
        return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
    lower_case = normalize("NFC", label.casefold()).replace("i\u0307", "i").replace("ı", "i")
    return re.sub(r"[\s_-]+", "", lower_case) or label


def find_label(text: str, labels: Sequence[str]) -> int | None:
    """Return the index of the label that equals a text, or else of the only one that differs from it in spelling.

    None if there is no such label.
    """
    if text in labels:
        return labels.index(text)
    name = comparable_name(text)
    matches = [index for index, label in enumerate(labels) if comparable_name(label) == name]
    return matches[0] if len(matches) == 1 else None


def match_labels(labels: Sequence[str], head_labels: Sequence[str]) -> list[int] | None:
    """Return the index of each label in `head_labels`; None if the two lists do not have the same labels.

    Labels match if they differ only in spelling (`comparable_name`). But if this makes two of `labels` equal, the lists
    must match exactly.
    """
    if sorted(labels) == sorted(head_labels):
        return [head_labels.index(label) for label in labels]
    names = [comparable_name(label) for label in labels]
    head_names = [comparable_name(label) for label in head_labels]
    if sorted(names) != sorted(head_names) or len(set(names)) < len(names):
        return None
    return [head_names.index(name) for name in names]


def match_outputs(labels: Sequence[str], head_labels: Sequence[str], *, are_unnamed: bool) -> list[int] | None:
    """Return the index of each label in `head_labels`; None if the head is not for these labels.

    are_unnamed: True if `head_labels` are default names such as LABEL_0. If the labels have other names, such a head
    only needs the same number of labels, and its outputs have the order of `labels`.
    """
    rows = match_labels(labels, head_labels)
    if rows is None and are_unnamed and len(labels) == len(head_labels):
        return list(range(len(labels)))
    return rows
