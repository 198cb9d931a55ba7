"""Builds in parts: tasks, workers, jobs of an array, kills; weights, duplicates, and sources that change."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.data.array_jobs import ArrayJob, parse_array_job, select_array_job
from albert_cli.data.build import build_data, plan_tasks
from albert_cli.data.merge import format_summary
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.data.tokenization import BuildSettings, clean_normalized
from albert_cli.errors import BusyError, CheckpointError, ConfigError
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.sentences import split_sentences
from tests.data.test_build import TENTH, Files, contents, texts, write_plan

Pieces = tuple[tuple[int, ...], ...]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_bytes_do_not_depend_on_the_number_of_workers(
    small_vocabulary: Path, write_files: Files, tmp_path: Path
) -> None:
    sources = [f"{path}@1.5" for path in write_files(2)]
    for workers in (1, 2, 4):
        build_data(sources, small_vocabulary, tmp_path / f"by-{workers}", TENTH, workers=workers)
    assert len(list((tmp_path / "by-1" / "shards").iterdir())) >= 4
    for workers in (2, 4):
        assert contents(tmp_path / "by-1") == contents(tmp_path / f"by-{workers}")


def test_the_parts_of_a_file_hold_what_the_file_holds(
    small_vocabulary: Path, documents_file: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    build_data([str(documents_file)], small_vocabulary, whole, BuildSettings(holdout=0.1))
    facts = build_data([str(documents_file)], small_vocabulary, parts, TENTH, workers=1)
    assert len(facts["sources"]) > 3
    assert texts(whole, "train") == texts(parts, "train")
    assert texts(whole, "heldout") == texts(parts, "heldout")
    assert TokenCorpus.open(whole).documents == TokenCorpus.open(parts).documents


_BUILD = """
import sys
from pathlib import Path
from albert_cli.data.build import BuildSettings, build_data
settings = BuildSettings(holdout=0.1, split_bytes=16_000, dedup=True)
build_data(sys.argv[3:], Path(sys.argv[1]), Path(sys.argv[2]), settings, workers=1)
"""


def finished_tasks(out: Path) -> int:
    return len(list(out.glob("shards/[!.]*/manifest.json")))


def test_kill_9_at_five_moments_then_the_same_command(
    small_vocabulary: Path, write_files: Files, tmp_path: Path
) -> None:
    """A build is killed a random moment after it has finished one more task, five times over."""
    settings = BuildSettings(holdout=0.1, split_bytes=16_000, dedup=True)
    sources = write_files(3)
    sources.append(str(shutil.copy(sources[0], tmp_path / "doubled.txt")))
    build_data(sources, small_vocabulary, tmp_path / "whole", settings, workers=1)
    out = tmp_path / "killed"
    command = [sys.executable, "-c", _BUILD, str(small_vocabulary), str(out), *sources]
    kills, rng = 0, random.Random(4)
    for _ in range(5):
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])})
        before = finished_tasks(out)
        while finished_tasks(out) <= before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills >= 4
    build_data(sources, small_vocabulary, out, settings, workers=1)
    assert contents(out) == contents(tmp_path / "whole")


# ---------------------------------------------------------------- jobs of an array


def test_jobs_of_an_array_make_the_same_directory(small_vocabulary: Path, write_files: Files, tmp_path: Path) -> None:
    sources, whole, out = write_files(3), tmp_path / "whole", tmp_path / "out"
    build_data(sources, small_vocabulary, whole, TENTH, workers=2)
    for index in (2, 0):
        build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(index, 3))
    with pytest.raises(BusyError, match="unfinished build of other"):
        build_data(sources, small_vocabulary, out, BuildSettings(holdout=0.3), share=(1, 3))
    last = build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(1, 3))
    assert last["tasks_finished"] == last["tasks_in_all"] >= 6
    assert "job 1/3" in format_summary(last)
    assert store.read_manifest(out) is None
    shutil.copytree(out, early := tmp_path / "early")
    store.remove_directory(next((early / "shards").iterdir()))
    for directory in (out, early):
        build_data(sources, small_vocabulary, directory, TENTH)
        assert contents(directory) == contents(whole)
    assert build_data(sources, small_vocabulary, out, TENTH, share=(0, 3))["up_to_date"]


def test_nothing_is_removed_that_jobs_have_made_or_begun(
    small_vocabulary: Path, write_files: Files, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write_files(1)
    build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(0, 1))
    before = contents(out)
    with pytest.raises(BusyError, match="unfinished build of other"):
        build_data(sources, small_vocabulary, out, BuildSettings(holdout=0.3))
    assert contents(out) == before
    shutil.rmtree(out / "shards")
    (out / "shards" / ".first-being-written").mkdir(parents=True)
    monkeypatch.setattr("albert_cli.data.build.tokenize_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_data(sources, small_vocabulary, out, TENTH, workers=1)
    assert (out / "shards" / ".first-being-written").is_dir()


def test_two_jobs_do_not_make_the_same_task(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    sources = write_files(1)
    (first, *_) = plan_tasks(sources, small_vocabulary, out, TENTH)
    shares: tuple[ArrayJob, ...] = ((0, 1), None)
    for share in shares:
        with store.lock(out / ".tasks" / first.name), pytest.raises(BusyError, match="another run"):
            build_data(sources, small_vocabulary, out, TENTH, workers=1, share=share)


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        (None, {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"}, None),
        ("3/8", {}, (3, 8)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "16"}, (6, 16)),
        ("auto", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "4"}, (0, 4)),
    ],
)
def test_shares(text: str | None, environment: dict[str, str], expected: object) -> None:
    assert parse_array_job(text, environment) == expected


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("8/8", {}, "job 8 of 8 does not exist"),
        ("half", {}, "not of the form I/N"),
        ("auto", {}, "not a job of an array"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS is not set"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "2"}, "--task auto"),
    ],
)
def test_shares_that_do_not_exist(text: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_array_job(text, environment)


def test_the_shares_hold_every_task_once(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    tasks = plan_tasks(write_files(4), small_vocabulary, out, TENTH)
    dealt = [task.name for index in range(3) for task in select_array_job(tasks, index, 3)]
    assert sorted(dealt) == sorted(task.name for task in tasks)


def test_small_files_are_put_together_and_large_ones_split(tmp_path: Path, small_vocabulary: Path, out: Path) -> None:
    names = {"a.txt": 400, "b.txt": 500, "c.txt": 2100, "d.jsonl": 10, "e.txt.gz": 100, "f.csv": 3000}
    for name, size in names.items():
        (tmp_path / name).write_bytes(b"x" * size)
    sources = [str(tmp_path / name) for name in names] + ["docs:stdlib"]
    tasks = plan_tasks(sources, small_vocabulary, out, BuildSettings(split_bytes=1000))
    assert [task.name for task in tasks] == [
        "00000-a.txt-and-1-more",
        "00001-c.txt-00000000M",
        "00002-c.txt-00000000M",
        "00003-c.txt-00000000M",
        "00004-d.jsonl-and-1-more",
        "00005-f.csv",
        "00006-docs-stdlib",
    ]
    assert [(t.parts[0].start, t.parts[0].end) for t in tasks[1:4]] == [(0, 1000), (1000, 2000), (2000, None)]
    assert len(plan_tasks(sources[2:3], small_vocabulary, out, BuildSettings(split_bytes=1))) == 2100


def test_the_parts_of_a_huge_corpus_are_larger(
    tmp_path: Path, small_vocabulary: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("albert_cli.text.work_units._MAX_WORK_UNITS", 100)
    (tmp_path / "a.txt").write_bytes(b"x" * 3000)
    tasks = plan_tasks([str(tmp_path / "a.txt")], small_vocabulary, out, BuildSettings(split_bytes=10))
    assert {task.size for task in tasks} == {40}


# ---------------------------------------------------------------- weights and duplicates


def documents_of(shard: Shard) -> Iterator[Pieces]:
    for d in range(shard.documents.size - 1):
        sentences = range(shard.documents[d], shard.documents[d + 1])
        yield tuple(tuple(shard.ids[shard.sentences[s] : shard.sentences[s + 1]].tolist()) for s in sentences)


def test_a_weight_repeats_in_the_reader_and_not_on_the_disk(
    small_vocabulary: Path, write_files: Files, tmp_path: Path
) -> None:
    (path,) = write_files(1)
    once, more = tmp_path / "once", tmp_path / "more"
    build_data([path], small_vocabulary, once, TENTH, workers=1)
    facts = build_data([f"{path}@2.5"], small_vocabulary, more, TENTH, workers=1)
    corpus, single = TokenCorpus.open(more), TokenCorpus.open(once)
    times = Counter(document for shard in corpus.shards for document in documents_of(shard))
    assert set(times) == {document for shard in single.shards for document in documents_of(shard)}
    assert set(times.values()) == {2, 3}
    pieces = [piece for document in times.elements() for sentence in document for piece in sentence]
    assert facts["totals"]["train"]["tokens"] == corpus.tokens == len(pieces)
    assert 2.3 < corpus.tokens / single.tokens < 2.7
    assert np.array_equal(corpus.unigram_counts(), np.bincount(pieces, minlength=300))
    assert texts(more, "heldout") == texts(once, "heldout")
    stored = [sum(f.stat().st_size for f in directory.glob("shards/*/*.ids")) for directory in (once, more)]
    assert stored[0] == stored[1]


def test_a_weight_below_one_leaves_documents_out(small_vocabulary: Path, write_files: Files, tmp_path: Path) -> None:
    (path,) = write_files(1)
    build_data([path], small_vocabulary, tmp_path / "1", TENTH, workers=1)
    build_data([f"{path}@0.4"], small_vocabulary, tmp_path / "0.4", TENTH, workers=1)
    some, every = texts(tmp_path / "0.4", "train"), texts(tmp_path / "1", "train")
    assert some < every
    assert 0.3 < len(some) / len(every) < 0.5


@pytest.mark.parametrize("at_a_time", [1 << 23, 50])
def test_of_equal_documents_the_first_is_kept(
    small_vocabulary: Path, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr("albert_cli.data.merge._HASHES_AT_A_TIME", at_a_time)
    once, again, spaced, every = (tmp_path / f"{name}.txt" for name in "abcd")
    once.write_text("\n\n".join([*documents[:300], *documents[:20]]))
    again.write_text("\n\n".join(documents[200:500]))
    spaced.write_text("\n\n".join(d.replace(" ", "  ") for d in documents[400:]))
    every.write_text("\n\n".join(documents))
    sources = list(map(str, (once, again, spaced)))
    settings = BuildSettings(holdout=0.1, split_bytes=40_000, dedup=True)
    facts = build_data(sources, small_vocabulary, tmp_path / "out", settings, workers=1)
    assert facts["duplicates_dropped"] == 20 + 100 + 100
    assert "220 duplicate documents dropped" in format_summary(facts)
    build_data([str(every)], small_vocabulary, tmp_path / "every", TENTH)
    for split in ("train", "heldout"):
        assert texts(tmp_path / "out", split) == texts(tmp_path / "every", split)
    kept = [d for shard in TokenCorpus.open(tmp_path / "out").shards for d in documents_of(shard)]
    assert len(kept) == len(set(kept))
    build_data(sources, small_vocabulary, tmp_path / "two", settings, workers=2)
    assert contents(tmp_path / "two") == contents(tmp_path / "out")
    assert build_data(sources, small_vocabulary, tmp_path / "two", settings)["up_to_date"]


def test_other_duplicates_are_dropped_where_a_source_changed_after_a_merge_that_was_killed(
    small_vocabulary: Path, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as before, so that their number does not show it."""
    first, second, out, fresh = (tmp_path / name for name in ("a.txt", "b.txt", "out", "fresh"))
    first.write_text("\n\n".join([documents[0], *documents[2:60]]))
    second.write_text("\n\n".join([*documents[:2], *documents[60:120]]))
    sources, settings = [str(first), str(second)], BuildSettings(holdout=0.1, split_bytes=20_000, dedup=True)
    with monkeypatch.context() as patch:
        patch.setattr("albert_cli.data.build.publish_data", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_data(sources, small_vocabulary, out, settings, workers=1)
    first.write_text("\n\n".join([documents[1], *documents[2:60]]))
    build_data(sources, small_vocabulary, out, settings, workers=1)
    facts = build_data(sources, small_vocabulary, fresh, settings, workers=1)
    assert facts["duplicates_dropped"] == 1 and len(facts["sources"]) == 2
    assert contents(out) == contents(fresh)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


# ---------------------------------------------------------------- sources that are not what they were


def change(path: str) -> None:
    text = bytearray(Path(path).read_bytes())
    text[1] = ord("z")
    Path(path).write_bytes(text)


def test_a_touched_source_is_the_same_and_a_changed_one_another(
    small_vocabulary: Path, write_files: Files, out: Path
) -> None:
    (path,) = write_files(1)
    build_data([path], small_vocabulary, out, TENTH, workers=1)
    os.utime(path, ns=(1, 1))
    assert build_data([path], small_vocabulary, out, TENTH)["up_to_date"]
    change(path)
    with pytest.raises(BusyError, match="other text"):
        build_data([path], small_vocabulary, out, TENTH)


def test_data_of_another_format_is_to_be_made_again(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    sources = write_files(1)
    build_data(sources, small_vocabulary, out, TENTH, workers=1)
    facts = store.read_json(out / "data.json")
    del facts["fingerprints"], facts["bytes_per_token_on_disk"]  # nor need its other keys be today's
    store.write_json(out / "data.json", {"pieces": 1, **facts, "format": 1})
    manifest = store.read_manifest(out)
    assert manifest is not None
    store.seal(out, "data", manifest.parents)
    with pytest.raises(BusyError, match="data of another version of albert"):
        build_data(sources, small_vocabulary, out, TENTH)
    with pytest.raises(CheckpointError, match=r"data\.json: format: data of another version of albert"):
        TokenCorpus.open(out)


def test_an_unfinished_build_is_never_deleted_unasked(
    small_vocabulary: Path, write_files: Files, out: Path, tmp_path: Path
) -> None:
    first, second, third = write_files(3)
    build_data([first, second], small_vocabulary, out, TENTH, workers=1)
    (out / store.MANIFEST).unlink()
    write_plan(out)
    before = contents(out)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(second, tmp_path / "elsewhere")
    for sources, settings in (
        ([first, second], BuildSettings(holdout=0.3, split_bytes=30_000)),
        ([first, third], TENTH),
        ([first, str(moved)], TENTH),
        ([first], TENTH),
    ):
        with pytest.raises(BusyError, match="unfinished build of other"):
            build_data(sources, small_vocabulary, out, settings, workers=1)
        assert contents(out) == before
    build_data([first, second, third], small_vocabulary, out, TENTH, workers=1)
    assert before.items() - contents(out).items() == {("plan.json", before["plan.json"])} | {
        (name, before[name]) for name in ("data.json", "unigram.counts")
    }


def test_documentation_that_changed_is_other_text(
    small_vocabulary: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [(f"module{i}", f"Ba de fi go {i}. Ma ne lu.") for i in range(20)]
    monkeypatch.setattr("albert_cli.text.installed_docs.read_installed_docs", lambda stdlib_only: iter(installed))
    build_data(["docs:"], small_vocabulary, out, TENTH, workers=1)
    assert build_data(["docs:"], small_vocabulary, out, TENTH)["up_to_date"]
    installed.append(("another", "Ti ra so."))
    with pytest.raises(BusyError, match="other text"):
        build_data(["docs:"], small_vocabulary, out, TENTH)


def test_only_the_part_that_changed_is_made_again(small_vocabulary: Path, write_files: Files, out: Path) -> None:
    (path,) = write_files(1)
    build_data([path], small_vocabulary, out, TENTH, workers=1)
    (out / store.MANIFEST).unlink()
    write_plan(out)
    times = {p.parent.name: p.stat().st_mtime_ns for p in out.glob("shards/*/shard.json")}
    change(path)
    build_data([path], small_vocabulary, out, TENTH, workers=1)
    again = {p.parent.name for p in out.glob("shards/*/shard.json") if p.stat().st_mtime_ns != times[p.parent.name]}
    assert again == {min(times)}


def test_stdin_is_a_source(
    small_vocabulary: Path, documents_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    text, out = documents_file.read_bytes(), tmp_path / "out"
    other = str(shutil.copy(documents_file, tmp_path / "other.txt"))
    build_data([str(documents_file)], small_vocabulary, tmp_path / "file", TENTH, workers=1)
    send(text)
    build_data(["-", other], small_vocabulary, out, TENTH, workers=2)
    assert texts(out, "train") == texts(tmp_path / "file", "train")
    send(text)
    assert build_data(["-", other], small_vocabulary, out, TENTH)["up_to_date"]
    send(text[1:])
    with pytest.raises(BusyError, match="other text"):
        build_data(["-", other], small_vocabulary, out, TENTH)
    send(b"Ba de fi.\n\nGo lu ma ne.\n")
    facts = build_data(["-"], small_vocabulary, tmp_path / "tiny", BuildSettings())
    assert facts["totals"]["train"]["documents"] == 2
    with pytest.raises(ConfigError, match="several jobs cannot read stdin"):
        build_data(["-"], small_vocabulary, tmp_path / "share", BuildSettings(), share=(0, 2))


@given(text=st.text(), lowercase=st.booleans())
def test_sentences_are_cleaned_as_any_text_is(text: str, lowercase: bool) -> None:
    cleaning, sentences = Cleaning(lowercase=lowercase), split_sentences(text)
    assert clean_normalized(sentences, cleaning) == [clean(sentence, cleaning) for sentence in sentences]
