from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path

import pytest

from albert_cli import executor
from albert_cli.text.build_vocabulary import VocabularySettings, build_vocabulary
from albert_cli.text.parallel_reading import sample_work_units
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.work_units import WorkUnit, split_sources


@pytest.fixture
def sources_in_parts(monkeypatch: pytest.MonkeyPatch, documents_file: Path) -> list[str]:
    """Return an uncompressed file that is split into about twenty work units, and a compressed one with a weight."""
    monkeypatch.setattr(
        "albert_cli.text.build_vocabulary.split_sources",
        partial(split_sources, unit_bytes=documents_file.stat().st_size // 20),
    )
    compressed = documents_file.with_suffix(".txt.gz")
    compressed.write_bytes(gzip.compress(documents_file.read_bytes(), mtime=0))
    return [str(documents_file), f"{compressed}@1.5"]


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}


def test_vocabulary_is_equal_for_any_number_of_workers(tmp_path: Path, sources_in_parts: list[str]) -> None:
    settings = VocabularySettings(300, sample_size=1000)
    built = build_vocabulary(sources_in_parts, tmp_path / "one", settings, workers=1)
    assert built.report.sentences.read > 1000
    assert len(built.report.request.sources) > 15
    build_vocabulary(sources_in_parts, tmp_path / "two", settings, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_stdin_is_never_sent_to_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read stdin in this process: with `--cluster`, `map_unordered` sends all work to other machines."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"One.\n"))))

    def send_to_cluster(
        call: object, items: Iterable[tuple[WorkUnit, object]], workers: int, remedy: str
    ) -> Generator[None, None, None]:
        assert not list(items)
        yield from ()

    monkeypatch.setattr(executor, "map_unordered", send_to_cluster)
    sample, _ = sample_work_units(split_sources(["-"]), ReadSettings(), "en", 10, 0, 1)
    assert sample.sentences == ["One."]
