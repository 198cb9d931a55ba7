from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli.data.records import ShardRecord
from albert_cli.data.shards import MappedShards, Shard, TokenCorpus, _raise_open_file_limit, id_type
from albert_cli.data.writer import ShardWriter, TokenizedDocuments
from albert_cli.errors import CheckpointError
from tests.helpers.corpora import numbered_corpus

documents_of_lengths = st.lists(st.lists(st.integers(1, 30), max_size=6), max_size=20)


def one_document(ids: list[int], lengths: list[int]) -> TokenizedDocuments:
    sizes = np.array([len(lengths)])
    return TokenizedDocuments(np.array(ids, np.uint32), np.array(lengths, np.int64), sizes, np.array([7], np.uint64))


def write(directory: Path, documents: list[list[int]], cap: int, dtype: str = "uint16") -> ShardWriter:
    ids = iter(range(10**9))
    with closing(ShardWriter(directory, "train", dtype, cap)) as writer:
        for lengths in documents:
            if lengths:
                writer.add(one_document([next(ids) for _ in range(sum(lengths))], lengths))
    return writer


@settings(deadline=None)  # files on a disk that may be busy
@given(documents=documents_of_lengths, cap=st.integers(10, 200))
def test_shard_writer_output_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], cap: int
) -> None:
    directory = tmp_path_factory.mktemp("shards")
    writer = write(directory, documents, cap)
    shards = [Shard.open(directory / record.name, "uint16") for record in writer.shards]
    assert [(shard.n_documents, shard.n_tokens) for shard in shards] == [
        (record.documents, record.tokens) for record in writer.shards
    ]
    assert all(shard.n_tokens <= cap or shard.document_offsets.size == 2 for shard in shards)
    ids = [i for shard in shards for i in shard.ids.tolist()]
    assert ids == list(range(sum(map(sum, documents))))
    assert writer.totals.tokens == len(ids)
    assert writer.totals.sentences == sum(map(len, documents))

    # The boundaries over all shards are those that were written.
    starts = np.cumsum([0, *(shard.n_tokens for shard in shards)]).tolist()
    sentences = {int(o) + s for shard, s in zip(shards, starts, strict=False) for o in shard.sentence_offsets}
    ends = {
        int(shard.sentence_offsets[d]) + s
        for shard, s in zip(shards, starts, strict=False)
        for d in shard.document_offsets
    }
    assert set(np.cumsum([n for d in documents for n in d]).tolist()) <= sentences
    assert set(np.cumsum([sum(d) for d in documents]).tolist()) - {0} <= ends
    assert writer.totals.documents == sum(1 for d in documents if d)


def test_id_type_is_the_narrowest() -> None:
    assert [id_type(n) for n in (8, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


def test_shard_writer_keeps_large_ids(tmp_path: Path) -> None:
    with closing(ShardWriter(tmp_path, "train", "uint32", max_tokens=100)) as writer:
        writer.add(one_document([70_000, 5], [2]))
    assert Shard.open(tmp_path / "train-00", "uint32").ids.tolist() == [70_000, 5]


def test_shard_writer_without_documents_writes_no_file(tmp_path: Path) -> None:
    assert write(tmp_path, [], 100).shards == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".ids", ".sentences", ".documents"])
def test_shard_open_truncated_or_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, [[3, 4], [5]], 100)
    path = tmp_path / f"train-00{suffix}"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="train-00"):
        Shard.open(tmp_path / "train-00", "uint16")
    path.unlink()
    with pytest.raises(CheckpointError, match=f"train-00{suffix}"):
        Shard.open(tmp_path / "train-00", "uint16")


@given(
    runs=st.lists(st.tuples(st.integers(0, 199), st.integers(0, 40)), max_size=10),
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=5),
)
def test_take_reads_runs_of_any_shard(runs: list[tuple[int, int]], sizes: list[int]) -> None:
    corpus = numbered_corpus([[[n]] for n in sizes])
    starts: list[int] = []
    lengths: list[int] = []
    expected: list[int] = []
    for start, length in runs:
        start %= corpus.n_tokens
        end = int(corpus.token_starts[np.searchsorted(corpus.token_starts, start, "right")])
        length = min(length, end - start)
        starts.append(start)
        lengths.append(length)
        expected += range(start + 5, start + 5 + length)
    taken = corpus.read_ranges(np.array(starts, np.int64), np.array(lengths, np.int64))
    assert taken.dtype == np.int32
    assert taken.tolist() == expected


def test_mapped_shards_respect_the_open_file_limit(tmp_path: Path) -> None:
    """60 shards of three files each under a limit of 64 open files, which a child process sets for itself."""
    write(tmp_path, [[5]] * 60, cap=5)
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from contextlib import closing
from pathlib import Path
import numpy as np
from albert_cli.data.records import ShardRecord
from albert_cli.data.shards import MappedShards, TokenCorpus
records = [ShardRecord(f"train-{{n:02d}}", documents=1, tokens=5) for n in range(60)]
both = [TokenCorpus(MappedShards(Path({str(tmp_path)!r}), records, "uint16"), records=records) for _ in range(2)]
for corpus in both:
    for _ in range(2):
        assert corpus.read_ranges(np.arange(0, 300, 5), np.full(60, 5)).tolist() == list(range(300))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("maximum", "expected"), [(10**6, 60_000), (24_576, 10_240), (5_000, 256)])
def test_open_file_limit_is_raised_as_far_as_allowed(
    maximum: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: the hard limit is infinite, but the system rejects a limit above `maximum`."""
    limits = [(256, resource.RLIM_INFINITY)]

    def set_limits(kind: int, pair: tuple[int, int]) -> None:
        if pair[0] > maximum:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(pair)

    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    for _ in range(2):
        assert _raise_open_file_limit() == limits[-1][0] == expected


def test_corpus_open_without_data_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a data directory"):
        TokenCorpus.open(tmp_path)
    with pytest.raises(CheckpointError, match="no such directory"):
        TokenCorpus.open(tmp_path / "missing")


def test_corpus_open_reads_no_shard_until_it_is_used(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = TokenCorpus.open(tiny_data)
    size = (len(expected.shards), expected.n_tokens, expected.n_documents)
    monkeypatch.setattr(Shard, "open", lambda *_: pytest.fail("a shard was opened"))
    corpus = TokenCorpus.open(tiny_data)
    assert (len(corpus.shards), corpus.n_tokens, corpus.n_documents) == size


def test_corpus_shard_of_another_size_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, [[3, 4], [5]], 100)
    records = [ShardRecord("train-00", documents=2, tokens=13)]
    corpus = TokenCorpus(MappedShards(tmp_path, records, "uint16"), records=records)
    with pytest.raises(CheckpointError, match="train-00: has another size than"):
        corpus.read_ranges(np.array([0]), np.array([3]))
