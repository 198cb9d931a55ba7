from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest

from albert_cli.text.build_vocabulary import VocabularySettings, build
from albert_cli.text.work_units import split_sources


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch, documents_file: Path) -> list[str]:
    """Return a plain file that makes some twenty work units, and a compressed one with a weight."""
    monkeypatch.setattr(
        "albert_cli.text.build_vocabulary.split_sources",
        partial(split_sources, unit_bytes=documents_file.stat().st_size // 20),
    )
    packed = documents_file.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(documents_file.read_bytes(), mtime=0))
    return [str(documents_file), f"{packed}@1.5"]


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}


def test_vocabulary_is_equal_for_any_number_of_workers(tmp_path: Path, in_parts: list[str]) -> None:
    settings = VocabularySettings(300, sample_size=1000)
    built = build(in_parts, tmp_path / "one", settings, workers=1)
    assert built.report.sentences.read > 1000
    assert len(built.report.request.sources) > 15
    build(in_parts, tmp_path / "two", settings, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
