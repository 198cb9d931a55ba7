"""SQuAD 1.1 and 2.0 (Rajpurkar et al., arXiv 1606.05250 and 1806.03822): questions whose answer is a span of a text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge
from pydantic import AfterValidator, BaseModel, field_validator

from albert_cli import console
from albert_cli.config import PositiveFraction, PositiveInt
from albert_cli.data.pairs import SPECIALS
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.rows import (
    check_unique,
    find_data_file,
    hold_out_dev,
    is_hub_source,
    parse_json_as,
    read_hub_split,
    read_text,
)

Version = Literal["1.1", "2.0"]
_LAYOUT = "the layout is {data: [{title, paragraphs: [{context, qas: [{id, question, answers: […]}]}]}]}"
NOT_FOUND = -1  # the start of an answer that its context does not hold


class Answer(NamedTuple):
    """An answer and its first character's place in the context; `NOT_FOUND` where the context does not hold it."""

    text: str
    start: int

    @property
    def place(self) -> tuple[int, int]:
        """Its first character and the one behind its last, without the blanks around it."""
        return self.start + len(self.text) - len(self.text.lstrip()), self.start + len(self.text.rstrip())


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, with what people answered; no answer where there is none, or where it is hidden."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class SpanSettings:
    """`[span]`, for questions answered by a span of a text; the defaults are the reference's.

    `max_query_length` and `max_answer_length` in tokens; a context that is too long becomes windows, each beginning
    `doc_stride` tokens after the one before. `head`: "linear" is a start and an end logit per token, "beam" finds ends
    for each of the `start_top` best starts and says whether there is an answer; "auto" takes the paper's (linear for
    1.1, beam for 2.0). `n_best` answers are kept of each question, `end_top` ends of each start. A question whose
    null odds exceed `threshold` is left unanswered in 2.0. `holdout` is the part of the articles that is held out
    where there is no dev file.
    """

    max_query_length: PositiveInt = 64
    doc_stride: PositiveInt = 128
    max_answer_length: PositiveInt = 30
    head: Literal["auto", "linear", "beam"] = "auto"
    n_best: PositiveInt = 20
    start_top: PositiveInt = 5
    end_top: PositiveInt = 5
    threshold: Annotated[float, Ge(-math.inf)] = 0.0
    holdout: PositiveFraction = 0.1

    def check(self, max_seq_length: int) -> None:
        """Raise `ConfigError` where windows of that many tokens have no room for the context."""
        if max_seq_length - SPECIALS <= self.max_query_length:
            raise ConfigError(
                f"data.max_seq_length = {max_seq_length} leaves no room beside a question of span.max_query_length = "
                f"{self.max_query_length} tokens",
                "a longer max_seq_length or shorter questions",
            )


@dataclass(frozen=True)
class SquadFiles:
    """The published files or one's own in their layout, or a data set of the Hub with the columns of `squad`.

    Of a folder the files `SPLIT-vVERSION.json` or `SPLIT.json` are taken. Without dev data (or when a single file is
    named) a part `holdout` of the articles is held out, so that no context is in both parts; the paragraphs of the
    only article otherwise.
    """

    hub: str

    def read(self, task: Any, split: str, data: str | None) -> list[Question]:
        source = self.hub if data is None else data
        found = _read_hub(task, split, source) if is_hub_source(source) else self._from_files(task, split, Path(source))
        return _repair_answer_starts(found, source, is_train=split == task.train_split)

    def _from_files(self, task: Any, split: str, data: Path) -> list[Question]:
        train, dev = (_find_file(data, name, task.version) for name in ("train", "dev"))
        path = data if data.is_file() else dev if split == "dev" and dev else train
        path = path or find_data_file(data, (f"{split}-v{task.version}.json", f"{split}.json"), self.hub)
        questions = _parse_file(path, task.version)
        if dev:
            return questions
        by_title = len({q.title for q in questions}) > 1
        units = [q.title if by_title else q.context for q in questions]
        what = "article" if by_title else "context"
        return hold_out_dev(split, questions, units, task.settings.holdout, str(path), what, "put a dev.json beside it")


def _read_hub(task: Any, split: str, source: str) -> list[Question]:
    rows = read_hub_split(source, split.replace("dev", "validation"))
    places = rows.places(("id", "title", "context", "question", "answers"))
    found = []
    for index, row in enumerate(rows.cells):
        id_, title, context, question, answers = (row[place] for place in places)
        text = json.dumps({"id": id_, "question": question, "answers": json.loads(answers or "null")})
        record = parse_json_as(_QuestionRecord, text, rows.where(index), _LAYOUT)
        found.append(record.to_question(context, title, rows.where(index), task.version))
    return found


# ---------------------------------------------------------------- files


def _find_file(data: Path, split: str, version: Version) -> Path | None:
    """The file of a split in a folder, or in its folder `squad`."""
    names = (f"{split}-v{version}.json", f"{split}.json")
    paths = (folder / name for name in names for folder in (data, data / "squad"))
    return next((path for path in paths if path.is_file()), None)


def read_squad_file(path: Path, version: Version | None = None) -> list[Question]:
    """All questions of a file in SQuAD's layout, answered or not; without `version` answers may be missing."""
    return _repair_answer_starts(_parse_file(path, version), str(path), is_train=False)


def _require_text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


_NonBlank = Annotated[str, AfterValidator(_require_text)]


class _AnswerRecord(BaseModel):
    text: _NonBlank
    answer_start: int = NOT_FOUND


class _QuestionRecord(BaseModel):
    id: str | int
    question: _NonBlank
    answers: list[_AnswerRecord] | None = None
    is_impossible: bool | None = None

    @field_validator("answers", mode="before")
    @classmethod
    def _of_the_hub(cls, value: Any) -> Any:
        """There it is a list of texts beside a list of places."""
        if not isinstance(value, dict):
            return value
        return [{"text": t, "answer_start": s} for t, s in zip(value["text"], value["answer_start"], strict=True)]

    def to_question(self, context: str, title: str, where: str, version: Version | None) -> Question:
        """The question itself; raises `InputError` where its answers are not as the version has them."""
        answers, where = self.answers or [], f"{where} (id {self.id})"
        if answers and self.is_impossible:
            hint = "what only looks right is a plausible_answer"
            raise InputError(f"{where}: is_impossible, yet it has answers", hint)
        if not answers and version == "1.1":
            raise InputError(f"{where}: has no answer", "squad2 is the task with unanswerable questions")
        if not answers and version == "2.0" and self.is_impossible is False:
            raise InputError(f"{where}: has no answer, yet is_impossible is false", "correct the one or the other")
        found = tuple(Answer(answer.text, answer.answer_start) for answer in answers)
        return Question(str(self.id), self.question, context, found, title)


class _ParagraphRecord(BaseModel):
    context: _NonBlank
    qas: list[_QuestionRecord]


class _ArticleRecord(BaseModel):
    paragraphs: list[_ParagraphRecord]
    title: str | int | None = None


class _SquadRecord(BaseModel):
    data: list[_ArticleRecord]


def _parse_file(path: Path, version: Version | None) -> list[Question]:
    found = []
    for a, article in enumerate(parse_json_as(_SquadRecord, read_text(path), str(path), _LAYOUT).data):
        title = str(a if article.title is None else article.title)
        for p, paragraph in enumerate(article.paragraphs):
            for q, record in enumerate(paragraph.qas):
                here = f"{path}: data[{a}].paragraphs[{p}].qas[{q}]"
                found.append((record.to_question(paragraph.context, title, here, version), here))
    if not found:
        raise InputError(f"{path}: holds no questions", _LAYOUT)
    check_unique((question.id, where) for question, where in found)
    return [question for question, _ in found]


# ---------------------------------------------------------------- answers that are not where they should be


def _repair_answer_starts(questions: list[Question], origin: str, *, is_train: bool) -> list[Question]:
    """Every answer at its place, or else at the first one of its text; says how many were not where they should be.

    A question to train on whose answers the context does not hold is left out; to be scored it needs only their texts.
    """
    moved = lost = 0
    kept: list[Question] = []
    for question in questions:
        context = question.context
        answers = tuple(
            a if a.start >= 0 and context.startswith(a.text, a.start) else Answer(a.text, context.find(a.text))
            for a in question.answers
        )
        found = tuple(answer for answer in answers if answer.start != NOT_FOUND)
        moved += sum(a.start not in (b.start, NOT_FOUND) for a, b in zip(answers, question.answers, strict=True))
        lost += len(answers) - len(found)
        if found or not answers or not is_train:
            kept.append(replace(question, answers=found if is_train else answers))
    if moved:
        console.info(f"{origin}: {moved:,} answers are not at their answer_start; the first place is taken")
    if lost:
        console.warn(f"{origin}: {lost:,} answers are not in their contexts" + (", left out" if is_train else ""))
    if not kept:
        raise InputError(f"{origin}: no question to train on has an answer in its context", "is it the right file?")
    return kept
