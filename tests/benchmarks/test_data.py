"""Tests of `benchmarks.data`."""

from __future__ import annotations

from pathlib import Path

from albert_cli.data.records import BuildSettings
from benchmarks.data import app, format_result, measure_data, measure_lengths, measure_sampling
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.corpora import FakeVocabulary, text_like_corpus


def test_measure_data_times_every_stage(documents_file: Path, tiny_vocabulary: Path) -> None:
    before = sorted(documents_file.parent.iterdir())
    settings = BuildSettings(split_bytes=30_000)
    result = measure_data([str(documents_file)], tiny_vocabulary, settings, megabytes=1, seconds=0.05)
    rates = result.mb_per_cpu_second
    assert result.documents == 600
    assert abs(result.bytes - documents_file.stat().st_size) < 2 * 600
    assert all(rate > 0 for rate in rates.values())
    assert abs(result.fraction_of_sentencepiece - rates["everything"] / rates["sentencepiece alone"]) < 0.05
    assert f"{result.fraction_of_sentencepiece:.0%} of the speed" in format_result(result)
    assert "tokens/s per core" in format_result(result)
    assert sorted(documents_file.parent.iterdir()) == before


def test_measure_sampling_covers_every_length() -> None:
    speeds = measure_sampling(text_like_corpus(400), FakeVocabulary(), (32, 64), seconds=0.05)
    assert list(speeds) == [32, 64]
    for length, speed in speeds.items():
        assert speed.sequences * length == 131_072
        assert speed.tokens_per_cpu_second > 0 and speed.prefetched_tokens_per_second > 0
        assert 12 < speed.bytes_per_token < 15  # three int32 a position, two for each of 15 % of them


def test_measure_lengths_divides_the_documents() -> None:
    (shard,) = text_like_corpus(400).shards
    milliseconds = measure_lengths(shard, (1, 7, 100_000))
    assert list(milliseconds) == [1, 7, shard.n_documents]
    assert all(spent > 0 for spent in milliseconds.values())


def test_command_without_text_is_rejected(tiny_vocabulary: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "no text in any source" in run_benchmark(app, empty, "--vocab", tiny_vocabulary, expect=3).err
