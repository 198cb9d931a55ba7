"""RACE (Lai et al., arXiv 1704.04683): questions of school examinations about a passage, four options each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli.errors import InputError, MissingData
from albert_cli.tasks.hub import is_hub, read_hub
from albert_cli.tasks.rows import check_folder, read_lines, read_text
from albert_cli.tasks.task import ChoiceExample, Task

HUB = "hf:ehovy/race"
LETTERS = ("A", "B", "C", "D")
_SHAPE = 'a passage is {"article", "questions", "options", "answers", "id"}'
_CONCATENATED = "all.txt"  # what the reference reads: all passages of a level, one a line


@dataclass(frozen=True)
class RaceFiles:
    """`SPLIT/LEVEL/*.txt`, a passage each as one JSON object, or one a line in `SPLIT/LEVEL/all.txt`; else the Hub."""

    levels: tuple[str, ...]

    def read(self, task: Task, split: str, data: str | None) -> list[ChoiceExample]:
        """All questions of a split. Raises `InputError` naming file, line and question for data that do not fit."""
        if data is None or is_hub(data):
            examples = self._from_hub(task, split, data or HUB)
        else:
            examples = list(self._from_folder(task, split, Path(data)))
        if not examples:
            raise InputError(f"{data or HUB}: {split} holds no questions", _SHAPE)
        return examples

    def _from_folder(self, task: Task, split: str, data: Path) -> Iterator[ChoiceExample]:
        for level in self.levels:
            folder = _level_folder(data, split, level, self.levels)
            seen: dict[str, str] = {}
            for text, where in _passages(folder):
                record = _object(text, where)
                name = str(record.get("id", where))
                if (before := seen.setdefault(name, where)) != where:
                    raise InputError(f"{where}: the id {name!r} is that of {before} too", "give each passage its own")
                yield from _questions(task, split, record, name, level, where)

    def _from_hub(self, task: Task, split: str, source: str) -> list[ChoiceExample]:
        config = self.levels[0] if len(self.levels) == 1 else "all"
        rows = read_hub(f"{source}:{config}" if source == HUB else source, split.replace("dev", "validation"))
        wanted = ("example_id", "article", "question", "options", "answer")
        missing = [name for name in wanted if name not in rows.columns]
        if missing:
            there = ", ".join(rows.columns)
            raise InputError(f"{rows.origin}: no column {missing[0]!r}; it has {there}", f"wanted: {', '.join(wanted)}")
        places = [rows.columns.index(name) for name in wanted]
        times: dict[str, int] = {}
        examples = []
        for i, row in enumerate(rows.cells):
            passage, article, question, options, answer = (row[place] for place in places)
            number = times[passage] = times.get(passage, -1) + 1
            # Passages are called "high12.txt": the level is the name's beginning.
            level = next((known for known in self.levels if passage.startswith(known)), "")
            found = _options(_parsed(options, rows.where(i)), rows.where(i))
            label = int(task.parse_label(answer, rows.where(i))) if answer or split != "test" else None
            examples.append(ChoiceExample(f"{passage}:{number}", article, question, found, label, level))
        return examples


def _level_folder(data: Path, split: str, level: str, levels: Sequence[str]) -> Path:
    check_folder(data, f"{split}/{level}/")
    for folder in (data / split / level, data / "RACE" / split / level):
        if folder.is_dir():
            return folder
    others = [name for name in levels if (data / split / name).is_dir()]
    hint = f"without --data it is read from the Hugging Face Hub ({HUB})"
    raise MissingData(
        f"{data}: {split}/{level} is not there",
        f"the task race_{others[0]} needs {others[0]} alone" if others else hint,
    )


def _passages(folder: Path) -> Iterator[tuple[str, str]]:
    """(JSON, where it stands) of each passage."""
    if (path := folder / _CONCATENATED).is_file():
        lines = enumerate(read_lines(path), start=1)
        yield from ((line, f"{path}:{number}") for number, line in lines if line.strip())
        return
    paths = sorted(folder.glob("*.txt"), key=lambda p: (int(p.stem) if p.stem.isdecimal() else -1, p.name))
    if not paths:
        raise InputError(f"{folder}: holds no .txt files", "a passage each, as RACE is published")
    yield from ((read_text(path), str(path)) for path in paths)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {error}", _SHAPE) from None


def _object(text: str, where: str) -> Mapping[str, Any]:
    record = _parsed(text, where)
    if not isinstance(record, dict):
        raise InputError(f"{where}: not a JSON object", _SHAPE)
    return record


def _questions(
    task: Task, split: str, record: Mapping[str, Any], name: str, level: str, where: str
) -> Iterator[ChoiceExample]:
    article, questions, options = (record.get(key) for key in ("article", "questions", "options"))
    is_hidden = "answers" not in record and split in task.test_splits
    answers = record.get("answers")
    if is_hidden and isinstance(questions, list):
        answers = [None] * len(questions)
    for key, value in (("article", article), ("questions", questions), ("options", options), ("answers", answers)):
        if not isinstance(value, str if key == "article" else list):
            raise InputError(f"{where}: no {key}", _SHAPE)
    assert isinstance(questions, list) and isinstance(options, list) and isinstance(answers, list)
    if not len(questions) == len(options) == len(answers):
        counts = f"{len(questions)} questions, {len(options)} lists of options, {len(answers)} answers"
        raise InputError(f"{where}: {counts}", "one of each for a question")
    for i, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True)):
        there = f"{where}: question {i + 1}"
        if not isinstance(question, str):
            raise InputError(f"{there}: is not text", _SHAPE)
        label = None if answer is None and is_hidden else int(task.parse_label(str(answer), there))
        yield ChoiceExample(f"{name}:{i}", str(article), question, _options(choices, there), label, level)


def _options(choices: object, where: str) -> tuple[str, ...]:
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"{where}: the options are not a list of texts", '["…", "…", "…", "…"]')
    if len(choices) != len(LETTERS):
        raise InputError(
            f"{where}: {len(choices)} options instead of {len(LETTERS)}", 'table.kind = "choice" takes others'
        )
    return tuple(choices)


def race_tasks() -> list[Task]:
    """RACE as a whole, scored by level too, and each of its levels alone, which models of the whole answer too."""
    levels = ("middle", "high")
    by_level = tuple(f"{level}_accuracy" for level in levels)
    whole = Task("race", "RACE", LETTERS, ("accuracy", *by_level), 2, RaceFiles(levels), kind="choice")
    parts = [
        Task(
            f"race_{level}", f"RACE, {level} school", LETTERS, ("accuracy",), 2, RaceFiles((level,)), kind="choice",
            classifier_of="race",
        )
        for level in levels
    ]  # fmt: skip
    return [whole, *parts]
