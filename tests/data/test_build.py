from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from albert_cli import store
from albert_cli.data.build import build_data
from albert_cli.data.merge import format_summary, unigram_entropies
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.tokenization import BuildSettings
from albert_cli.data.verification import verify_data
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.text.sentences import split_sentences
from albert_cli.text.vocabulary import Vocabulary

Files = Callable[[int], list[str]]
TENTH = BuildSettings(holdout=0.1, split_bytes=30_000)


def write_plan(out: Path) -> None:
    """The plan that a build had, as if it were not finished."""
    facts = store.read_json(out / "data.json")
    wanted = {name: facts[name] for name in ("vocabulary", "settings", "sources")}
    store.write_json(out / "plan.json", {**wanted, "names": sorted(p.name for p in out.glob("shards/*"))})


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the lock and the note on what was verified, by name."""
    files = (p for p in sorted(directory.rglob("*")) if p.is_file() and p.name not in (".lock", ".verified.json"))
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}


def texts(directory: Path, split: str) -> set[tuple[tuple[int, ...], ...]]:
    """The documents of a split, each as its sentences' ids."""
    corpus = TokenCorpus.open(directory, split)  # type: ignore[arg-type]
    return {
        tuple(
            tuple(shard.ids[shard.sentences[s] : shard.sentences[s + 1]].tolist())
            for s in range(shard.documents[d], shard.documents[d + 1])
        )
        for shard in corpus.shards
        for d in range(shard.documents.size - 1)
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_shards_hold_the_pieces_of_every_sentence(
    small_vocabulary: Path, write_files: Files, out: Path, documents: list[str]
) -> None:
    facts = build_data(write_files(2), small_vocabulary, out, TENTH, workers=1)
    vocabulary = Vocabulary.load(small_vocabulary)
    expected = {tuple(tuple(vocabulary.encode(s)) for s in split_sentences(d)) for d in documents}
    train, heldout = texts(out, "train"), texts(out, "heldout")
    assert train | heldout == expected
    assert not train & heldout
    assert facts["totals"]["train"]["documents"] + facts["totals"]["heldout"]["documents"] == len(documents)
    assert 30 <= facts["totals"]["heldout"]["documents"] <= 90
    assert facts["bytes_read"] == sum(len(d.encode()) for d in documents)
    corpus = TokenCorpus.open(out, "train")
    assert corpus.tokens == facts["totals"]["train"]["tokens"]
    ids = np.concatenate([shard.ids for shard in corpus.shards])
    assert np.array_equal(corpus.unigram_counts(), np.bincount(ids, minlength=vocabulary.size))
    assert Vocabulary.load(corpus.vocabulary_dir).pieces == vocabulary.pieces
    assert store.verify(out, "data").parents == {"vocabulary": store.fingerprint(small_vocabulary)}
    assert "nats" in format_summary(facts)


def test_the_heldout_documents_do_not_depend_on_the_files(
    small_vocabulary: Path, write_files: Files, tmp_path: Path
) -> None:
    for count in (1, 5):
        build_data(write_files(count), small_vocabulary, tmp_path / str(count), TENTH, workers=1)
    assert texts(tmp_path / "1", "heldout") == texts(tmp_path / "5", "heldout")


def test_a_large_split_is_cut_into_shards(small_vocabulary: Path, write_files: Files, tmp_path: Path) -> None:
    sources = write_files(1)
    build_data(sources, small_vocabulary, tmp_path / "one", TENTH)
    build_data(sources, small_vocabulary, tmp_path / "many", BuildSettings(holdout=0.1, max_shard_tokens=5000))
    assert len(TokenCorpus.open(tmp_path / "many").shards) > 3
    assert texts(tmp_path / "one", "train") == texts(tmp_path / "many", "train")


def test_a_share_that_takes_nothing_of_a_small_corpus_is_said(
    small_vocabulary: Path, write_files: Files, out: Path
) -> None:
    facts = build_data(write_files(1), small_vocabulary, out, BuildSettings(holdout=1e-9))
    assert facts["totals"]["heldout"]["documents"] == 0
    assert "--holdout takes a larger share" in format_summary(facts)


def test_nothing_is_held_out_on_request(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    facts = build_data(write_files(1), small_vocabulary, out, BuildSettings(holdout=0))
    assert facts["totals"]["heldout"]["documents"] == 0
    assert facts["unigram_entropy_nats"] is None
    assert TokenCorpus.open(out, "heldout").tokens == 0


def test_the_same_command_again_is_up_to_date(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    first = build_data(write_files(2), small_vocabulary, out, TENTH, workers=1)
    before = contents(out)
    again = build_data(write_files(2), small_vocabulary, out, TENTH, workers=2)
    assert (first["up_to_date"], again["up_to_date"]) == (False, True)
    assert contents(out) == before
    assert json.loads(json.dumps(again))["totals"] == first["totals"]


def test_a_finished_task_is_kept_and_a_damaged_one_made_again(
    small_vocabulary: Path, write_files: Files, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = write_files(3)
    build_data(sources, small_vocabulary, out, TENTH, workers=1)
    expected = contents(out)
    (out / store.MANIFEST).unlink()
    write_plan(out)
    first, second, third, *_ = sorted((out / "shards").iterdir())
    kept = (first / "train-00.ids").stat().st_mtime_ns
    ids = bytearray((second / "train-00.ids").read_bytes())
    ids[100] ^= 1
    (second / "train-00.ids").write_bytes(ids)
    store.remove_directory(third)
    build_data(sources, small_vocabulary, out, TENTH, workers=1)
    assert contents(out) == expected
    assert (first / "train-00.ids").stat().st_mtime_ns == kept
    assert "train-00.ids: damaged" in capsys.readouterr().err


def test_damage_to_finished_data_is_found(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    build_data(write_files(1), small_vocabulary, out, TENTH)
    path = next(out.glob("shards/*/train-00.ids"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"train-00\.ids"):
        build_data(write_files(1), small_vocabulary, out, TENTH)


def test_other_sources_or_settings_do_not_overwrite(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    build_data(write_files(1), small_vocabulary, out, TENTH)
    before = contents(out)
    with pytest.raises(BusyError, match="other text"):
        build_data(write_files(2), small_vocabulary, out, TENTH)
    with pytest.raises(BusyError, match="other settings"):
        build_data(write_files(1), small_vocabulary, out, BuildSettings(holdout=0.2))
    assert contents(out) == before


def test_a_foreign_directory_is_left_alone(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(BusyError, match="something else"):
        build_data(write_files(1), small_vocabulary, out, TENTH)
    assert contents(out) == {"thesis.txt": b"mine"}
    with pytest.raises(BusyError, match="vocabulary"):
        build_data(write_files(1), small_vocabulary, small_vocabulary, TENTH)


def test_a_locked_directory_is_left_alone(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    with store.lock(out), pytest.raises(BusyError, match="another run"):
        build_data(write_files(1), small_vocabulary, out, TENTH)
    assert out.is_dir()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", InputError), (b"\n \n\n", InputError), (b"Good text.\n\nBad \xff byte.\n", InputError)],
)
def test_bad_text_is_refused_and_nothing_is_left(
    small_vocabulary: Path, tmp_path: Path, out: Path, content: bytes, error: type[Exception], workers: int
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(content)
    with pytest.raises(error) as raised:
        build_data([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], small_vocabulary, out, TENTH, workers)
    assert raised.value.hint  # type: ignore[attr-defined]
    assert not out.exists() or list(out.iterdir()) == []


def test_text_that_is_all_held_out_is_refused(small_vocabulary: Path, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("Ba de fi.\n")
    with pytest.raises(InputError, match="every document is held out"):
        build_data([str(path)], small_vocabulary, out, BuildSettings(holdout=0.999999))
    assert not out.exists()
    assert build_data([str(path)], small_vocabulary, out, BuildSettings())["totals"]["heldout"]["documents"] == 0


@pytest.mark.parametrize("holdout", [-0.1, 1.0, float("nan")])
def test_an_impossible_share_is_refused(holdout: float) -> None:
    with pytest.raises(ConfigError, match="--holdout"):
        BuildSettings(holdout=holdout)


def test_unigram_entropies_of_a_known_distribution() -> None:
    train, heldout = np.array([3, 1, 0, 0]), np.array([2, 1, 1, 0])
    facts = unigram_entropies(train, heldout)
    expected = -(2 * np.log(4 / 8) + np.log(2 / 8) + np.log(1 / 8)) / 4
    assert facts["unigram_entropy_nats"] == pytest.approx(expected, abs=1e-6)
    assert facts["heldout_entropy_nats"] == pytest.approx(1.5 * np.log(2), abs=1e-6)


def test_a_shard_swapped_for_another_is_found(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    build_data(write_files(2), small_vocabulary, out, TENTH, workers=1)
    first, second, *_ = sorted((out / "shards").iterdir())
    first.rename(out / "kept")
    second.rename(first)
    (out / "kept").rename(second)
    with pytest.raises(CheckpointError, match=re.escape(first.name)):
        verify_data(out)


def test_data_that_were_verified_are_hashed_again_only_where_a_file_changed(
    small_vocabulary: Path, write_files: Files, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_data(write_files(2), small_vocabulary, out, TENTH, workers=1)
    hashed: list[Path] = []
    of_file = store.sha256_file

    def counted(path: Path) -> str:
        hashed.append(path)
        return of_file(path)

    def fail(path: Path, data: bytes) -> None:
        raise CheckpointError(f"{path}: the disk is full")

    monkeypatch.setattr(store, "sha256_file", counted)
    verify_data(out)
    assert not hashed, "the build has hashed what it wrote"
    verify_data(out, everything=True)
    assert len(hashed) > 20
    ids = next(out.glob("shards/*/*.ids"))
    before, content = ids.stat(), ids.read_bytes()
    ids.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(ids, ns=(before.st_atime_ns, before.st_mtime_ns - 10**12))  # by a clock that was set back
    with pytest.raises(CheckpointError, match=re.escape(ids.name)):
        verify_data(out)
    with pytest.raises(CheckpointError, match=re.escape(ids.name)):
        verify_data(out)
    ids.write_bytes(content)
    verify_data(out)
    hashed.clear()
    verify_data(out)
    assert not hashed
    copy = shutil.copytree(out, out.with_name("copy"))  # with the note of what was verified
    verify_data(copy)
    assert hashed
    os.utime(ids, ns=(before.st_atime_ns, before.st_mtime_ns))
    (ids.parent / "more").touch()
    hashed.clear()
    with monkeypatch.context() as full:
        full.setattr(store, "write_bytes", fail)
        verify_data(out)  # where nothing can be noted, data are read all the same
        assert hashed
        hashed.clear()
        verify_data(out)
        assert not hashed, "and hashed once a process"
