from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.data.records import SPLITS, BuildSettings
from albert_cli.data.shards import TokenCorpus
from tests.helpers.data_directories import build, contents, document_set, iter_documents
from tests.helpers.nfs import emulate_nfs, needs_maps


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at_a_time", [1 << 23, 50])
def test_dedup_retains_the_first_of_equal_documents(
    at_a_time: int,
    small_vocabulary: Path,
    documents: list[str],
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("albert_cli.data.rewrites._HASHES_AT_A_TIME", at_a_time)
    once, again, spaced = (tmp_path / f"{name}.txt" for name in "abc")
    once.write_text("\n\n".join([*documents[:300], *documents[:20]]))
    again.write_text("\n\n".join(documents[200:500]))
    spaced.write_text("\n\n".join(d.replace(" ", "  ") for d in documents[400:]))
    sources = list(map(str, (once, again, spaced)))
    settings = BuildSettings(holdout=0.1, split_bytes=40_000, dedup=True)
    report = build(sources, small_vocabulary, tmp_path / "out", settings, workers=1)
    assert report.facts.duplicates_dropped == 20 + 100 + 100
    assert "220 duplicate documents dropped" in report.format()
    for split in SPLITS:
        assert document_set(tmp_path / "out", split) == document_set(tiny_data, split)
    retained = [d for shard in TokenCorpus.open(tmp_path / "out").shards for d in iter_documents(shard)]
    assert len(retained) == len(set(retained))
    assert build(sources, small_vocabulary, tmp_path / "out", settings).up_to_date


def test_dedup_after_killed_merge_drops_other_duplicates(
    small_vocabulary: Path, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as before, so that their number does not show it."""
    first, second, out, fresh = (tmp_path / name for name in ("a.txt", "b.txt", "out", "fresh"))
    first.write_text("\n\n".join([documents[0], *documents[2:60]]))
    second.write_text("\n\n".join([*documents[:2], *documents[60:120]]))
    sources = [str(first), str(second)]
    settings = BuildSettings(holdout=0.1, split_bytes=20_000, dedup=True)
    with monkeypatch.context() as patch:
        patch.setattr("albert_cli.data.build.publish_data", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(sources, small_vocabulary, out, settings, workers=1)
    first.write_text("\n\n".join([documents[1], *documents[2:60]]))
    build(sources, small_vocabulary, out, settings, workers=1)
    report = build(sources, small_vocabulary, fresh, settings, workers=1)
    assert report.facts.duplicates_dropped == 1 and len(report.facts.sources) == 2
    assert contents(out) == contents(fresh)


@needs_maps
def test_dedup_on_nfs_deletes_no_mapped_file(
    small_vocabulary: Path, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "text.txt"
    source.write_text("\n\n".join(documents[:6] * 2))
    renamed = emulate_nfs(monkeypatch)
    report = build([str(source)], small_vocabulary, tmp_path / "data", BuildSettings(dedup=True), workers=1)
    assert report.facts.duplicates_dropped == 6
    assert renamed == []


@pytest.mark.parametrize("holdout", [0.2, 0.01])
@pytest.mark.parametrize("split_bytes", [1 << 20, 1 << 10])
def test_holdout_of_few_documents_takes_at_least_one(
    holdout: float, split_bytes: int, small_vocabulary: Path, documents: list[str], tmp_path: Path
) -> None:
    sources = []
    for number in range(6):
        path = tmp_path / f"{number}.txt"
        path.write_text(documents[number])
        sources.append(str(path))
    settings = BuildSettings(holdout=holdout, split_bytes=split_bytes)
    out = tmp_path / "data"
    report = build(sources, small_vocabulary, out, settings)
    assert report.facts.totals["heldout"].documents >= 1
    assert report.facts.totals["train"].documents + report.facts.totals["heldout"].documents == 6
    assert len(document_set(out, "train") | document_set(out, "heldout")) == 6
    assert build(sources, small_vocabulary, out, settings).up_to_date


def test_holdout_zero_takes_nothing(small_vocabulary: Path, documents: list[str], tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("\n\n".join(documents[:6]))
    report = build([str(source)], small_vocabulary, tmp_path / "data", BuildSettings(holdout=0))
    assert report.facts.totals["heldout"].documents == 0


def test_holdout_of_equal_documents_takes_all_copies(
    small_vocabulary: Path, documents: list[str], tmp_path: Path
) -> None:
    source = tmp_path / "text.txt"
    source.write_text("\n\n".join(documents[:4] * 3))
    out = tmp_path / "data"
    report = build([str(source)], small_vocabulary, out, BuildSettings(holdout=1e-9))
    assert report.facts.totals["heldout"].documents == 3
    assert not document_set(out, "train") & document_set(out, "heldout")
    assert len(document_set(out, "heldout")) == 1
