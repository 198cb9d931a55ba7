"""Read texts with tagged words: CoNLL columns, JSON lines with tokens and tags, and JSON lines with spans of entities.

A file has a text, which `split_words` divides into words, or it has the words, which `join_tokens` makes a text. The
tags or spans of the file become a BIO tag for each word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from albert_cli.errors import InputError
from albert_cli.formatting import count_of
from albert_cli.tasks.base import TaskInfo
from albert_cli.tasks.conll import CONLL_SUFFIXES, ConllFile, have_blanks, read_conll
from albert_cli.tasks.data_files import all_rejected_error, describe_rejected, find_split_files, is_rejected, read_lines
from albert_cli.tasks.delimited import format_suffix
from albert_cli.tasks.entities import (
    OUTSIDE,
    Entity,
    count_entities_cutting_words,
    entities_to_tags,
    entity_types,
    normalize_tags,
)
from albert_cli.tasks.holdout import SplitFiles
from albert_cli.tasks.input_lines import first_of, row_id
from albert_cli.tasks.text_table import check_unique
from albert_cli.text.records import JsonObject, parse_json_object, replace_json_surrogates
from albert_cli.text.sources import JSON_LINES_ENDINGS
from albert_cli.text.words import is_unspaced, need_blank, tagging_pattern

_JSON_SUFFIXES = (*JSON_LINES_ENDINGS, ".json")  # JSON lines
_TABLE_SUFFIXES = (".csv", ".parquet", ".arrow", ".feather", ".xlsx", ".xls", ".ods")  # not read
_FILE_NAMES = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid", "val", "testa"),
    "test": ("test", "testb"),
}
# The usual keys of an object; the first that exists is taken.
_TOKEN_KEYS = ("tokens", "words")
_TAG_KEYS = ("tags", "ner_tags", "labels", "ner")
_SPAN_KEYS = ("entities", "spans", "label", "labels")
_LISTED_FILES = 8  # names of existing files in an error
_SHAPE = 'write {"tokens": […], "tags": […]}, or {"text": "…", "entities": [{"start": 0, "end": 5, "label": "PER"}]}'
_WRITE_JSON_LINES = 'write train.jsonl, in pandas with to_json(…, orient="records", lines=True)'
_OFFSETS = "count characters from 0, an emoji as one (not two UTF-16 units); the end is the character after the last"


@dataclass(frozen=True, slots=True)
class TokenExample:
    """A text, the first and the end index of each word's characters, and each word's BIO tag (None: hidden tags)."""

    text: str
    words: tuple[tuple[int, int], ...]
    tags: tuple[str, ...] | None
    id: str


def split_words(text: str) -> tuple[tuple[int, int], ...]:
    """Return the first and the end index of each word of `tagging_pattern`."""
    return tuple(match.span() for match in tagging_pattern().finditer(text))


def example_from_tokens(
    tokens: Sequence[str], tags: Sequence[str] | None, name: str, where: str, *, has_blanks: bool
) -> TokenExample:
    """Return the example with id `name` of tokens that `join_tokens` makes a text; blank tokens are no words.

    `tags` may be in any scheme that `normalize_tags` reads. Raises `InputError`, with a message that begins with
    `where`, for an empty token, for a blank one without `has_blanks`, for an entity that begins with a blank, and if
    the numbers of tags and tokens differ.
    """
    if tags is not None and len(tags) != len(tokens):
        raise InputError(f"{where}: {len(tokens)} tokens and {len(tags)} tags", "give every token a tag")
    if not all(token.strip() or (token and has_blanks) for token in tokens):
        raise InputError(f"{where}: an empty token", "remove it with its tag")
    text, positions = join_tokens(tokens, has_blanks=has_blanks)
    word_indices = [index for index, token in enumerate(tokens) if token.strip()]
    words = tuple((positions[index], positions[index] + len(tokens[index])) for index in word_indices)
    if tags is None:
        return TokenExample(text, words, None, name)
    bio_tags = normalize_tags(tags, where)
    for token, tag in zip(tokens, bio_tags, strict=True):
        if not token.strip() and tag.startswith("B-"):
            raise InputError(f"{where}: a blank begins an entity: its tag is {tag!r}", "give the blank the tag O")
    return TokenExample(text, words, tuple(bio_tags[index] for index in word_indices), name)


def join_tokens(tokens: Sequence[str], *, has_blanks: bool) -> tuple[str, list[int]]:
    """Return the text of tokens, and the index of each token's first character.

    With `has_blanks`, blank tokens are the text's only blanks. Otherwise, tokens are joined by blanks, but not two
    neighboring characters of scripts without spaces, nor tokens of one character in a text with such a script.
    """
    is_character_text = all(len(token) == 1 for token in tokens) and any(map(is_unspaced, tokens))
    text = ""
    positions = []
    for token in tokens:
        is_joined = has_blanks or is_character_text or not text or not need_blank(text[-1], token[0])
        text += token if is_joined else f" {token}"
        positions.append(len(text) - len(token))
    return text, positions


@dataclass(frozen=True)
class TokenFiles(SplitFiles):
    """A reader of files with tagged words; without a dev file, the fraction `holdout` of the texts of train is dev."""

    unit_name = "text"
    dev_remedy = "add a dev file"
    holdout: float

    def read(self, task: TaskInfo, split: str, data: str | None) -> list[TokenExample]:
        """Read the texts of a split as `SplitFiles.read_split` does; `data` is ignored, because `files` names them."""
        return self.read_split(task, split, self._read_file, self.holdout)

    def _read_file(self, task: TaskInfo, split: str) -> list[TokenExample]:
        path = Path(self.files[split])
        is_labeled = split not in task.test_splits
        return read_token_file(path, labeled=is_labeled, unique_ids=self.is_predicted(split), tags=task.labels)


def find_token_files(data: str) -> dict[str, str]:
    """Map splits to the files of the folder `data`; if `data` is a file, it is train.

    A file with an unknown ending, such as `eng.train`, is read as columns of words. Raises `InputError` if `data` does
    not exist, is a table of another format, is a folder without a split's file, or has two files for a split.
    """
    path = Path(data)
    suffixes = (*_JSON_SUFFIXES, *CONLL_SUFFIXES)
    if path.is_file():
        if format_suffix(path.name) in _TABLE_SUFFIXES:
            message = f"{path}: not a file of tagged words ({', '.join(suffixes)})"
            raise InputError(message, f"rename it to .conll if it has columns of words, or {_WRITE_JSON_LINES}")
        return {"train": str(path)}
    files = find_split_files(path, _FILE_NAMES, suffixes, "keep one of them in the folder")
    if not files:
        file_names = sorted(file.name for file in path.iterdir() if file.is_file())
        listed = f", only {', '.join(file_names[:_LISTED_FILES])}" if file_names else ""
        message = f"{path}: holds no train file ({', '.join(suffixes)}){listed}"
        raise InputError(message, _suggest_renaming(file_names) or f"add train.conll, or {_WRITE_JSON_LINES}")
    return files


def _suggest_renaming(names: Sequence[str]) -> str:
    """Return how to rename files that are named after a split, such as `train` and `eng.testa`; "" without any."""
    renamings = []
    for name in names:
        stem = name.lower().removesuffix(".conllu").removesuffix(".iob2")
        last_part = re.split(r"[._-]", stem)[-1]
        renamings += [f"{name} to {split}.conll" for split, words in _FILE_NAMES.items() if last_part in words]
    return f"rename {', '.join(renamings)}" if renamings else ""


def read_token_file(
    path: Path, *, labeled: bool = True, unique_ids: bool = False, tags: Sequence[str] = ()
) -> list[TokenExample]:
    """Read all texts of a file in the format of its ending, with their tags if `labeled`.

    Raises `InputError` naming file and line if the file is damaged, for a tag whose type is not in `tags` unless `tags`
    is empty, and with `unique_ids` for a repeated id.
    """
    iter_examples = _iter_json_examples if format_suffix(path.name) in _JSON_SUFFIXES else _iter_conll_examples
    types = entity_types(tags)
    examples = []
    located_ids = []
    for example, lines in iter_examples(path, labeled=labeled):
        located_ids.append((example.id, f"{path}:{lines[0]}"))
        for tag, number in zip(example.tags or (), lines, strict=False):  # without tags there is nothing to check
            if tags and tag != OUTSIDE and tag[2:] not in types:
                message = f"{path}:{number}: the tag {tag!r} is of none of the model's types ({', '.join(types)})"
                raise InputError(message, "correct it, or train on data that have this type")
        examples.append(example)
    if not examples:
        raise InputError(f"{path}: holds no texts", "check that the file is complete")
    if unique_ids:
        check_unique(located_ids)
    return examples


def describe_file(path: Path, *, labeled: bool = True) -> list[str]:
    """Return notes on the columns and prefixes that are not read, and on texts that training and scoring leave out.

    If `labeled`, further notes have the number of entities that begin or end inside a word, and of texts without a list
    of entities.
    """
    if format_suffix(path.name) not in _JSON_SUFFIXES:
        return read_conll(path).notes
    rejected = 0
    cutting = 0
    without_list = 0
    objects, lines_without_list = _read_json_objects(path)
    for values, number in objects:
        text = values.get("text")
        if is_rejected(values.get("answer")):
            rejected += 1
        elif labeled and isinstance(text, str) and not _has_tokens(values):
            entities = _parse_spans(first_of(values, _SPAN_KEYS), text, f"{path}:{number}")
            cutting += count_entities_cutting_words(entities, split_words(text))
            without_list += number in lines_without_list
    notes = []
    if rejected:
        notes.append(describe_rejected(str(path), rejected))
    if cutting:
        spans = count_of(cutting, "span")
        notes.append(f"{path}: learned, predicted and scored as whole words: {spans} with an edge in a word")
    if without_list:
        texts = count_of(without_list, "text")
        notes.append(f"{path}: learned and scored as texts without entities: {texts} without a list of them")
    return notes


def read_conll_words(path: Path) -> tuple[list[TokenExample], list[str]]:
    """Read the words of a CoNLL file, and notes on the columns and prefixes that are not read; tags are not read."""
    file = read_conll(path)
    return [example for example, _ in _conll_examples(path, file, labeled=False)], file.notes


def _iter_conll_examples(path: Path, *, labeled: bool) -> Iterator[tuple[TokenExample, Sequence[int]]]:
    """Yield the texts of a CoNLL file, each with the number of every word's line; tags are read if `labeled`."""
    return _conll_examples(path, read_conll(path), labeled=labeled)


def _conll_examples(path: Path, file: ConllFile, *, labeled: bool) -> Iterator[tuple[TokenExample, Sequence[int]]]:
    """Yield the texts of a CoNLL file that has been read from `path`, as `_iter_conll_examples` does."""
    for index, rows in enumerate(file.texts):
        first_line = rows[0].number
        tokens = [row.token for row in rows]
        tags = [row.parse_tag(path) for row in rows] if labeled else None
        example = example_from_tokens(tokens, tags, str(index + 1), f"{path}:{first_line}", has_blanks=file.has_blanks)
        yield example, [row.number for row in rows if not row.token.isspace()] or [first_line]


def _iter_json_examples(path: Path, *, labeled: bool) -> Iterator[tuple[TokenExample, Sequence[int]]]:
    """Yield the texts of JSON lines, each with the number of every word's line, which is that of the text.

    A text without words has one line number, too. If `labeled`, rejected texts are left out; if no other text remains,
    `InputError` is raised.
    """
    objects, _ = _read_json_objects(path)
    if labeled and objects and all(is_rejected(values.get("answer")) for values, _ in objects):
        raise all_rejected_error(str(path))
    for values, number in objects:
        if not labeled or not is_rejected(values.get("answer")):
            example = parse_token_object(values, str(number), f"{path}:{number}", labeled=labeled)
            yield example, [number] * max(1, len(example.words))


def _read_json_objects(path: Path) -> tuple[list[tuple[JsonObject, int]], set[int]]:
    """Read the objects of JSON lines, each with the number of its line, and the lines of texts without a list of spans.

    If other texts have such a list, these texts get an empty one, because Label Studio leaves out the key of a text
    without entities. Otherwise they do not change.
    """
    objects = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            values = parse_json_object(line, f"{path}:{number}", _SHAPE)
            objects.append((replace_json_surrogates(values), number))
    texts = [(values, number) for values, number in objects if not _has_tokens(values)]
    without_list = [(values, number) for values, number in texts if set(_SPAN_KEYS).isdisjoint(values)]
    if len(without_list) < len(texts):
        for values, _ in without_list:
            values["entities"] = []
    return objects, {number for _, number in without_list}


def parse_token_object(values: JsonObject, default_id: str, where: str, *, labeled: bool) -> TokenExample:
    """Parse an object with tokens and tags, or with a text and spans; tags and spans are read only if `labeled`.

    Next to a text, tokens that are no texts are ignored: Prodigy's are objects with the positions of the text's words.
    """
    name = row_id(values, default_id)
    tokens = first_of(values, _TOKEN_KEYS)
    text = values.get("text")
    if _has_tokens(values):
        tags = first_of(values, _TAG_KEYS) if labeled else []
        if isinstance(tags, list) and tags and all(isinstance(tag, int) for tag in tags):
            hint = 'write the names of the tags (in `datasets`: features["ner_tags"].feature.int2str(tags))'
            raise InputError(f"{where}: the tags are numbers", hint)
        if not _is_text_list(tokens) or not _is_text_list(tags):
            raise InputError(f"{where}: tokens and tags are not lists of texts", _SHAPE)
        return example_from_tokens(tokens, tags if labeled else None, name, where, has_blanks=have_blanks(tokens))
    if not isinstance(text, str):
        raise InputError(f"{where}: neither tokens nor text", _SHAPE)
    if not labeled:
        return TokenExample(text, split_words(text), None, name)
    entities = _parse_spans(first_of(values, _SPAN_KEYS), text, where)
    words = split_words(text)
    return TokenExample(text, words, entities_to_tags(entities, words, where), name)


def _has_tokens(values: JsonObject) -> bool:
    """Return True if an object's words are its tokens; in an object with a text, only tokens that are strings count."""
    tokens = first_of(values, _TOKEN_KEYS)
    return tokens is not None and (_is_text_list(tokens) or not isinstance(values.get("text"), str))


def _parse_spans(spans: object, text: str, where: str) -> list[Entity]:
    """Parse spans as objects with `start`, `end` and `label` (`type`), or as lists [start, end, label].

    An object may also have doccano's `start_offset` and `end_offset`, or Label Studio's `labels` with one label.
    Raises `InputError` for anything else, for an empty label, for a span beyond the text, and for a span whose key
    `text` has other letters than the span.
    """
    if not isinstance(spans, list):
        raise InputError(f"{where}: no list of entities", _SHAPE)
    entities = []
    for span in spans:
        match span:
            case {"start": int(start), "end": int(end), "label": str(kind)} | [int(start), int(end), str(kind)]:
                entity = Entity(start, end, kind)
            case {"start": int(start), "end": int(end), "type": str(kind)} if "label" not in span:
                entity = Entity(start, end, kind)
            case {"start_offset": int(start), "end_offset": int(end), "label": str(kind)}:
                entity = Entity(start, end, kind)
            case {"start": int(start), "end": int(end), "labels": [str(kind)]} if "label" not in span:
                entity = Entity(start, end, kind)
            case _:
                raise InputError(f"{where}: the entity {span!r} has no start, end and label", _SHAPE)
        if not entity.type.strip():
            raise InputError(f"{where}: the entity {span!r} has an empty label", 'write its type, such as "PER"')
        if not 0 <= entity.start < entity.end <= len(text):
            raise InputError(f"{where}: the entity {span!r} is not within the text's {len(text)} characters", _OFFSETS)
        characters = text[entity.start : entity.end]
        if isinstance(span, dict) and not _are_same_words(span.get("text"), characters):
            position = f"characters {entity.start} to {entity.end} are {characters!r}"
            raise InputError(f"{where}: the entity's text is {span['text']!r}, but {position}", _OFFSETS)
        entities.append(entity)
    return entities


def _are_same_words(span_text: object, characters: str) -> bool:
    """Return True if a span's text has the same letters and digits as its characters, or is no text.

    Label Studio writes a line end in a span's text as a backslash and the letter n.
    """
    if not isinstance(span_text, str):
        return True
    return re.sub(r"\\n|\W", "", span_text) == re.sub(r"\\n|\W", "", characters)


def _is_text_list(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
