"""Tests of `benchmarks.domain`: nothing leaks from dev into the text, and no name reveals a label."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.domain import manpages, office_help, sst2
from benchmarks.domain.dataset import LabeledText, Page, find_best_word, write_pages
from tests.helpers.benchmarks import run_benchmark

RENDERED = """<table class="head"><tr><td>LS(1)</td></tr></table><div class="manual-text">
<h1 class="Sh">NAME</h1><p class="Pp">ls - list what is in a directory</p>
<dl><dt><b>-a</b>, <b>--all</b></dt><dd>show <b>hidden</b> entries too, see stat(2) and /etc/fstab
<pre>ls -a /etc</pre></dd></dl></div>"""
HELP = '<p>Navigation of all pages</p><p class="paragraph">Open <span>LibreOffice Calc</span> and choose a cell.</p>'


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_pages(label: str, word: str) -> list[Page]:
    shared = "This paragraph occurs in each of the pages, whichever label they happen to have."
    text = f"A paragraph about {word} that is long enough to be labeled, of the page with number"
    return [Page(f"{label}-{i}", label, (shared, f"{text} {i:03}")) for i in range(40)]


def test_write_pages_separates_dev_from_text(tmp_path: Path) -> None:
    facts = write_pages(tmp_path, [*make_pages("a", "boats"), *make_pages("b", "trains"), Page("c", "c", ("x" * 80,))])
    dev = read_lines(tmp_path / "task" / "dev.jsonl")
    train = read_lines(tmp_path / "task" / "train.jsonl")
    text = (tmp_path / "text.jsonl").read_text(encoding="utf-8")
    assert {row["label"] for row in dev} == {row["label"] for row in train} == {"a", "b"}
    assert facts.dev == len(dev) > 5
    assert not any(row["text"] in text for row in dev)
    assert all(row["text"] in text for row in train)


def test_best_word_reveals_a_label_that_gives_itself_away() -> None:
    rows = [LabeledText(f"{'boat' if i % 2 else 'train'} number {i}", str(i % 2)) for i in range(40)]
    word, accuracy = find_best_word(rows[:30], rows[30:])
    assert (word, accuracy) == ("train", 1.0)


def test_best_word_among_equals_is_the_first() -> None:
    words = [f"word{number}" for number in range(50)]
    rows = [LabeledText(" ".join(words) if i % 2 else "other", str(i % 2)) for i in range(20)]
    assert find_best_word(rows[1:], rows)[0] == words[0]


def test_manual_pages_lose_sections_and_paths() -> None:
    paragraphs = manpages.parse_paragraphs(RENDERED)
    assert paragraphs == ("ls - list what is in a directory", "show hidden entries too, see stat and PATH")


def test_help_pages_lose_names_of_programs() -> None:
    assert office_help.parse_help(HELP) == ("Open LibreOffice PROGRAM and choose a cell.",)


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_manpages_command_writes_text_and_table(tmp_path: Path) -> None:
    for section in (1, 5):
        (tmp_path / "de" / f"man{section}").mkdir(parents=True)
        for i in range(24):
            words = "Zeilen einer Datei zählen" if section == 1 else "Aufbau der Datei mit Einstellungen"
            source = (
                f".TH P{i} {section}\n.SH BESCHREIBUNG\n{words} und noch viel mehr, was hier als Nummer {i} steht.\n"
            )
            page = tmp_path / "de" / f"man{section}" / f"p{i}.{section}.gz"
            page.write_bytes(gzip.compress(source.encode()))
    run_benchmark(manpages.app, tmp_path / "de", "--out", tmp_path / "out")
    dev = read_lines(tmp_path / "out" / "task" / "dev.jsonl")
    assert {row["label"] for row in dev} == {"section 1", "section 5"}
    assert all("noch viel mehr" in row["text"] for row in dev)


def test_sst2_command_keeps_dev_out_of_text(tmp_path: Path) -> None:
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_text("sentence\tlabel\na fine film \t1\nso dull \t0\nfine \t1\n")
    (folder / "dev.tsv").write_text("sentence\tlabel\nso dull \t0\na joy \t1\n")
    run_benchmark(sst2.app, tmp_path / "glue", "--out", tmp_path / "out")
    assert {row["text"] for row in read_lines(tmp_path / "out" / "text.jsonl")} == {"a fine film", "fine"}
    assert [row["text"] for row in read_lines(tmp_path / "out" / "task" / "dev.jsonl")] == ["so dull", "a joy"]


def test_folder_without_pages_is_rejected(tmp_path: Path) -> None:
    assert "no help pages" in run_benchmark(office_help.app, tmp_path, "--out", tmp_path / "out", expect=3).err
