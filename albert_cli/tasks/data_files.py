"""Find and read the files of labeled data: delimited text, JSON lines, Parquet, and JSON documents.

A fault in a file raises `InputError` with the file and, where there are lines, the line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from albert_cli.errors import InputError, MissingDataError
from albert_cli.formatting import count_of
from albert_cli.os_errors import translate_read_errors
from albert_cli.tasks.delimited import choose_dialect, format_suffix, is_quoted, open_delimited
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable
from albert_cli.text.clean import replace_surrogates
from albert_cli.text.encodings import suggest_conversion
from albert_cli.text.lines import reject_iso_2022_jp, reject_utf16
from albert_cli.text.records import iter_json_array, iter_json_objects, iter_parquet_rows
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.sources import TextSource

_SAVE_AS_CSV = "save it as CSV (UTF-8) from the spreadsheet program"
_DECOMPRESS = "decompress it first"
# Formats of files that are not text, but that users name .csv or .txt: first bytes, description, remedy.
_BINARY_FORMATS = (
    (b"PK\x03\x04", "an Excel or LibreOffice workbook (or another zip archive)", _SAVE_AS_CSV),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook (.xls)", _SAVE_AS_CSV),
    (b"PAR1", "a Parquet file", "rename it to .parquet"),
    (b"\x1f\x8b", "a gzip archive", _DECOMPRESS),
    (b"BZh", "a bzip2 archive", _DECOMPRESS),
    (b"\xfd7zXZ\x00", "an xz archive", _DECOMPRESS),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", _DECOMPRESS),
    (b"%PDF", "a PDF document", "export its text"),
    (b"SQLite format 3\x00", "an SQLite database", "export the table as CSV"),
)
_LONGEST_MAGIC = 16  # bytes at a file's start that suffice to recognize these formats
_MAX_EXPANDED_BYTES = 1 << 30  # a compressed file of a few bytes can expand to any size
_BLOCK_BYTES = 1 << 20
RecordT = TypeVar("RecordT", bound=BaseModel)


def find_data_file(data: Path, names: Sequence[str], hub: str | None, hint: str | None = None) -> Path:
    """Return the first of these files or folders that exists in the folder `data`, in upper or lower case.

    Raises `InputError` if `data` is not a folder, and `MissingDataError` if it holds none of the names. The hint of
    `MissingDataError` is `hint` or, by default, to read the data set `hub` from the Hub.
    """
    if not data.is_dir():
        problem = "is not a directory" if data.exists() else "no such directory"
        raise InputError(f"{data}: {problem}", f"use --data for the folder that holds {names[0]}")
    for name in names:
        path = match_case(data, name)
        if path.exists():
            return path
    if hint is None and hub is not None:
        hint = f"omit --data to read {hub} from the Hugging Face Hub"
    problem = f"{names[0]} not found" if len(names) == 1 else f"holds none of {', '.join(names)}"
    raise MissingDataError(f"{data}: {problem}", hint)


def match_case(folder: Path, name: str) -> Path:
    """Return the path of `name` below a folder, with names as they are spelled there: `rte/train.tsv` for `RTE/…`."""
    path = folder
    for part in Path(name).parts:
        spelling = part
        if not (path / part).exists() and path.is_dir():
            spellings = (child.name for child in path.iterdir() if child.name.lower() == part.lower())
            spelling = min(spellings, default=part)
        path /= spelling
    return path


def find_split_files(
    folder: Path, names: Mapping[str, Sequence[str]], suffixes: Sequence[str], remedy: str
) -> dict[str, str]:
    """Map splits to the files of a folder with one of the split's `names` and an ending, in upper or lower case.

    Raises `InputError` if the folder does not exist, and if a split has two files: with `remedy`, a format of `split`.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such file or directory", "check the path")
    files = {}
    for split, stems in names.items():
        wanted = {stem + suffix for stem in stems for suffix in suffixes}
        with translate_read_errors(folder):
            paths = sorted(path for path in folder.iterdir() if path.name.lower() in wanted and path.is_file())
        if len(paths) > 1:
            raise InputError(f"{folder}: has both {paths[0].name} and {paths[1].name}", remedy.format(split=split))
        if paths:
            files[split] = str(paths[0])
    return files


def read_text(path: Path) -> str:
    """Read a UTF-8 file, which may be compressed (.gz), without its byte order mark.

    Raises `InputError` for a binary format, another encoding or a NUL character; the message names the file and, unless
    the whole file is wrong, the line.
    """
    with translate_read_errors(path):
        raw = _read_gzip(path) if path.suffix.lower() == ".gz" else path.read_bytes()
    reject_binary_formats(path, raw)
    reject_utf16(path, raw)  # UTF-16 of English without a byte order mark is valid UTF-8
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        line_start = raw.rfind(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not valid UTF-8", suggest_conversion(raw[line_start:])) from None
    reject_iso_2022_jp(text, lambda: str(path))
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        hint = "remove it: tr -d '\\000' < FILE > NEW (decompress a .gz file first)"
        raise InputError(f"{path}:{line}: a NUL character in the text", hint)
    return text


def _read_gzip(path: Path) -> bytes:
    """Read a compressed file; raise `InputError` if it expands to more than `_MAX_EXPANDED_BYTES`."""
    blocks: list[bytes] = []
    size = 0
    with gzip.open(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            size += len(block)
            if size > _MAX_EXPANDED_BYTES:
                raise InputError(f"{path}: expands to more than {_MAX_EXPANDED_BYTES / 2**20:g} MiB", _DECOMPRESS)
            blocks.append(block)
    return b"".join(blocks)


def reject_binary_formats(path: Path, raw: bytes) -> None:
    """Raise `InputError` that names the format if a file is not text, such as a renamed workbook."""
    for magic, name, remedy in _BINARY_FORMATS:
        if raw.startswith(magic):
            raise InputError(f"{path}: {name}, not text", remedy)


def reject_file_of_other_format(path: Path) -> None:
    """Raise `InputError` that names the format if a file's first bytes are not text; its ending may be unknown."""
    if path.is_file():  # a pipe can be read only once, and its reader checks it
        with translate_read_errors(path), path.open("rb") as stream:
            reject_binary_formats(path, stream.read(_LONGEST_MAGIC))


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file, without their ends.

    A line ends with a line feed, or with a carriage return and a line feed. Other characters, such as U+2028, end no
    line.
    """
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def validate_as(schema: type[RecordT], value: object, where: str, hint: str) -> RecordT:
    """Convert a parsed JSON value into an object of a pydantic model.

    Raises `InputError` that names the path of the first wrong value, such as `data[0].title`.
    """
    try:
        return schema.model_validate(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = ""
        for part in first["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        path = path.removeprefix(".") or "the document"
        raise InputError(f"{where}: {path}: {first['msg']}", hint) from None


def read_table(path: Path, settings: TableSettings) -> TextTable:
    """Read a delimited file with a header as a custom table.

    The file's ending and `settings` determine the delimiter and the quoting. If they leave it open, the content does:
    the header can show another delimiter, and the cells can show that they are in quotes.

    Raises `InputError` for a column name that occurs twice, and for a row that is not as wide as the header.
    """
    numbered_lines = list(enumerate(read_lines(path), start=1))
    dialect = choose_dialect(format_suffix(path.name), settings)
    # With "auto", `choose_dialect` turns quoting on for .csv files only, so the content of other files decides.
    if settings.quoting == "auto" and not dialect.quoting:
        dialect = replace(dialect, quoting=is_quoted(iter(numbered_lines), dialect))
    delimited = open_delimited(str(path), iter(numbered_lines), dialect)
    rows = list(delimited.rows)
    return TextTable(str(path), delimited.columns, [cells for _, cells in rows], [number for number, _ in rows])


def is_rejected(answer: object) -> bool:
    """Return True if an annotator rejected or ignored a text; Prodigy records this as its `answer`."""
    return answer in ("reject", "ignore")


def describe_rejected(origin: str, count: int) -> str:
    """Return the note on the texts that are left out because the annotator rejected or ignored them."""
    rows = count_of(count, "row")
    return f"{origin}: left out of training and scoring: {rows} with the answer reject or ignore"


def all_rejected_error(origin: str) -> InputError:
    """Return the error for a file of which the annotator rejected or ignored every text."""
    hint = "accept some rows, or remove the column answer"
    return InputError(f"{origin}: every row has the answer reject or ignore", hint)


def read_objects(path: Path) -> TextTable:
    """Read Parquet, JSON lines, or a .json file with an array of objects, as a table (`table_from_objects`)."""
    suffix = format_suffix(path.name)
    if suffix == ".parquet":
        return table_from_objects(str(path), iter_parquet_rows(SourcePart(TextSource(str(path), "parquet"))))
    lines = read_lines(path)
    if suffix == ".json" and starts_json_array(lines):
        return table_from_objects(str(path), iter_json_array("\n".join(lines), str(path)))
    objects = list(iter_json_objects(enumerate(lines, start=1), lambda number: f"{path}:{number}"))
    values = list(objects[0][1].values()) if len(objects) == 1 else []
    if suffix == ".json" and values and all(isinstance(value, dict) for value in values):
        hint = 'write one for each row: to_json(…, orient="records")'
        raise InputError(f"{path}: has an object for each column", hint)
    return table_from_objects(str(path), objects)


def starts_json_array(lines: Iterable[str]) -> bool:
    """Return True if the first line that is not blank begins with a square bracket."""
    first = next((line for line in lines if line.strip()), "")
    return first.lstrip().startswith("[")


def table_from_objects(origin: str, objects: Iterable[tuple[int, Mapping[str, object]]]) -> TextTable:
    """Build a table from numbered objects, with their keys as columns.

    Nested questions are flattened (`flatten_question`). Raises `InputError` for an object that lacks a key of the first
    object. Other keys may be missing; their cells are then empty.
    """
    columns: list[str] = []
    object_columns: set[str] = set()
    required: tuple[str, ...] = ()
    cells: list[list[str]] = []
    lines: list[int] = []
    for number, nested_values in objects:
        values = flatten_question(nested_values)
        if not cells:
            required = tuple(values)
        for name in required:
            if name not in values:
                message = f"{origin}:{number}: no key {name!r}, which the first line has"
                raise InputError(message, "write null for a missing value")
        columns += [name for name in values if name not in columns]
        object_columns |= {name for name, value in values.items() if isinstance(value, Mapping)}
        cells.append([cell_text(values.get(name)) for name in columns])
        lines.append(number)
    for row in cells:
        row += [""] * (len(columns) - len(row))  # for the keys that only later objects have
    return TextTable(origin, tuple(columns), cells, lines, frozenset(object_columns))


def flatten_question(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return an object with its nested question in the keys `question` and `choices`; other objects are unchanged.

    ARC, CommonsenseQA and OpenBookQA are published as `{"question": {"stem": …, "choices": […]}, "answerKey": …}`.
    """
    question = values.get("question")
    if isinstance(question, Mapping) and "stem" in question and "choices" in question:
        return {**values, "question": question["stem"], "choices": question["choices"]}
    return values


def cell_text(value: object) -> str:
    """Return a JSON or Parquet value as the text of a cell.

    A string is the text, and null is an empty text. The text of a number, a bool, a list or an object is its JSON, the
    text of bytes is decoded as UTF-8, and the text of a decimal or a date is its usual form. NUL is removed; a lone
    surrogate and a byte that is not UTF-8 become U+FFFD.
    """
    match value:
        case None:
            return ""
        case bytes():
            text = value.decode(errors="replace")
        case int() | float() | list() | tuple() | dict():  # a bool is an int
            text = json.dumps(value, ensure_ascii=False, default=cell_text)
        case _:
            text = str(value)
    return replace_surrogates(text.replace("\0", ""))
