"""Build data directories in parts: work units, workers, array jobs, kills, and sources that change."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_cli import store
from albert_cli.array_jobs import ArrayJob
from albert_cli.data.build import build_data, plan_units
from albert_cli.data.records import SPLITS, BuildSettings, ShardFacts
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.tokenization import tokenize_unit
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.text.sentences import split_sentences
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.data_directories import TENTH_HELD_OUT, WriteFiles, build, contents, document_set, unfinish
from tests.helpers.processes import start


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def build_until_killed(sources: list[str], vocabulary: Path, out: Path, settings: BuildSettings) -> None:
    """Kill this process as its build begins the second work unit."""
    finished: list[ShardFacts] = []

    def tokenize_or_kill(*arguments: Any) -> ShardFacts:
        if finished:
            os.kill(os.getpid(), signal.SIGKILL)
        finished.append(tokenize_unit(*arguments))
        return finished[0]

    pytest.MonkeyPatch().setattr("albert_cli.data.build.tokenize_unit", tokenize_or_kill)
    build_data(sources, vocabulary, out, settings, workers=1)


def count_finished_tasks(out: Path) -> int:
    return len(list(out.glob("shards/[!.]*/manifest.json")))


def change_one_byte(path: str) -> None:
    text = bytearray(Path(path).read_bytes())
    text[1] = ord("z")
    Path(path).write_bytes(text)


def test_build_writes_the_tokens_of_every_sentence(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, documents: list[str]
) -> None:
    report = build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    vocabulary = Vocabulary.load(small_vocabulary)
    expected = {tuple(tuple(vocabulary.encode(s)) for s in split_sentences(d)) for d in documents}
    train = document_set(out, "train")
    heldout = document_set(out, "heldout")
    assert train | heldout == expected
    assert not train & heldout
    assert report.facts.totals["train"].documents + report.facts.totals["heldout"].documents == len(documents)
    assert 30 <= report.facts.totals["heldout"].documents <= 90
    assert report.facts.bytes_read == sum(len(d.encode()) for d in documents)
    corpus = TokenCorpus.open(out, "train")
    assert corpus.n_tokens == report.facts.totals["train"].tokens
    ids = np.concatenate([shard.ids for shard in corpus.shards])
    assert np.array_equal(corpus.unigram_counts(), np.bincount(ids, minlength=vocabulary.size))
    assert Vocabulary.load(corpus.vocabulary_dir).pieces == vocabulary.pieces
    assert store.verify(out, "data").parents == {"vocabulary": store.fingerprint(small_vocabulary)}
    assert "nats" in report.format()


def test_build_holdout_is_independent_of_the_files(
    small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path
) -> None:
    for count in (1, 5):
        build_data(write_files(count), small_vocabulary, tmp_path / str(count), TENTH_HELD_OUT, workers=1)
    assert document_set(tmp_path / "1", "heldout") == document_set(tmp_path / "5", "heldout")


def test_build_splits_large_output_into_shards(
    small_vocabulary: Path, documents_file: Path, tiny_data: Path, out: Path
) -> None:
    build([str(documents_file)], small_vocabulary, out, BuildSettings(holdout=0.1, max_shard_tokens=5000))
    assert len(TokenCorpus.open(tiny_data).shards) == 1
    assert len(TokenCorpus.open(out).shards) > 3
    assert document_set(out, "train") == document_set(tiny_data, "train")


def test_build_without_holdout_holds_out_nothing(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    report = build(write_files(1), small_vocabulary, out, BuildSettings(holdout=0))
    assert report.facts.totals["heldout"].documents == 0
    assert report.facts.unigram_entropy_nats is None
    assert TokenCorpus.open(out, "heldout").n_tokens == 0


def test_build_repeated_is_up_to_date(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    first = build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    before = contents(out)
    again = build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT, workers=2)
    assert (first.up_to_date, again.up_to_date) == (False, True)
    assert contents(out) == before
    assert json.loads(json.dumps(again.to_json()))["totals"] == json.loads(json.dumps(first.to_json()))["totals"]


def test_build_reuses_finished_and_rebuilds_damaged_tasks(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = write_files(3)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    expected = contents(out)
    unfinish(out)
    first, second, third, *_ = sorted((out / "shards").iterdir())
    mtime = (first / "train-00.ids").stat().st_mtime_ns
    ids = bytearray((second / "train-00.ids").read_bytes())
    ids[100] ^= 1
    (second / "train-00.ids").write_bytes(ids)
    store.remove_directory(third)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert contents(out) == expected
    assert (first / "train-00.ids").stat().st_mtime_ns == mtime
    assert "train-00.ids: damaged" in capsys.readouterr().err


def test_build_repeated_detects_damage(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    build(write_files(1), small_vocabulary, out, TENTH_HELD_OUT)
    path = next(out.glob("shards/*/train-00.ids"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"train-00\.ids"):
        build(write_files(1), small_vocabulary, out, TENTH_HELD_OUT)


def test_build_of_another_spelling_reports_the_source(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_files(1)
    monkeypatch.chdir(Path(path).parent)
    monkeypatch.setattr("sys.argv", ["albert", "data", Path(path).name, "--out", "data"])
    report = build([Path(path).name], small_vocabulary, out, TENTH_HELD_OUT)
    changes = f"(started with source `{Path(path).name}`, now `{path}`)"
    with pytest.raises(BusyError, match=re.escape(changes)):
        build([path], small_vocabulary, out, TENTH_HELD_OUT)
    unfinish(report.out)
    build_data([Path(path).name], small_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(0, 1))
    with pytest.raises(BusyError, match=re.escape(changes)) as raised:
        build([path], small_vocabulary, out, TENTH_HELD_OUT)
    assert f"albert data {Path(path).name} --out data" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [(replace(TENTH_HELD_OUT, holdout=0.3), "holdout 0.1, now 0.3"), (TENTH_HELD_OUT, "without source")],
)
def test_build_with_other_options_reports_the_change(
    settings: BuildSettings, changes: str, small_vocabulary: Path, write_files: WriteFiles, out: Path
) -> None:
    sources = write_files(2)
    build(sources[:1], small_vocabulary, out, TENTH_HELD_OUT)
    with pytest.raises(BusyError, match=changes):
        build(sources, small_vocabulary, out, settings)


def test_build_other_request_does_not_overwrite(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    build(write_files(1), small_vocabulary, out, TENTH_HELD_OUT)
    before = contents(out)
    with pytest.raises(BusyError, match="other text"):
        build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT)
    with pytest.raises(BusyError, match="other settings"):
        build(write_files(1), small_vocabulary, out, BuildSettings(holdout=0.2))
    assert contents(out) == before


def test_build_foreign_directory_is_left_alone(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(BusyError, match=r"contains thesis\.txt and is not a data directory"):
        build(write_files(1), small_vocabulary, out, TENTH_HELD_OUT)
    assert contents(out) == {"thesis.txt": b"mine"}
    with pytest.raises(BusyError, match="vocabulary"):
        build(write_files(1), small_vocabulary, small_vocabulary, TENTH_HELD_OUT)


def test_build_locked_directory_is_left_alone(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    with store.lock(out), pytest.raises(BusyError, match="another run"):
        build(write_files(1), small_vocabulary, out, TENTH_HELD_OUT)
    assert out.is_dir()


@pytest.mark.parametrize(
    ("content", "workers"),
    [(b"", 1), (b"\n \n\n", 1), (b"Good text.\n\nBad \xff byte.\n", 1), (b"Good text.\n\nBad \xff byte.\n", 2)],
)
def test_build_bad_text_leaves_nothing(
    small_vocabulary: Path, tmp_path: Path, out: Path, content: bytes, workers: int
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(content)
    sources = [str(tmp_path / "a.txt"), f"{tmp_path / 'b.txt'}@2"]  # the weight prevents a common work unit
    assert len(plan_units(sources, small_vocabulary, out, TENTH_HELD_OUT)) == 2
    with pytest.raises(InputError) as raised:
        build(sources, small_vocabulary, out, TENTH_HELD_OUT, workers)
    assert raised.value.hint
    assert not out.exists() or list(out.iterdir()) == []


def test_build_bad_text_leaves_other_hidden_files(small_vocabulary: Path, tmp_path: Path, out: Path) -> None:
    (out / ".git").mkdir(parents=True)
    (out / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "a.txt").write_bytes(b"Bad \xff byte.\n")
    before = contents(out)
    with pytest.raises(InputError):
        build([str(tmp_path / "a.txt")], small_vocabulary, out, TENTH_HELD_OUT)
    assert contents(out) == before
    assert sorted(path.name for path in out.iterdir()) == [".git", ".lock"]


def test_build_with_all_text_held_out_is_rejected(small_vocabulary: Path, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("Ba de fi.\n")
    with pytest.raises(InputError, match=r"one\.txt: all documents are held out"):
        build([str(path)], small_vocabulary, out, BuildSettings(holdout=0.999999))
    assert not out.exists()
    report = build([str(path)], small_vocabulary, out, BuildSettings())
    assert report.facts.totals["heldout"].documents == 0


@pytest.mark.parametrize("holdout", [-0.1, 1.0, float("nan")])
def test_settings_with_impossible_holdout_are_rejected(holdout: float) -> None:
    with pytest.raises(ConfigError, match="--holdout"):
        BuildSettings(holdout=holdout)


def write_dataset(folder: Path, documents: list[str]) -> str:
    """Write a data set of four files, as on the Hub; return its name as a source."""
    folder.mkdir()
    for number in range(4):
        rows = (json.dumps({"text": document}) + "\n" for document in documents[number::4])
        (folder / f"train-{number}-of-4.jsonl").write_text("".join(rows))
    return f"hf:{folder}"


def test_build_bytes_are_independent_of_workers(
    small_vocabulary: Path, write_files: WriteFiles, documents: list[str], tmp_path: Path
) -> None:
    """The workers read files and a data set, and then drop the documents that occur in both."""
    dataset = write_dataset(tmp_path / "dataset", documents[::5])
    sources = [dataset, *(f"{path}@1.5" for path in write_files(2))]
    settings = replace(TENTH_HELD_OUT, dedup=True)
    for workers in (1, 2):
        report = build(sources, small_vocabulary, tmp_path / f"by-{workers}", settings, workers)
        assert report.facts.duplicates_dropped == len(documents[::5])
    assert len(list((tmp_path / "by-1" / "shards").iterdir())) >= 8
    assert contents(tmp_path / "by-1") == contents(tmp_path / "by-2")


def test_build_split_file_gives_the_same_documents(
    small_vocabulary: Path, documents_file: Path, tiny_data: Path, out: Path
) -> None:
    report = build([str(documents_file)], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert len(report.facts.sources) > 3
    for split in SPLITS:
        assert document_set(out, split) == document_set(tiny_data, split)
    assert TokenCorpus.open(out).n_documents == TokenCorpus.open(tiny_data).n_documents


def test_build_killed_five_times_gives_the_same_bytes(
    small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path
) -> None:
    """A build is killed as soon as it has finished one more work unit, five times over."""
    settings = BuildSettings(holdout=0.1, split_bytes=16_000, dedup=True)
    sources = write_files(3)
    sources.append(str(shutil.copy(sources[0], tmp_path / "doubled.txt")))
    build_data(sources, small_vocabulary, tmp_path / "whole", settings, workers=1)
    out = tmp_path / "killed"
    killed_build = partial(build_until_killed, sources, small_vocabulary, out, settings)
    for number in range(5):
        killed = start(tmp_path / "log", run_first=killed_build)
        assert killed.wait() == -signal.SIGKILL and count_finished_tasks(out) == number + 1, killed.printed_text()
    build_data(sources, small_vocabulary, out, settings, workers=1)
    assert contents(out) == contents(tmp_path / "whole")


def test_plan_units_joins_small_and_splits_large_files(tmp_path: Path, small_vocabulary: Path, out: Path) -> None:
    names = {"a.txt": 400, "b.txt": 500, "c.txt": 2100, "d.jsonl": 10, "e.txt.gz": 100, "f.csv": 3000}
    for name, size in names.items():
        (tmp_path / name).write_bytes(b"x" * size)
    sources = [str(tmp_path / name) for name in names] + ["docs:stdlib"]
    units = plan_units(sources, small_vocabulary, out, BuildSettings(split_bytes=1000))
    assert [unit.name for unit in units] == [
        "00000-a.txt-and-1-more",
        "00001-c.txt-00000000M",
        "00002-c.txt-00000000M",
        "00003-c.txt-00000000M",
        "00004-d.jsonl-and-1-more",
        "00005-f.csv",
        "00006-docs-stdlib",
    ]
    assert [(t.parts[0].start, t.parts[0].end) for t in units[1:4]] == [(0, 1000), (1000, 2000), (2000, None)]
    assert len(plan_units(sources[2:3], small_vocabulary, out, BuildSettings(split_bytes=1))) == 2100


def test_plan_units_enlarges_parts_of_a_huge_corpus(
    tmp_path: Path, small_vocabulary: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("albert_cli.text.work_units._MAX_WORK_UNITS", 100)
    (tmp_path / "a.txt").write_bytes(b"x" * 3000)
    units = plan_units([str(tmp_path / "a.txt")], small_vocabulary, out, BuildSettings(split_bytes=10))
    assert {unit.size for unit in units} == {40}


def test_build_touched_source_is_up_to_date(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    (path,) = write_files(1)
    build_data([path], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    os.utime(path, ns=(1, 1))
    assert build([path], small_vocabulary, out, TENTH_HELD_OUT).up_to_date
    change_one_byte(path)
    with pytest.raises(BusyError, match="other text"):
        build([path], small_vocabulary, out, TENTH_HELD_OUT)


def test_build_data_of_another_format_is_rejected(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    sources = write_files(1)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    facts = store.read_json(out / "data.json")
    del facts["fingerprints"], facts["bytes_per_token_on_disk"]  # its other keys may differ too
    store.write_json(out / "data.json", {"pieces": 1, **facts, "format": 1})
    manifest = store.read_manifest(out)
    assert manifest is not None
    store.seal(out, "data", manifest.parents)
    with pytest.raises(BusyError, match="data of another version of albert") as caught:
        build(sources, small_vocabulary, out, TENTH_HELD_OUT)
    assert caught.value.hint == "choose another --out, or delete this directory"  # the same --out would fail again
    with pytest.raises(CheckpointError, match=r"data\.json: format: written by another version of albert"):
        TokenCorpus.open(out)


def test_build_never_deletes_another_unfinished_build(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, tmp_path: Path
) -> None:
    first, second, third = write_files(3)
    build_data([first, second], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    unfinish(out)
    before = contents(out)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(second, tmp_path / "elsewhere")
    for sources, settings in (
        ([first, second], BuildSettings(holdout=0.3, split_bytes=30_000)),
        ([first, third], TENTH_HELD_OUT),
        ([first, str(moved)], TENTH_HELD_OUT),
        ([first], TENTH_HELD_OUT),
    ):
        with pytest.raises(BusyError, match="unfinished build of other"):
            build_data(sources, small_vocabulary, out, settings, workers=1)
        assert contents(out) == before
    build_data([first, second, third], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert before.items() - contents(out).items() == {("plan.json", before["plan.json"])} | {
        (name, before[name]) for name in ("data.json", "unigram.counts")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": []}, r"plan\.json: \d sources, but 0 names"),
        ({"settings": {**asdict(TENTH_HELD_OUT), "holdout": 2.0}}, r"plan\.json: --holdout 2: must be"),
    ],
)
def test_build_with_a_damaged_plan_names_the_file(
    change: dict[str, object], message: str, small_vocabulary: Path, write_files: WriteFiles, out: Path
) -> None:
    sources = write_files(2)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    unfinish(out)
    store.write_json(out / "plan.json", store.read_json(out / "plan.json") | change)
    with pytest.raises(CheckpointError, match=message):
        build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)


def test_build_changed_documentation_is_other_text(
    small_vocabulary: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [(f"module{i}", f"Ba de fi go {i}. Ma ne lu.") for i in range(20)]
    monkeypatch.setattr("albert_cli.text.installed_docs.read_installed_docs", lambda stdlib_only: iter(installed))
    build_data(["docs:"], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert build(["docs:"], small_vocabulary, out, TENTH_HELD_OUT).up_to_date
    installed.append(("another", "Ti ra so."))
    with pytest.raises(BusyError, match="other text"):
        build(["docs:"], small_vocabulary, out, TENTH_HELD_OUT)


def test_build_reruns_only_the_changed_part(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    (path,) = write_files(1)
    build_data([path], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    unfinish(out)
    times = {p.parent.name: p.stat().st_mtime_ns for p in out.glob("shards/*/shard.json")}
    change_one_byte(path)
    build_data([path], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    again = {p.parent.name for p in out.glob("shards/*/shard.json") if p.stat().st_mtime_ns != times[p.parent.name]}
    assert again == {min(times)}


def test_build_reads_stdin(
    small_vocabulary: Path, documents_file: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    text = documents_file.read_bytes()
    out = tmp_path / "out"
    other = str(shutil.copy(documents_file, tmp_path / "other.txt"))
    send(text)
    build_data(["-", other], small_vocabulary, out, TENTH_HELD_OUT, workers=2)
    assert document_set(out, "train") == document_set(tiny_data, "train")
    send(text)
    assert build(["-", other], small_vocabulary, out, TENTH_HELD_OUT).up_to_date
    send(text[1:])
    with pytest.raises(BusyError, match="other text"):
        build(["-", other], small_vocabulary, out, TENTH_HELD_OUT)
    send(b"Ba de fi.\n\nGo lu ma ne.\n")
    report = build(["-"], small_vocabulary, tmp_path / "tiny", BuildSettings())
    assert {split: counts.documents for split, counts in report.facts.totals.items()} == {"train": 1, "heldout": 1}
    with pytest.raises(ConfigError, match="several jobs cannot read stdin"):
        build_data(["-"], small_vocabulary, tmp_path / "share", BuildSettings(), array_job=ArrayJob(0, 2))


def test_build_splits_hub_dataset_by_file(
    small_vocabulary: Path, tiny_data: Path, tmp_path: Path, documents: list[str]
) -> None:
    sources = [write_dataset(tmp_path / "dataset", documents)]
    units = plan_units(sources, small_vocabulary, tmp_path / "data", TENTH_HELD_OUT)
    assert [unit.name for unit in units] == [f"{n:05d}-dataset-{n:05d}" for n in range(4)]
    report = build(sources, small_vocabulary, tmp_path / "data", TENTH_HELD_OUT)
    assert sum(counts.documents for counts in report.facts.totals.values()) == len(documents)
    for split in SPLITS:
        assert document_set(tmp_path / "data", split) == document_set(tiny_data, split)
    assert build(sources, small_vocabulary, tmp_path / "data", TENTH_HELD_OUT).up_to_date
    for index in (1, 0):
        build_data(
            sources, small_vocabulary, tmp_path / "jobs", TENTH_HELD_OUT, workers=1, array_job=ArrayJob(index, 2)
        )
    build(sources, small_vocabulary, tmp_path / "jobs", TENTH_HELD_OUT)
    assert contents(tmp_path / "jobs") == contents(tmp_path / "data")
