from __future__ import annotations

from pathlib import Path

from albert_cli.bench.data import measure, text
from albert_cli.data.tokenise import BuildSettings


def test_every_stage_is_measured(documents_file: Path, tiny_vocabulary: Path) -> None:
    settings = BuildSettings(split_bytes=30_000)
    before = sorted(documents_file.parent.iterdir())
    measured = measure([str(documents_file)], tiny_vocabulary, settings, megabytes=1, seconds=0.05)
    rates = measured["mb_per_cpu_second"]
    assert measured["documents"] == 600
    assert abs(measured["bytes"] - documents_file.stat().st_size) < 2 * 600
    assert all(rate > 0 for rate in rates.values())
    ratio = rates["the whole"] / rates["sentencepiece alone"]
    assert abs(measured["whole_to_sentencepiece"] - ratio) < 0.05
    assert f"{measured['whole_to_sentencepiece']:.0%} of the speed" in text(measured)
    assert sorted(documents_file.parent.iterdir()) == before
