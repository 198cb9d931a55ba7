from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

SYLLABLES = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "kra", "ste"]


def _document(rng: random.Random, words: list[str]) -> str:
    sentences = [
        " ".join(rng.choices(words, k=rng.randint(3, 12))).capitalize() + rng.choice(".?!")
        for _ in range(rng.randint(1, 9))
    ]
    return " ".join(sentences)


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """600 documents of one to nine sentences."""
    rng = random.Random(5)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(600)]
    return [_document(rng, words) for _ in range(600)]


@pytest.fixture(scope="session")
def small_vocabulary(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """A vocabulary of 300 pieces."""
    from albert_cli.text import vocabulary

    place = tmp_path_factory.mktemp("vocabulary")
    (place / "all.txt").write_text("\n\n".join(documents), encoding="utf-8")
    vocabulary.build([str(place / "all.txt")], place / "out", size=300)
    return place / "out"


@pytest.fixture
def write_files(tmp_path: Path, documents: list[str]) -> Callable[[int], list[str]]:
    """Spread the documents over so many files; returns their paths."""

    def write(count: int) -> list[str]:
        paths = []
        for number in range(count):
            path = tmp_path / f"part-{count}-{number}.txt"
            path.write_text("\n\n".join(documents[number::count]) + "\n", encoding="utf-8")
            paths.append(str(path))
        return paths

    return write
