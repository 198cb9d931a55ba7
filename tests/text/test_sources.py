from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import ConfigError, InputError
from albert_cli.text.corpus import read_documents
from albert_cli.text.sources import resolve_sources
from tests.helpers.text_files import read_texts


def test_resolve_folders_and_globs_sorted_and_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.jsonl", "sub/ignored.md", ".hidden/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "c"}\n' if name.endswith("jsonl") else name)
    assert read_texts(tmp_path) == ["a.txt", "b.txt", "c"]
    assert read_texts(f"{tmp_path}/*.txt", tmp_path / "a.txt") == ["a.txt", "b.txt"]
    resolved = [source.name for source in resolve_sources(["docs:", f"{tmp_path}/**/*.jsonl"])]
    assert resolved == ["docs:", str(tmp_path / "sub" / "c.jsonl")]


@pytest.mark.parametrize("source", ["absent.txt", "*.nothing", "docs:other", "hf:", "hf:a:b:c:d"])
def test_resolve_missing_source_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as raised:
        read_texts(source)
    assert raised.value.message.startswith(source)


@pytest.mark.parametrize("options", ["?rows=0", "?rows=x", "?row=2", "?rows=2&document=book", ":a:b:c"])
def test_hub_invalid_name_is_rejected(options: str) -> None:
    with pytest.raises(InputError, match=r"not of the form hf:NAME"):
        list(read_documents([f"hf:books{options}"]))


def test_resolve_folder_prints_skipped_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.md", "c.doc"):
        (tmp_path / name).write_text("Words.\n")
    assert read_texts(tmp_path) == ["Words."]
    assert capsys.readouterr().err == f"{tmp_path}: skipped files of other kinds: b.md, c.doc\n"


def test_resolve_weight_unless_a_file_has_that_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b@2").mkdir()
    (tmp_path / "b@2" / "c.txt").write_text("y")
    resolved = resolve_sources([f"{tmp_path}/a.txt@2.5", f"{tmp_path}/b@2", "docs:@0.5"])
    assert [(Path(s.name).name, s.weight) for s in resolved] == [("a.txt", 2.5), ("c.txt", 1.0), ("docs:", 0.5)]
    for bad in ("a.txt@0", "a.txt@101"):
        with pytest.raises(ConfigError, match="a weight must be above 0"):
            resolve_sources([f"{tmp_path}/{bad}"])
    with pytest.raises(ConfigError, match="named twice"):
        resolve_sources([f"{tmp_path}/a.txt", f"{tmp_path}/a.txt@2"])


def test_resolve_file_by_two_names_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("A.")
    monkeypatch.chdir(tmp_path)
    assert [source.name for source in resolve_sources(["a.txt", f"{tmp_path}/a.txt", f"../{tmp_path.name}/a.txt"])] == [
        "a.txt"
    ]
    with pytest.raises(ConfigError, match="named twice"):
        resolve_sources(["a.txt", f"{tmp_path}/a.txt@2"])


def test_resolve_file_named_only_by_an_ending_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ".txt").write_text("Words.\n")
    with pytest.raises(InputError, match="unknown kind of file"):
        resolve_sources([f"{tmp_path}/.txt"])
