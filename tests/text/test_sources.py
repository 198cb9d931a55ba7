from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli.errors import ConfigError, InputError
from albert_cli.randomness import repetitions
from albert_cli.text import lines, source_parts
from albert_cli.text.corpus import _READERS, document_hash, read_documents, read_part
from albert_cli.text.read_settings import ReadSettings, parse_size
from albert_cli.text.source_parts import ReadCounter, SourcePart, file_signature, next_record_start
from albert_cli.text.sources import SourceKind, TextSource, resolve_sources
from albert_cli.text.work_units import split_sources

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402


def texts(*sources: object, **options: Any) -> list[str]:
    return [d.text for d in read_documents([str(s) for s in sources], ReadSettings(**options))]


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
PLAIN = {
    ".txt": "Grüße.\n\nEnde, 2 mal.\n",
    ".jsonl": '{"text": "Grüße."}\n\n{"id": 2, "text": "Ende, 2 mal."}\n',
    ".csv": 'id,text\r\n1,Grüße.\r\n2,"Ende, 2 mal."\r\n',
    ".tsv": "text\tid\nGrüße.\t1\nEnde, 2 mal.\t2\n",
}


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("kind", PLAIN)
def test_every_kind_of_file_in_every_compression(tmp_path: Path, kind: str, packed: str) -> None:
    path = tmp_path / f"a{kind}{packed}"
    path.write_bytes(PACK[packed](PLAIN[kind].encode()))
    assert texts(path) == ["Grüße.", "Ende, 2 mal."]
    path = path.rename(tmp_path / f"A.{f'{kind}{packed}'.upper()[1:]}")
    assert texts(path) == texts(tmp_path) == ["Grüße.", "Ende, 2 mal."]


def test_what_a_folder_holds_beside_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.md", "c.doc"):
        (tmp_path / name).write_text("Words.\n")
    assert texts(tmp_path) == ["Words."]
    assert capsys.readouterr().err == f"{tmp_path}: skipped files of other kinds: b.md, c.doc\n"


@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz", ".zst"])
def test_a_compressed_file_of_several_members_is_read_to_its_end_and_a_cut_one_refused(
    tmp_path: Path, packed: str
) -> None:
    pack = PACK[packed]
    whole, cut = tmp_path / f"whole.txt{packed}", tmp_path / f"cut.txt{packed}"
    whole.write_bytes(pack(b"One.\n\n") + pack(b"Two.\n"))
    assert texts(whole) == ["One.", "Two."]
    cut.write_bytes(pack(os.urandom(5000).hex().encode())[:1000])
    with pytest.raises(InputError, match="damaged or truncated compressed file"):
        texts(cut)


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": ["One.", None, " ", "Two."]}), path, row_group_size=2)
    assert texts(path) == ["One.", "Two."]
    with pytest.raises(InputError, match=r"a\.parquet: no text in column 'id'"):
        texts(path, text_field="id")
    path.write_bytes(path.read_bytes()[:-9])
    pq.write_table(pa.table({"text": pa.array([b"\xf3x"]).view(pa.string())}), tmp_path / "no UTF-8.parquet")
    with pytest.raises(InputError, match=r"UTF-8\.parquet: not a readable Parquet file"):
        texts(tmp_path / "no UTF-8.parquet")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        texts(path)


def test_a_table_keeps_quoted_line_ends_and_tells_bad_rows_by_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,"First line,\nsecond ""line""."\n\n2,Plain.\n')
    assert texts(path) == ['First line,\nsecond "line".', "Plain."]
    for rows, where in (
        ("1,ok\n2,too,many\n", r"a\.csv:3: 3 fields, but the header has 2"),
        ('1,"two\nlines"\n2\n', r"a\.csv:4: 1 fields"),
        ('1,ok\n2,"never closed\nmore\n', r"a\.csv:3: unexpected end of data"),
        ('1,"stray" quote\n', r"a\.csv:2: .*expected after"),
    ):
        path.write_text("id,text\n" + rows)
        with pytest.raises(InputError, match=where):
            texts(path)
    path.write_text("id,body\n1,x\n")
    with pytest.raises(InputError, match=r"a\.csv:1: no text in field 'text' \(fields: id, body\)"):
        texts(path)
    assert texts(path, text_field="body") == ["x"]


def test_every_quote_of_a_tsv_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"Well", he said.\t1\nNo "end\t0\n')
    assert texts(path) == ['"Well", he said.', 'No "end']
    path.write_text("text\tlabel\nfine\t1\ncut\n")
    with pytest.raises(InputError, match=r"a\.tsv:3: 1 fields, but the header has 2"):
        texts(path)


def test_squad_and_race_passages_are_text(tmp_path: Path) -> None:
    squad = tmp_path / "dev-v1.1.json"
    article = {"title": "T", "paragraphs": [{"context": "One.", "qas": []}, {"context": "Two.", "qas": []}]}
    squad.write_text(json.dumps({"version": "1.1", "data": [article, article]}))
    race = tmp_path / "race" / "dev" / "high"
    race.mkdir(parents=True)
    (race / "2.txt").write_text(json.dumps({"article": "A passage.\nIts end.", "questions": []}))
    (race / "10.txt").write_text(json.dumps({"article": "Another."}))
    assert texts(f"squad:{squad}") == ["One.\nTwo."] * 2
    assert texts(f"race:{tmp_path / 'race'}") == ["Another.", "A passage.\nIts end."]
    read, raw = (split_sources([source])[0].sources for source in (f"race:{tmp_path / 'race'}", f"{tmp_path / 'race'}"))
    assert read != raw, "a vocabulary of the one must not count as one of the other"
    (race / "3.txt").write_text('{"text": "no article"}')
    with pytest.raises(InputError, match=r"3\.txt: not in RACE's format \(no key 'article'\)"):
        texts(f"race:{tmp_path / 'race'}")
    squad.write_text('{"data": [{"context": "x"}]}')
    with pytest.raises(InputError, match="not in SQuAD's format"):
        texts(f"squad:{squad}")


def squad_file(path: Path, context: str, *questions: tuple[str, str, int]) -> Path:
    """A file in SQuAD's layout; of each question the answer and its place."""
    asked = [{"id": q, "question": q, "answers": [{"text": a, "answer_start": at}]} for q, a, at in questions]
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": context, "qas": asked}]}]}))
    return path


def test_questions_stand_beside_the_sentence_of_their_answer(tmp_path: Path) -> None:
    context = "It rained in  Rome.\nDr. Ash left at 5 p.m. on Monday. He took two cats, Rome said."
    asked = [("Where did\nit rain?", "Rome"), ("When?", "5 p.m."), ("What?", "Monday. He took")]
    wanted = [(question, answer, context.index(answer)) for question, answer in asked]
    wanted += [("Who said so?", "Rome", context.rindex("Rome")), ("Not at its place?", "Rome", 0)]
    path = squad_file(tmp_path / "train.json", context, *wanted)
    assert texts(f"squad-answers:{path}") == [
        "Where did it rain?\nIt rained in Rome.",
        "When?\nDr. Ash left at 5 p.m. on Monday.",
        "What?\nDr. Ash left at 5 p.m. on Monday. He took two cats, Rome said.",
        "Who said so?\nHe took two cats, Rome said.",
    ]
    assert len(texts(f"squad-answers:{path}", f"squad:{path}")) == 5  # two texts of one file


@given(st.lists(st.text("ab .\n\xa0?", min_size=1, max_size=30), min_size=1, max_size=6), st.data())
def test_the_sentence_holds_the_answer_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], draw: st.DataObject
) -> None:
    context = ". ".join(parts) + "z"
    start = draw.draw(st.integers(0, len(context) - 1))
    answer = context[start : draw.draw(st.integers(start + 1, len(context)))]
    path = squad_file(
        tmp_path_factory.mktemp("squad") / "train.json", context, ("Q?", answer, start), ("Z?", "z", len(context) - 1)
    )
    *found, last = texts(f"squad-answers:{path}")
    assert last.startswith("Z?\n")
    assert last.endswith("z")
    assert len(found) == bool(answer.strip())
    for text in found:
        assert "".join(answer.split()) in "".join(text.removeprefix("Q?\n").split())


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"answers": [{"text": "x", "answer_start": 0}]}, "no key 'question'"),
        ({"question": "q", "answers": [{"text": "x"}]}, "no key 'answer_start'"),
        ({"question": "q", "answers": [{"text": "x", "answer_start": "0"}]}, "not in SQuAD's format"),
        ("q", "not in SQuAD's format"),
        ({"question": "q", "is_impossible": True}, "no question has an answer"),
    ],
)
def test_files_without_answered_questions_are_refused(tmp_path: Path, question: object, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": [question]}]}]}))
    with pytest.raises(InputError, match=said):
        texts(f"squad-answers:{path}")


@pytest.mark.parametrize("sent", ['{"text": "One."}\n{"text": "Two."}\n', "One.\n\nTwo.\n"])
def test_stdin_is_text_or_json_lines(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(sent.encode())))
    monkeypatch.setattr(sys, "stdin", stream)
    assert texts("-") == ["One.", "Two."]


# ---------------------------------------------------------------- weights


def test_a_weight_is_part_of_the_name_but_of_no_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b@2").mkdir()
    (tmp_path / "b@2" / "c.txt").write_text("y")
    found = resolve_sources([f"{tmp_path}/a.txt@2.5", f"{tmp_path}/b@2", "docs:@0.5"])
    assert [(Path(s.name).name, s.weight) for s in found] == [("a.txt", 2.5), ("c.txt", 1.0), ("docs:", 0.5)]
    for bad in ("a.txt@0", "a.txt@101"):
        with pytest.raises(ConfigError, match="a weight must be above 0"):
            resolve_sources([f"{tmp_path}/{bad}"])
    with pytest.raises(ConfigError, match="named twice"):
        resolve_sources([f"{tmp_path}/a.txt", f"{tmp_path}/a.txt@2"])


def test_a_file_by_two_names_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("A.")
    monkeypatch.chdir(tmp_path)
    assert [source.name for source in resolve_sources(["a.txt", f"{tmp_path}/a.txt", f"../{tmp_path.name}/a.txt"])] == [
        "a.txt"
    ]
    with pytest.raises(ConfigError, match="named twice"):
        resolve_sources(["a.txt", f"{tmp_path}/a.txt@2"])


def test_a_weight_says_how_often_a_document_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"Document {i}." for i in range(2000)))
    once = texts(path)
    quarter, more = texts(f"{path}@0.25"), texts(f"{path}@2.25")
    assert 420 < len(quarter) < 580
    assert more == [t for t in once for _ in range(3 if t in set(quarter) else 2)]


def test_the_choice_by_weight_is_independent_of_the_held_out_documents() -> None:
    digests = [document_hash(str(i)) for i in range(20_000)]
    held = [d for d in digests if d < 2**64 // 10]
    share = sum(repetitions(0.3, d) for d in held) / len(held)
    assert 0.26 < share < 0.34
    assert all(repetitions(3, d) == 3 for d in digests[:100])


# ---------------------------------------------------------------- long lines


def long_lines(path: Path) -> list[str]:
    lines = [b"Short.\n", b"x" * 5000 + b"\n", b"Next.\r\n", b"y" * 4096 + b"\r\n", b"z" * 4097]
    path.write_bytes(b"\n".join(lines))
    return ["Short.", "Next.", "y" * 4096]


def test_a_line_that_is_too_long_is_refused_with_its_place_or_left_out(tmp_path: Path) -> None:
    expected = long_lines(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"a\.txt:3: longer than 0\.00390625 MiB") as refused:
        texts(tmp_path / "a.txt", max_line=4096)
    assert "--on-long-line skip" in str(refused.value.hint)
    assert texts(tmp_path / "a.txt", max_line=4096, on_long_line="skip") == expected
    tally = ReadCounter()
    part = SourcePart(TextSource(str(tmp_path / "a.txt"), "text"))
    assert len(list(read_part(part, ReadSettings(max_line=4096, on_long_line="skip"), tally))) == 3
    assert (tally.skipped, tally.size) == (2, (tmp_path / "a.txt").stat().st_size)


def test_an_endless_line_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as stream:
        for _ in range(60):
            stream.write(b"word " * 200_000)
        stream.write(b"\n\nThe end.\n")
    tracemalloc.start()
    assert texts(path, max_line=1 << 20, on_long_line="skip") == ["The end."]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6  # the file has 60 MB


def test_long_cells_and_records(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["fine", "x" * 5000]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("text\nfine\n" + "x" * 5000 + "\n")
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "' + "x" * 5000 + '"}\n')
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        with pytest.raises(InputError, match="longer than"):
            texts(tmp_path / name, max_line=4096)
        assert texts(tmp_path / name, max_line=4096, on_long_line="skip") == ["fine"]


def test_sizes() -> None:
    assert [parse_size(s) for s in ("64MiB", "1.5k", "2 GB", "77", "1Gi", "3m")] == [
        64 << 20, 1500, 2 * 10**9, 77, 1 << 30, 3 * 10**6,
    ]  # fmt: skip
    for bad in ("²", "9" * 400, "9999999999GiB", "", "MiB", "1TB", "one", "-3k"):
        with pytest.raises(ConfigError, match="is not a size"):
            parse_size(bad)
    with pytest.raises(ConfigError, match="--max-line"):
        ReadSettings(max_line=10)


# ---------------------------------------------------------------- parts


def parts_of(path: Path, kind: SourceKind, size: int) -> Iterator[SourcePart]:
    source, end = TextSource(str(path), kind), path.stat().st_size
    for start in range(0, end, size):
        yield SourcePart(source, start, start + size if start + size < end else None)


PARAGRAPHS = st.lists(st.lists(st.sampled_from(["One.", "A longer line here.", "é", "x" * 40]), min_size=1, max_size=4))


@settings(deadline=None)  # files on a disk that may be busy
@given(documents=PARAGRAPHS, blank=st.sampled_from(["\n\n", "\n \n", "\r\n\r\n", "\n\n\n\n"]), size=st.integers(1, 90))
def test_the_parts_of_a_text_file_hold_each_document_once(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]], blank: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    path.write_bytes(blank.join("\n".join(lines) for lines in documents).encode())
    found = [d.text for part in parts_of(path, "text", size) for d in read_part(part, ReadSettings(), ReadCounter())]
    assert found == texts(path) == ["\n".join(lines) for lines in documents]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 60)), size=st.integers(1, 90))
def test_the_parts_of_a_file_of_records_hold_each_record_once(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in lengths))
    tallies = []
    found = []
    for part in parts_of(path, "jsonl", size):
        tallies.append(ReadCounter())
        found += [len(d.text) for d in read_part(part, ReadSettings(), tallies[-1])]
    assert found == lengths
    assert sum(tally.size for tally in tallies) == path.stat().st_size


def test_text_without_blank_lines_is_cut_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albert_cli.text.source_parts._BLANK_LINE_SEARCH_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_text("A line of text.\n" * 1000)
    parts = list(parts_of(path, "text", 4000))
    assert [next_record_start(part, part.start) for part in parts] == [0, 4000, 8000, 12000]
    found = [d.text for part in parts for d in read_part(part, ReadSettings(), ReadCounter())]
    assert "\n".join(found) + "\n" == path.read_text()


def test_an_error_in_a_later_part_names_the_line_and_byte_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\n\n" * 500 + b"caf\xe9\n\n" + b"Two.\n\n" * 500)
    with pytest.raises(InputError, match=r"a\.txt:1001: invalid UTF-8 at byte 3003"):
        for part in parts_of(path, "text", 1000):
            list(read_part(part, ReadSettings(), ReadCounter()))


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_a_line_over_many_parts_is_gone_through_a_few_times(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / f"a.{kind}", 1000
    first, middle, last = (json.dumps({"text": text}) for text in ("One.", "x" * 100_000, "Two."))
    path.write_text(f"{first}\n\n{middle}\n\n{last}\n")
    gone, skip = [0], source_parts.skip_line

    def counted(stream: Any) -> int:
        gone.append(skip(stream))
        return gone[-1]

    monkeypatch.setattr(source_parts, "skip_line", counted)
    monkeypatch.setattr(lines, "skip_line", counted)
    source, read_settings = TextSource(str(path), kind), ReadSettings(max_line=1024, on_long_line="skip")
    places = range(0, path.stat().st_size, size)
    tally = ReadCounter()
    parts = [SourcePart(source, s, s + size if s < places[-1] else None, file_signature(path)) for s in places]
    read = [document.text for part in parts for document in read_part(part, read_settings, tally)]
    assert read == (["One.", "Two."] if kind == "jsonl" else [first, last])
    assert tally.skipped == 1
    assert tally.size == path.stat().st_size
    assert sum(gone) < 3 * path.stat().st_size


# ---------------------------------------------------------------- files that change


@pytest.mark.parametrize("how", ["grows", "is rewritten", "is replaced", "vanishes"])
def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One.\n\nTwo.\n\nThree.\n")
    documents = read_documents([str(path)])
    assert next(documents).text == "One."
    if how == "grows":
        with path.open("a") as stream:
            stream.write("\nFour.\n")
    elif how == "is rewritten":
        os.utime(path, ns=(1, 1))
    elif how == "is replaced":
        (tmp_path / "b.txt").write_text(path.read_text())
        (tmp_path / "b.txt").replace(path)
    else:
        path.unlink()
    with pytest.raises(InputError, match=r"a\.txt: (changed|vanished) while it was read"):
        list(documents)


def test_a_file_that_is_not_what_it_was_when_planned_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One.\n")
    part = SourcePart(TextSource(str(path), "text"), signature=file_signature(path))
    path.write_text("One, and more.\n")
    with pytest.raises(InputError, match="changed while it was read"):
        list(read_part(part, ReadSettings(), ReadCounter()))


def test_permission_denied_is_an_input_error(tmp_path: Path) -> None:
    """In a process that is not root's, who may read everything."""
    path = tmp_path / "a.txt"
    path.write_text("x")
    path.chmod(0)
    script = """
import os, sys
from pathlib import Path
from albert_cli.errors import InputError
from albert_cli.text.corpus import read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart, file_signature
from albert_cli.text.sources import TextSource

part = SourcePart(TextSource(sys.argv[1], "text"), signature=file_signature(Path(sys.argv[1])))
os.geteuid() or os.setuid(65534)
try:
    list(read_part(part, ReadSettings(), ReadCounter()))
except InputError as error:
    print(error.message)
"""
    for parent in [tmp_path, *tmp_path.parents][:4]:
        parent.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, env=environment)
    assert "a.txt: cannot be read (Permission denied)" in done.stdout, done.stderr


def test_every_kind_of_source_has_its_reader() -> None:
    assert {*_READERS, "docs", "stdin"} == {*get_args(SourceKind)}
