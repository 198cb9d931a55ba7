"""RACE (Lai et al., arXiv 1704.04683): questions about a passage with four options, from school examinations.

The module defines the tasks, and reads the questions from the published files, from the Hub, or from files to predict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from albert_cli.errors import InputError
from albert_cli.tasks.base import TaskInfo
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.data_files import find_data_file, read_lines, read_text, validate_as
from albert_cli.tasks.hub_data import is_hub_source, read_hub_split
from albert_cli.tasks.text_table import check_unique
from albert_cli.text.records import parse_repaired_json

RACE_ON_HUB = "hf:ehovy/race"
LEVELS = ("middle", "high")  # the schools of the examinations; `ChoiceExample.group` is a question's level
OPTION_LETTERS = ("A", "B", "C", "D")
_PASSAGE_FORMAT = 'a passage is {"article", "questions", "options", "answers", "id"}'
_HUB_COLUMNS = ("example_id", "article", "question", "options", "answer")


@dataclass(frozen=True)
class RaceFiles:
    """A reader of some levels of RACE, from files or from the Hub.

    The files are `SPLIT/LEVEL/*.txt` with one passage each, or `SPLIT/LEVEL/all.txt` with a passage on each line.
    """

    levels: tuple[str, ...]

    def read(self, task: TaskInfo, split: str, data: str | None) -> list[ChoiceExample]:
        """Read the questions of a split, level by level; `data` is a folder, `hf:NAME`, or None for RACE of the Hub."""
        source = RACE_ON_HUB if data is None else data
        if is_hub_source(source):
            examples = list(self._iter_hub_questions(task, split, source))
        else:
            examples = self._read_folder(task, split, Path(source))
        if not examples:
            raise InputError(f"{source}: {split} holds no questions", _PASSAGE_FORMAT)
        return examples

    def _read_folder(self, task: TaskInfo, split: str, data: Path) -> list[ChoiceExample]:
        """Read the questions of all levels in the folder `data`; raises `InputError` for a repeated passage id."""
        passages = []
        for level in self.levels:
            texts = _iter_texts(self._find_level(split, data, level))
            passages += [(passage, where, level) for passage, where in _parse_passages(texts)]
        check_unique((passage.id or where, where) for passage, where, _ in passages)
        examples: list[ChoiceExample] = []
        for passage, where, level in passages:
            examples += _iter_questions(task, split, passage, level, where)
        return examples

    def _find_level(self, split: str, data: Path, level: str) -> Path:
        """Return the folder of a level; the error for a missing level names one that exists."""
        existing = [name for name in self.levels if (data / split / name).is_dir()]
        hint = f"use the task race_{existing[0]} for {existing[0]} alone" if existing else None
        return find_data_file(data, (f"{split}/{level}", f"RACE/{split}/{level}"), RACE_ON_HUB, hint)

    def _iter_hub_questions(self, task: TaskInfo, split: str, source: str) -> Iterator[ChoiceExample]:
        """Yield the questions of a data set of the Hub, which has a question and its passage in each row."""
        if source == RACE_ON_HUB:  # its configurations are the levels and "all"
            config = self.levels[0] if len(self.levels) == 1 else "all"
            source = f"{source}:{config}"
        table = read_hub_split(source, split.replace("dev", "validation"))
        columns = table.column_indices(_HUB_COLUMNS)
        question_counts: Counter[str] = Counter()  # by passage
        for index, row in enumerate(table.cells):
            where = table.where(index)
            passage_id, article, question, options_json, answer = (row[column] for column in columns)
            question_id = f"{passage_id}:{question_counts[passage_id]}"
            question_counts[passage_id] += 1
            # Passages have names such as "high12.txt", which begin with the level.
            level = next((level for level in self.levels if passage_id.startswith(level)), "")
            options = parse_repaired_json(options_json, where, _PASSAGE_FORMAT)
            values = {"article": article, "questions": [question], "options": [options]}
            passage = validate_as(_PassageRecord, values, where, _PASSAGE_FORMAT)
            texts = _require_four_options(passage.options[0], where)
            is_hidden = split in task.test_splits and not answer
            label = None if is_hidden else int(task.parse_label(answer, where))
            yield ChoiceExample(question_id, article, question, texts, label, level)


def read_race_passages(path: Path) -> list[ChoiceExample] | None:
    """Read the questions of a file or folder to predict; return None for a file that holds no passage.

    A file holds a passage, or one on each line. A folder holds a file for each passage, `all.txt`, or a folder for each
    level. The answers may be hidden. Raises `InputError` for a folder without passages.
    """
    if path.is_dir():
        folders = [path / level for level in LEVELS if (path / level).is_dir()] or [path]
        texts = [text for folder in folders for text in _iter_texts(folder)]
    else:
        texts = _split_passage_file(path)
        if not texts:
            return None
    examples: list[ChoiceExample] = []
    for passage, where in _parse_passages(texts):
        # Read as the split "test", because only its answers may be hidden.
        examples += _iter_questions(RACE["race"], "test", passage, "", where)
    return examples


# ---------------------------------------------------------------- passages

# A passage is first a pair: its JSON text, and its file and line for messages.


def _split_passage_file(path: Path) -> list[tuple[str, str]]:
    """Return the passages of a file: a JSON object, or one on each line.

    A file holds passages if it begins with a JSON object and has the key `questions`. For another file, and for a pipe,
    which can be read only once, the list is empty.
    """
    if not path.is_file():
        return []
    text = read_text(path)
    if not text.lstrip().startswith("{") or '"questions"' not in text:
        return []
    lines = [(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line, _ in lines):
        return lines
    return [(text, str(path))]


def _iter_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the passages of a level's folder: the lines of `all.txt`, or a passage from each other `.txt` file."""
    if (path := folder / "all.txt").is_file():  # the layout of ALBERT's released code, with all passages of a level
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                yield line, f"{path}:{number}"
        return
    paths = sorted(folder.glob("*.txt"), key=_passage_order)
    if not paths:
        raise InputError(f"{folder}: holds no .txt files", "provide a file per passage, as RACE is published")
    for path in paths:
        yield read_text(path), str(path)


def _passage_order(path: Path) -> tuple[int, str]:
    """Return the sort key of a passage's file: other names before numbers, numbers by size (2.txt before 10.txt)."""
    return int(path.stem) if path.stem.isdecimal() else -1, path.name


class _PassageRecord(BaseModel):
    """A passage with its questions, as in its file; the answers of a test set may be hidden."""

    article: str
    questions: list[str]
    options: list[list[str]]
    answers: list[str] | None = None
    id: str | None = None


def _parse_passages(texts: Iterable[tuple[str, str]]) -> list[tuple[_PassageRecord, str]]:
    """Parse JSON texts with their file and line; raises `InputError` for a text that is not a passage."""
    passages = []
    for text, where in texts:
        value: object = parse_repaired_json(text, where, _PASSAGE_FORMAT)
        passages.append((validate_as(_PassageRecord, value, where, _PASSAGE_FORMAT), where))
    return passages


def _iter_questions(
    task: TaskInfo, split: str, passage: _PassageRecord, level: str, where: str
) -> Iterator[ChoiceExample]:
    """Yield the questions of a passage; raises `InputError` if questions, options and answers do not match."""
    answers: Sequence[str | None]
    if passage.answers is not None:
        answers = passage.answers
    elif split in task.test_splits:
        answers = [None] * len(passage.questions)
    else:
        raise InputError(f"{where}: no answers", _PASSAGE_FORMAT)
    if not len(passage.questions) == len(passage.options) == len(answers):
        counts = f"{len(passage.questions)} questions, {len(passage.options)} lists of options, {len(answers)} answers"
        raise InputError(f"{where}: {counts}", "give every question a list of options and an answer")
    for index, (question, options, answer) in enumerate(zip(passage.questions, passage.options, answers, strict=True)):
        location = f"{where}: question {index + 1}"
        label = None if answer is None else int(task.parse_label(answer, location))
        texts = _require_four_options(options, location)
        yield ChoiceExample(f"{passage.id or where}:{index}", passage.article, question, texts, label, level)


def _require_four_options(options: list[str], where: str) -> tuple[str, ...]:
    """Return the options; raises `InputError` if there are not four."""
    if len(options) != len(OPTION_LETTERS):
        hint = 'use the task "table" for another number of options'
        raise InputError(f"{where}: {len(options)} options instead of {len(OPTION_LETTERS)}", hint)
    return tuple(options)


# ---------------------------------------------------------------- the tasks


def _race_task(name: str, title: str, levels: tuple[str, ...], metrics: tuple[str, ...]) -> Choice:
    """Return the task of some levels, which accepts models of "race" and of each level."""
    return Choice(
        name=name,
        title=title,
        labels=OPTION_LETTERS,
        metrics=metrics,
        source=RaceFiles(levels),
        classifier_of=None if name == "race" else "race",
        sibling_tasks=("race_middle", "race_high"),
    )


RACE: dict[str, Choice] = {
    "race": _race_task("race", "RACE", LEVELS, ("accuracy", "middle_accuracy", "high_accuracy")),
    "race_middle": _race_task("race_middle", "RACE, middle school", ("middle",), ("accuracy",)),
    "race_high": _race_task("race_high", "RACE, high school", ("high",), ("accuracy",)),
}
