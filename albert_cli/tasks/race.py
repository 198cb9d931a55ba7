"""RACE (Lai et al., arXiv 1704.04683): questions of school examinations about a passage, four options each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from albert_cli.errors import InputError
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.rows import (
    check_unique,
    find_data_file,
    is_hub_source,
    parse_json_as,
    read_hub_split,
    read_lines,
    read_text,
)
from albert_cli.text.records import parse_json

RACE_ON_HUB = "hf:ehovy/race"
OPTION_LETTERS = ("A", "B", "C", "D")
_SHAPE = 'a passage is {"article", "questions", "options", "answers", "id"}'


@dataclass(frozen=True)
class RaceFiles:
    """`SPLIT/LEVEL/*.txt`, one JSON object per passage, or per line of `SPLIT/LEVEL/all.txt`; else the Hub."""

    levels: tuple[str, ...]

    def read(self, task: Choice, split: str, data: str | None) -> list[ChoiceExample]:
        source = RACE_ON_HUB if data is None else data
        read = self._from_hub if is_hub_source(source) else self._from_folder
        examples = list(read(task, split, source))
        if not examples:
            raise InputError(f"{source}: {split} holds no questions", _SHAPE)
        return examples

    def _from_folder(self, task: Choice, split: str, data: str) -> Iterator[ChoiceExample]:
        for level in self.levels:
            others = [name for name in self.levels if Path(data, split, name).is_dir()]
            hint = f"the task race_{others[0]} needs {others[0]} alone" if others else None
            folder = find_data_file(Path(data), (f"{split}/{level}", f"RACE/{split}/{level}"), RACE_ON_HUB, hint)
            found = [
                (parse_json_as(_PassageRecord, text, where, _SHAPE), where) for text, where in _iter_passages(folder)
            ]
            check_unique((record.id or where, where) for record, where in found)
            for record, where in found:
                yield from _iter_questions(task, split, record, level, where)

    def _from_hub(self, task: Choice, split: str, source: str) -> Iterator[ChoiceExample]:
        config = self.levels[0] if len(self.levels) == 1 else "all"
        rows = read_hub_split(
            f"{source}:{config}" if source == RACE_ON_HUB else source, split.replace("dev", "validation")
        )
        places = rows.places(("example_id", "article", "question", "options", "answer"))
        times: dict[str, int] = {}
        for i, row in enumerate(rows.cells):
            passage, article, question, options, answer = (row[place] for place in places)
            number = times[passage] = times.get(passage, -1) + 1
            # Passages are called "high12.txt": the level is the name's beginning.
            level = next((known for known in self.levels if passage.startswith(known)), "")
            found = _require_four_options(parse_json(options, rows.where(i), _SHAPE), rows.where(i))
            label = int(task.parse_label(answer, rows.where(i))) if answer or split != "test" else None
            yield ChoiceExample(f"{passage}:{number}", article, question, found, label, level)


def _iter_passages(folder: Path) -> Iterator[tuple[str, str]]:
    """(JSON, where it stands) of each passage."""
    if (path := folder / "all.txt").is_file():  # what the reference reads: all passages of a level, one per line
        lines = enumerate(read_lines(path), start=1)
        yield from ((line, f"{path}:{number}") for number, line in lines if line.strip())
        return
    paths = sorted(folder.glob("*.txt"), key=lambda p: (int(p.stem) if p.stem.isdecimal() else -1, p.name))
    if not paths:
        raise InputError(f"{folder}: holds no .txt files", "a passage each, as RACE is published")
    yield from ((read_text(path), str(path)) for path in paths)


class _PassageRecord(BaseModel):
    """A passage with its questions, as its file has it; the answers of a test set may be hidden."""

    article: str
    questions: list[str]
    options: list[list[str]]
    answers: list[str] | None = None
    id: str | None = None


def _iter_questions(
    task: Choice, split: str, record: _PassageRecord, level: str, where: str
) -> Iterator[ChoiceExample]:
    if record.answers is None and split not in task.test_splits:
        raise InputError(f"{where}: no answers", _SHAPE)
    answers = [None] * len(record.questions) if record.answers is None else record.answers
    if not len(record.questions) == len(record.options) == len(answers):
        counts = f"{len(record.questions)} questions, {len(record.options)} lists of options, {len(answers)} answers"
        raise InputError(f"{where}: {counts}", "one of each for a question")
    for i, (question, options, answer) in enumerate(zip(record.questions, record.options, answers, strict=True)):
        there = f"{where}: question {i + 1}"
        label = None if answer is None else int(task.parse_label(answer, there))
        yield ChoiceExample(
            f"{record.id or where}:{i}", record.article, question, _require_four_options(options, there), label, level
        )


def _require_four_options(options: list[str], where: str) -> tuple[str, ...]:
    if len(options) != len(OPTION_LETTERS):
        hint = 'table.kind = "choice" takes others'
        raise InputError(f"{where}: {len(options)} options instead of {len(OPTION_LETTERS)}", hint)
    return tuple(options)


# As a whole, scored by level too, and each of its levels alone, which models of the whole answer too.
RACE: dict[str, Choice] = {
    name: Choice(
        name=name,
        title=title,
        labels=OPTION_LETTERS,
        metrics=("accuracy", *(f"{level}_accuracy" for level in levels if len(levels) > 1)),
        source=RaceFiles(levels),
        classifier_of=None if name == "race" else "race",
    )
    for name, title, levels in (
        ("race", "RACE", ("middle", "high")),
        ("race_middle", "RACE, middle school", ("middle",)),
        ("race_high", "RACE, high school", ("high",)),
    )
}
