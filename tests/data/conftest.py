from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_vocabulary(tiny_vocabulary: Path) -> Path:
    return tiny_vocabulary


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
