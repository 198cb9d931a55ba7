"""Read texts with tagged words: CoNLL columns, JSON lines with tokens and tags, and JSON lines with spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from albert_cli.errors import InputError
from albert_cli.tasks.base import TaskInfo
from albert_cli.tasks.data_files import read_lines
from albert_cli.tasks.entities import Entity, entities_to_tags, normalize_tags
from albert_cli.tasks.holdout import hold_out_dev
from albert_cli.tasks.input_lines import first_of
from albert_cli.text.records import parse_json_object

CONLL_SUFFIXES = (".conll", ".txt", ".bio", ".iob", ".tsv")
_NAMES = {"train": ("train",), "dev": ("dev", "valid", "validation", "testa"), "test": ("test", "testb")}
_TOKENS = ("tokens", "words")
_TAGS = ("tags", "ner_tags", "labels", "ner")
_SPANS = ("entities", "spans", "label", "labels")
_WORD = re.compile(r"\w+|[^\w\s]")
_SHAPE = 'write {"tokens": […], "tags": […]}, or {"text": "…", "entities": [{"start": 0, "end": 5, "label": "PER"}]}'


@dataclass(frozen=True, slots=True)
class TokenExample:
    """A text with the first and end characters of its words, and their BIO tags; None if they are hidden."""

    text: str
    words: tuple[tuple[int, int], ...]
    tags: tuple[str, ...] | None
    id: str


def split_words(text: str, boundaries: Sequence[int] = ()) -> tuple[tuple[int, int], ...]:
    """Return the characters of words and punctuation marks; a word is also split at the given boundaries."""
    words = []
    cuts = sorted(set(boundaries))
    for match in _WORD.finditer(text):
        inside = [cut for cut in cuts if match.start() < cut < match.end()]
        edges = [match.start(), *inside, match.end()]
        words += list(pairwise(edges))
    return tuple(words)


def example_from_tokens(tokens: Sequence[str], tags: Sequence[str] | None, name: str, where: str) -> TokenExample:
    """Join tokens by blanks; raises `InputError` for empty tokens, or for another number of tags."""
    if tags is not None and len(tags) != len(tokens):
        raise InputError(f"{where}: {len(tokens)} tokens and {len(tags)} tags", "give every token a tag")
    words = []
    position = 0
    for token in tokens:
        if not token.strip():
            raise InputError(f"{where}: an empty token", "remove it with its tag")
        words.append((position, position + len(token)))
        position += len(token) + 1
    return TokenExample(" ".join(tokens), tuple(words), None if tags is None else normalize_tags(tags, where), name)


@dataclass(frozen=True)
class TokenFiles:
    """Files with tagged words by split. Without dev data a fraction of train is held out."""

    files: dict[str, str] = field(hash=False)
    holdout: float
    is_single_file: bool = False

    def read(self, task: TaskInfo, split: str, data: str | None = None) -> list[TokenExample]:
        """Read a split. The files are known already, so `data` is ignored."""
        if split in self.files and (split != "train" or "dev" in self.files):
            labeled = split not in task.test_splits
            return read_token_file(Path(self.files[split]), labeled=labeled, tags=task.labels)
        examples = read_token_file(Path(self.files["train"]), tags=task.labels)
        if task.scores_whole_file and self.is_single_file:
            return examples
        units = [str(index) for index in range(len(examples))]
        return hold_out_dev(split, examples, units, self.holdout, self.files["train"], "text", "add a dev file")


def find_token_files(data: str) -> dict[str, str]:
    """Map splits to the files of a folder; a single file is train. Raises `InputError` if there is none."""
    folder = Path(data)
    if folder.is_file():
        return {"train": str(folder)}
    if not folder.is_dir():
        raise InputError(f"{folder}: no such file or directory")
    files: dict[str, str] = {}
    for split, names in _NAMES.items():
        candidates = [folder / (name + suffix) for name in names for suffix in (".jsonl", *CONLL_SUFFIXES)]
        existing = [path for path in candidates if path.is_file()]
        if existing:
            files[split] = str(existing[0])
    if not files:
        message = f"{folder}: holds no train file ({', '.join(('.jsonl', *CONLL_SUFFIXES))})"
        raise InputError(message, "add train.conll or train.jsonl")
    return files


def read_token_file(path: Path, *, labeled: bool = True, tags: Sequence[str] = ()) -> list[TokenExample]:
    """Read all texts of a file by its ending, with tags if `labeled`.

    Raises `InputError` naming file and line, also for a tag that is not among `tags`, if there are any.
    """
    read = _iter_json_examples if path.suffix.lower() == ".jsonl" else _iter_conll_examples
    examples = []
    for example, where in read(path, labeled=labeled):
        for tag in example.tags or ():
            if tags and tag not in tags:
                types = ", ".join(name[2:] for name in tags if name.startswith("B-")) or ", ".join(tags)
                message = f"{where}: the tag {tag!r} is of none of the model's types ({types})"
                raise InputError(message, "correct it, or train on data that have this type")
        examples.append(example)
    if not examples:
        raise InputError(f"{path}: holds no texts", "check that the file is complete")
    return examples


def read_conll_words(path: Path) -> list[TokenExample]:
    """Read the words of a file in CoNLL's columns; there may be tags, which are not read."""
    return [example for example, _ in _iter_conll_examples(path, labeled=False)]


def _iter_conll_examples(path: Path, *, labeled: bool) -> Iterator[tuple[TokenExample, str]]:
    """Yield sentences of lines `TOKEN … TAG` with the place of each: blank lines separate them.

    `-DOCSTART-` lines and comments are skipped.
    """
    tokens: list[str] = []
    tags: list[str] = []
    first_line = 1
    count = 0
    for number, line in enumerate([*read_lines(path), ""], start=1):
        fields = line.split("\t") if "\t" in line else line.split()
        if line.strip() and fields[0] != "-DOCSTART-" and not (line.startswith("# ") and not tokens):
            if labeled and len(fields) < 2:
                hint = "write a token and its tag, and a blank line after a text"
                raise InputError(f"{path}:{number}: one column", hint)
            first_line = first_line if tokens else number
            tokens.append(fields[0].strip())
            tags.append(fields[-1].strip())
        elif tokens:
            where = f"{path}:{first_line}"
            yield example_from_tokens(tokens, tags if labeled else None, str(count), where), where
            tokens = []
            tags = []
            count += 1


def _iter_json_examples(path: Path, *, labeled: bool) -> Iterator[tuple[TokenExample, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path}:{number}"
            values = parse_json_object(line, where, _SHAPE)
            yield parse_token_object(values, str(number - 1), where, labeled=labeled), where


def parse_token_object(values: dict[str, object], name: str, where: str, *, labeled: bool = True) -> TokenExample:
    """Parse an object with tokens and tags, or with a text and spans; without tags if it is not `labeled`."""
    name = str(values.get("id", name))
    tokens = first_of(values, _TOKENS)
    if tokens is not None:
        tags = first_of(values, _TAGS) if labeled else None
        if not _is_text_list(tokens) or (labeled and not _is_text_list(tags)):
            raise InputError(f"{where}: tokens and tags are not lists of texts", _SHAPE)
        return example_from_tokens(_texts(tokens), _texts(tags) if labeled else None, name, where)
    text = values.get("text")
    if not isinstance(text, str):
        raise InputError(f"{where}: neither tokens nor text", _SHAPE)
    if not labeled:
        return TokenExample(text, split_words(text), None, name)
    entities = _parse_spans(first_of(values, _SPANS), len(text), where)
    words = split_words(text, [edge for entity in entities for edge in (entity.start, entity.end)])
    return TokenExample(text, words, entities_to_tags(entities, words, where), name)


def _parse_spans(spans: object, length: int, where: str) -> list[Entity]:
    """Parse spans as objects with `start`, `end` and `label` (`type`), or as lists [start, end, label]."""
    if not isinstance(spans, list):
        raise InputError(f"{where}: no list of entities", _SHAPE)
    entities = []
    for span in spans:
        parts = span
        if isinstance(span, dict):
            parts = [span.get("start"), span.get("end"), span.get("label", span.get("type"))]
        if not isinstance(parts, list) or len(parts) != 3:
            raise InputError(f"{where}: the entity {span!r} has no start, end and label", _SHAPE)
        start, end, kind = parts
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(kind, str):
            raise InputError(f"{where}: the entity {span!r} has no start, end and label", _SHAPE)
        if not 0 <= start < end <= length:
            message = f"{where}: the entity {span!r} is not within the text's {length} characters"
            raise InputError(message, "count characters from 0; the end is the character after the last one")
        entities.append(Entity(start, end, kind))
    return entities


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]
