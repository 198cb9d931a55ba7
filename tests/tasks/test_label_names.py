"""Names of classes in several spellings."""

from __future__ import annotations

import pytest

from albert_cli.tasks.label_names import find_label, match_labels


def test_match_labels_tells_signs_apart() -> None:
    assert match_labels(("-1", "0"), ("0", "1")) is None
    assert match_labels(("-0.5", "0.5"), ("0.5", "-0.5")) == [1, 0]
    assert match_labels(("b", "a - "), ("A", "B")) == [1, 0]


@pytest.mark.parametrize(
    ("text", "labels", "index"),
    [
        ("1", ("0.0", "1.0"), 1),
        ("+1.0", ("-1", "1"), 1),
        ("1", ("-1", "0"), None),
        ("1.5", ("1", "15"), None),
        ("10", ("1", "10"), 1),
        ("true", ("False", "True"), 1),
        ("us", ("US", "us"), 1),
        ("Us", ("US", "us"), None),
        ("maybe", ("no", "yes"), None),
        ("ne\u0301gatif", ("n\u00e9gatif", "positif"), 0),  # NFD, as in names of folders on macOS
        ("سلبي\u200f", ("سلبي", "x"), 0),
        ("\ufeff1", ("0", "1.0"), 1),
        ("KIZGIN", ("iyi", "kızgın"), 1),  # Turkish
        ("iyi", ("\u0130yi", "kızgın"), 0),
        ("I\u0307YI", ("iyi", "kızgın"), 0),
        ("kizgin", ("KIZGIN", "kızgın"), None),
        ("kızgın", ("KIZGIN", "kızgın"), 1),
        ("\u2067سلبي\u2069", ("\u202bسلبي\u202c", "x"), 0),
        ("po\u00adsi\u2060tive", ("negative", "positive"), 1),
        ("\u2764", ("\u2764\ufe0f", "\u2639\ufe0e"), 0),
        ("می\u200cم", ("میم", "x"), None),  # the joiner is a part of the spelling
    ],
)
def test_find_label_accepts_one_class_in_another_spelling(
    text: str, labels: tuple[str, ...], index: int | None
) -> None:
    assert find_label(text, labels) == index
