"""Documents from files, folders, globs, Hub data sets and the documentation on this machine, streamed.

Nothing is held but one document, and a document is at most a few megabytes, whatever the file's size.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from albert_cli import network
from albert_cli.errors import InputError

OnBadBytes = Literal["refuse", "replace"]

SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".txt.xz", ".jsonl.xz")
_LONGEST_LINE = 1 << 20  # bytes of running text; a longer line is cut at white space
_LONGEST_RECORD = 1 << 28  # bytes of one JSON line
_LONGEST_DOCUMENT = 1 << 22  # characters; the rest of a longer one follows as a document of its own
_COMPRESSED = {b"\x1f\x8b": "gzip (.gz)", b"\xfd7": "xz (.xz)", b"PK": "zip", b"BZ": "bzip2"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """One document: `text` has a paragraph (or a sentence) a line; `source` and `line` say where it began."""

    text: str
    source: str
    line: int
    name: str = ""


def read_documents(
    sources: Sequence[str], on_bad_bytes: OnBadBytes = "refuse", text_field: str = "text"
) -> Iterator[Document]:
    """Every document of every source, in a fixed order; documents without any text are left out.

    In a `.txt` file a line is a paragraph or a sentence and a blank line ends the document. Invalid UTF-8,
    lone surrogates and NUL are an `InputError` that says where, or, with "replace", become U+FFFD (NUL is
    dropped). Also raises `InputError` for what cannot be found or read.
    """
    for source in resolve(sources):
        if source.startswith("hf:"):
            documents = _read_hub(source, text_field)
        elif source.startswith("docs:"):
            documents = _read_docs(source)
        elif ".jsonl" in Path(source).suffixes[-2:]:
            documents = _read_records(Path(source), on_bad_bytes, text_field)
        else:
            documents = _read_text(Path(source), on_bad_bytes)
        yield from documents


def resolve(sources: Sequence[str]) -> list[str]:
    """The single files (and `hf:` and `docs:` names) that the sources stand for; each can be read alone."""
    if not sources:
        raise InputError("no source of text is named", "give a file, a folder, a glob, hf:NAME or docs:")
    found: list[str] = []
    for source in sources:
        found += [source] if source.startswith(("hf:", "docs:")) else map(str, _files(source))
    return list(dict.fromkeys(found))


def describe_sources(sources: Sequence[str]) -> list[dict[str, object]]:
    """What the text is, to recognise it again: files, bytes and SHA-256 of each source.

    Files are hashed as they lie on the disk, `docs:` over its text; a Hub data set is named only.
    """
    described: list[dict[str, object]] = []
    for source in sources:
        digest, size, files = hashlib.sha256(), 0, 0
        if source.startswith("hf:"):
            described.append({"source": source})
            continue
        if source.startswith("docs:"):
            for document in _read_docs(source):
                data = f"{document.name}\n{document.text}\n".encode()
                digest.update(data)
                size, files = size + len(data), files + 1
        else:
            for path in _files(source):
                with _errors_named(path), path.open("rb") as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
                        size += len(block)
                files += 1
        described.append({"source": source, "files": files, "bytes": size, "sha256": digest.hexdigest()})
    return described


def _files(source: str) -> list[Path]:
    """The files that a path, folder or glob stands for, sorted."""
    path = Path(source)
    if path.is_dir():
        inside = [p for p in sorted(path.rglob("*")) if p.name.endswith(SUFFIXES) and p.is_file()]
        found = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        if not found:
            raise InputError(f"{source}: no file in this folder ends in {', '.join(SUFFIXES)}")
        return found
    if not path.exists() and glob.has_magic(source):
        matches = sorted(glob.glob(source, recursive=True))  # noqa: PTH207  (the pattern may be absolute)
        found = [Path(p) for p in matches if Path(p).is_file()]
        if not found:
            raise InputError(f"{source}: no file matches")
    else:
        found = [path]
    for path in found:
        if not path.exists():
            hint = "a source is a file, a folder, a glob, hf:NAME or docs:"
            raise InputError(f"{path}: no such file or folder", hint)
        if not path.is_file():
            raise InputError(f"{path}: not a regular file", "copy its content to a file first")
        if not path.name.endswith(SUFFIXES):
            raise InputError(f"{path}: unknown kind of file", f"known endings: {', '.join(SUFFIXES)}")
    return found


# ---------------------------------------------------------------- bytes to lines


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Turn what the operating system and the decompressors raise into one line that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: damaged or cut compressed file ({error})", "copy it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path, "rb"))
    return path.open("rb")


def _raw_lines(path: Path, longest: int) -> Iterator[tuple[int, int, bytes]]:
    """(line number from 1, byte offset, bytes without the line end); only a line feed ends a line.

    A line of more than `longest` bytes comes in parts, cut after a space or else between characters.
    """
    with _errors_named(path), _open(path) as stream:
        number, offset, rest = 1, 0, b""
        while True:
            line = rest + stream.readline(longest - len(rest))
            rest = b""
            if not line:
                return
            if number == 1 and offset == 0:
                _check_start(path, line)
                if line.startswith(b"\xef\xbb\xbf"):
                    line, offset = line[3:], 3
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) >= longest:
                cut = line.rfind(b" ") + 1 or _character_start(line)
                line, rest = line[:cut], line[cut:]
            yield number, offset, line.rstrip(b"\r\n")
            offset += len(line)
            number += is_whole


def _character_start(line: bytes) -> int:
    """Where the last UTF-8 character of `line` begins, so that a cut there splits no character."""
    for back in range(1, 4):
        if line[-back] & 0xC0 != 0x80:
            return len(line) - back
    return len(line)


def _check_start(path: Path, line: bytes) -> None:
    if line.startswith(_UTF16):
        raise InputError(f"{path}: is UTF-16, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8")
    for magic, name in _COMPRESSED.items():
        if line.startswith(magic) and b"\0" in line[:16]:
            raise InputError(f"{path}: is a {name} file by its first bytes", "give it the name that says so")


def _decode(line: bytes, path: Path, number: int, offset: int, on_bad_bytes: OnBadBytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if on_bad_bytes == "replace":
            return line.decode("utf-8", errors="replace").replace("\0", "")
        raise InputError(
            f"{path}:{number}: invalid UTF-8 at byte {offset + error.start} ({error.reason})",
            "--on-bad-bytes replace continues with U+FFFD in its place",
        ) from None
    return _without_bad_characters(text, path, number, on_bad_bytes)


def _without_bad_characters(text: str, path: Path, number: int, on_bad_bytes: OnBadBytes) -> str:
    """Refuse or mend what no UTF-8 text has: NUL, and lone surrogates out of JSON escapes."""
    if "\0" not in text and (text.isascii() or not _SURROGATE.search(text)):
        return text
    if on_bad_bytes == "refuse":
        what = "a NUL character" if "\0" in text else "a lone surrogate"
        raise InputError(f"{path}:{number}: {what} in the text", "--on-bad-bytes replace continues without it")
    return _SURROGATE.sub("\ufffd", text).replace("\0", "")


# ---------------------------------------------------------------- lines to documents


def _read_text(path: Path, on_bad_bytes: OnBadBytes) -> Iterator[Document]:
    """Documents of a text file: lines up to a blank one."""
    lines: list[str] = []
    start = size = 0
    for number, offset, raw in _raw_lines(path, _LONGEST_LINE):
        # A carriage return alone ends a line too (old Macintosh files, mixed files).
        text = _decode(raw, path, number, offset, on_bad_bytes).replace("\r", "\n")
        is_blank = not text.strip()
        if lines and (is_blank or size + len(text) > _LONGEST_DOCUMENT):
            yield Document("\n".join(lines), str(path), start)
            lines, size = [], 0
        if not is_blank:
            start = start if lines else number
            lines.append(text)
            size += len(text)
    if lines:
        yield Document("\n".join(lines), str(path), start)


def _read_records(path: Path, on_bad_bytes: OnBadBytes, text_field: str) -> Iterator[Document]:
    """Documents of a file of JSON objects, one a line; blank lines are allowed."""
    for number, offset, raw in _raw_lines(path, _LONGEST_RECORD):
        if not raw.strip():
            continue
        try:
            record = json.loads(_decode(raw, path, number, offset, on_bad_bytes))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not valid JSON ({error})", "one JSON object a line") from None
        if not isinstance(record, dict) or not isinstance(record.get(text_field), str):
            known = ", ".join(map(str, list(record)[:8])) if isinstance(record, dict) else type(record).__name__
            raise InputError(
                f"{path}:{number}: no field {text_field!r} with text (found: {known})",
                "--text-field names another one",
            )
        text = _without_bad_characters(record[text_field], path, number, on_bad_bytes)
        if text.strip():
            yield Document(text.replace("\r\n", "\n").replace("\r", "\n"), str(path), number)


def _read_docs(source: str) -> Iterator[Document]:
    from albert_cli.text import docs

    scope = source.removeprefix("docs:")
    if scope not in ("", "stdlib"):
        raise InputError(f"{source}: unknown", "docs: is all installed documentation, docs:stdlib Python's own")
    for name, text in docs.read_docs(stdlib_only=scope == "stdlib"):
        yield Document(text, source, 1, name)


def _read_hub(source: str, text_field: str) -> Iterator[Document]:
    """Documents of a data set on the Hugging Face Hub, `hf:NAME[:CONFIG[:SPLIT]]`, streamed; split: train."""
    name, *rest = source.removeprefix("hf:").split(":")
    if not name or len(rest) > 2:
        raise InputError(f"{source}: not of the form hf:NAME[:CONFIG[:SPLIT]]")
    config, split = [*rest, "", ""][:2]
    network.prefer_offline()
    try:
        from datasets import load_dataset

        rows = iter(load_dataset(name, config or None, split=split or "train", streaming=True))
        for number, row in enumerate(rows, 1):
            text = row.get(text_field)
            if not isinstance(text, str):
                known = ", ".join(map(str, row))
                raise InputError(
                    f"{source}: row {number} has no field {text_field!r} with text (found: {known})",
                    "--text-field names another one",
                )
            text = _without_bad_characters(text, Path(source), number, "replace")
            if text.strip():
                yield Document(text.replace("\r", "\n"), source, number)
    except (InputError, GeneratorExit):
        raise
    except Exception as error:  # the library raises many kinds, for a wrong name as for a missing network
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise InputError(
            f"{source}: cannot be read from the Hub ({reason})",
            "check the name, the configuration and the network; local files need none of them",
        ) from error
