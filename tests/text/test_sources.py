from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import ConfigError, InputError
from albert_cli.text.corpus import read_documents
from albert_cli.text.read_settings import FileFormat
from albert_cli.text.sources import is_stdin, resolve_sources
from tests.helpers.text_files import read_texts
from tests.helpers.unprivileged import print_as_nobody


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
    for bad in ("a.txt@0", "a.txt@101", "a.txt@-1", "a.txt@1e9", "a.txt@inf", "a.txt@"):
        with pytest.raises(ConfigError, match="weight") as raised:
            resolve_sources([f"{tmp_path}/{bad}"])
        assert raised.value.hint == "a weight is a number such as 2 or 0.3"
    with pytest.raises(ConfigError, match="listed twice"):
        resolve_sources([f"{tmp_path}/a.txt", f"{tmp_path}/a.txt@2"])


@pytest.mark.parametrize("suffix", ["", "@2"])
def test_resolve_name_longer_than_the_system_allows(suffix: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        resolve_sources(["a" * 300 + suffix])


def test_resolve_glob_with_an_at_sign_has_no_weight(tmp_path: Path) -> None:
    (tmp_path / "@types").mkdir()
    (tmp_path / "@types" / "a.txt").write_text("A.")
    resolved = resolve_sources([f"{tmp_path}/@types/*.txt"])
    assert [(Path(source.name).name, source.weight) for source in resolved] == [("a.txt", 1.0)]


def test_resolve_file_by_two_names_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("A.")
    monkeypatch.chdir(tmp_path)
    assert [source.name for source in resolve_sources(["a.txt", f"{tmp_path}/a.txt", f"../{tmp_path.name}/a.txt"])] == [
        "a.txt"
    ]
    with pytest.raises(ConfigError, match="listed twice"):
        resolve_sources(["a.txt", f"{tmp_path}/a.txt@2"])


def test_resolve_file_named_only_by_an_ending_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ".txt").write_text("Words.\n")
    with pytest.raises(InputError, match="unknown kind of file"):
        resolve_sources([f"{tmp_path}/.txt"])


@pytest.mark.parametrize("source", ["", "race:", "squad:"])
def test_resolve_empty_name_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "a.txt").write_text("Words.\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="an empty source name"):
        resolve_sources([source])


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_resolve_stdin_as_columns_is_rejected(file_format: FileFormat) -> None:
    with pytest.raises(InputError, match=f"-: stdin cannot be read with --format {file_format}"):
        resolve_sources(["-"], file_format)


@pytest.mark.parametrize(("argument", "expected"), [("-", True), ("-@2", True), ("a-", False), ("-@200.txt", False)])
def test_is_stdin_with_and_without_a_weight(argument: str, expected: bool) -> None:
    assert is_stdin(argument) == expected


def test_resolve_folder_rejects_link_to_other_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "en").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("B.\n")
    (folder / "de").symlink_to(tmp_path / "other")
    for name in ("only the link", "en/a.txt"):
        (folder / name).write_text("A.\n")
        with pytest.raises(InputError, match=r"de: is a link to .*other, outside of the folder"):
            resolve_sources([str(folder)])


@pytest.mark.parametrize("name", ["a.TXT", "a.b.txt", "a.jsonl.gz"])
def test_resolve_folder_with_outer_link_hints_its_glob(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    subfolder = tmp_path / "folder" / "sub"
    subfolder.mkdir(parents=True)
    (subfolder / name).symlink_to(tmp_path / name)
    (subfolder / "notes.gz").touch()
    with pytest.raises(InputError, match="outside of the folder") as raised:
        resolve_sources([str(tmp_path / "folder")])
    assert raised.value.hint
    (source,) = resolve_sources([raised.value.hint.split("'")[1]])
    assert source.path == subfolder / name


def test_resolve_folder_prints_links_to_its_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "a.txt").write_text("A.\n")
    (tmp_path / "latest").symlink_to("en")
    (tmp_path / "self").symlink_to(".")
    assert read_texts(tmp_path) == ["A."]
    assert capsys.readouterr().err == f"{tmp_path}: skipped links to folders: latest, self\n"


def test_resolve_folder_reads_a_linked_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.txt").write_text("B.\n")
    (tmp_path / "a.txt").symlink_to("b.txt")
    assert [source.name for source in resolve_sources([str(tmp_path)])] == [str(tmp_path / "b.txt")]
    assert capsys.readouterr().err == f"{tmp_path}: skipped links to files: a.txt\n"
    (tmp_path / "blob").write_text("C.\n")
    (tmp_path / "c.txt").symlink_to("blob")  # is read, because the blob is not
    assert read_texts(tmp_path) == ["B.", "C."]


def test_resolve_folder_prints_the_count_of_skipped_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.md", "c.md", "d.md", "e.md"):
        (tmp_path / name).write_text("Words.\n")
    assert read_texts(tmp_path) == ["Words."]
    assert capsys.readouterr().err == f"{tmp_path}: skipped files of other kinds: b.md, c.md, d.md, … (4 in all)\n"


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_resolve_saved_dataset_without_its_caches(
    tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from datasets import Dataset, DatasetDict

    folder = tmp_path / "saved"
    DatasetDict(train=Dataset.from_dict({"text": ["One.", "Two."]})).save_to_disk(folder)
    train = Dataset.load_from_disk(str(folder / "train"))
    train.map(lambda row: {"text": row["text"].upper()})
    train.filter(lambda row: row["text"] == "One.")
    capsys.readouterr()
    assert len(list((folder / "train").glob("cache-*.arrow"))) == 2
    assert read_texts(f"{prefix}{folder}") == ["One.", "Two."]
    assert "cache-" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.ndjson", "a.jl", "A.NDJSON.gz"])
def test_resolve_other_endings_of_json_lines(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert [source.kind for source in resolve_sources([str(tmp_path / name)])] == ["jsonl"]


@pytest.mark.parametrize(("name", "remedy"), [("a.tar.gz", "unpack"), ("a.zip", "unpack"), ("a.md", "--format")])
def test_resolve_unknown_ending_hints_the_remedy(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).touch()
    for prefix in ("", "file://"):
        with pytest.raises(InputError, match="unknown kind of file") as raised:
            resolve_sources([f"{prefix}{tmp_path}/{name}"])
        assert remedy in str(raised.value.hint)


def test_resolve_broken_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A.\n")
    (tmp_path / ".hidden.txt").symlink_to("absent")
    assert read_texts(tmp_path) == ["A."]
    (tmp_path / "z.txt").symlink_to("absent.txt")
    for source in (tmp_path, tmp_path / "*.txt", tmp_path / "z.txt"):
        with pytest.raises(InputError, match=r"z\.txt: is a broken link"):
            resolve_sources([str(source)])


def test_resolve_folder_rejects_unreadable_subfolder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "closed").mkdir(mode=0, parents=True)
    (folder / "a.txt").write_text("A.\n")
    imports = """
import sys
from albert_cli.errors import InputError
from albert_cli.text.sources import resolve_sources
"""
    code = """
try:
    resolve_sources(sys.argv[1:])
except InputError as error:
    print(error.message)
"""
    assert print_as_nobody(imports, code, folder) == f"{folder}/closed: cannot be read (Permission denied)\n"


def test_resolve_glob_prints_skipped_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("top.txt", "en/a.txt", "de/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert read_texts(f"{tmp_path}/*") == ["top.txt"]
    assert capsys.readouterr().err == f"{tmp_path}/*: skipped folders: {tmp_path}/de, {tmp_path}/en\n"
    assert len(read_texts(f"{tmp_path}/**")) == 3
    assert capsys.readouterr().err == ""


def test_resolve_url_folder_like_the_local_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.md", "dataset_info.json", ".hidden.txt", ".hidden/c.txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    for source in (str(tmp_path), f"file://{tmp_path}", f"file://{tmp_path}/"):
        assert read_texts(source) == ["a.txt", "sub/d.txt"]
        assert capsys.readouterr().err == f"{source}: skipped files of other kinds: b.md, dataset_info.json\n"


def test_resolve_url_glob_without_match_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A.\n")
    for prefix in ("", "file://"):
        with pytest.raises(InputError, match=r"\*\.jsonl: no file matches"):
            resolve_sources([f"{prefix}{tmp_path}/*.jsonl"])
