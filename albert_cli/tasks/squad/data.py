"""Read SQuAD 1.1 and 2.0 (Rajpurkar et al., arXiv 1606.05250 and 1806.03822): questions, contexts and answer spans.

Two layouts of files are read. The published layout nests questions in paragraphs and articles. The flat layout, which
the Hub's data sets also have, has one question and its context in each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, field_validator

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.formatting import count_of
from albert_cli.tasks.base import TaskInfo
from albert_cli.tasks.data_files import find_data_file, match_case, read_lines, read_text, validate_as
from albert_cli.tasks.holdout import hold_out_dev
from albert_cli.tasks.hub_data import is_hub_source, read_hub_split
from albert_cli.tasks.squad.settings import SpanSettings, Version
from albert_cli.tasks.text_table import check_unique
from albert_cli.text.records import iter_parquet_rows, parse_repaired_json
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.sources import JSON_LINES_ENDINGS, TextSource

NOT_FOUND = -1  # the start of an answer that the context does not contain, as `str.find` returns it
_PUBLISHED_LAYOUT = "the layout is {data: [{title, paragraphs: [{context, qas: [{id, question, answers: […]}]}]}]}"
_FLAT_LAYOUT = 'a row is {"id", "title", "context", "question", "answers": {"text": […], "answer_start": […]}}'
_HUB_FOLDERS: Mapping[Version, str] = {"1.1": "plain_text", "2.0": "squad_v2"}  # of the Hub's files, by version
_SUFFIXES = (".json", *JSON_LINES_ENDINGS, ".parquet")
_LISTED_FILES = 5  # names of files in an error
_HUB_COLUMNS = ("id", "title", "context", "question", "answers")


class Answer(NamedTuple):
    """An answer, and the index of its first character in the context, or `NOT_FOUND`."""

    text: str
    start: int

    @property
    def span(self) -> tuple[int, int]:
        """The indices of the first character and of the end in the context, without blanks around the answer."""
        leading_blanks = len(self.text) - len(self.text.lstrip())
        return self.start + leading_blanks, self.start + len(self.text.rstrip())


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, which is a paragraph of the article `title`.

    `answers` is empty if the question is unanswerable or its answers are hidden.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class SquadFiles:
    """A reader of files in either layout, or of a data set of the Hub with the columns of `squad`.

    A folder holds `SPLIT-vVERSION.json`, `SPLIT.json`, `SPLIT.jsonl` (`.ndjson`, `.jl`) or `SPLIT.parquet`, or the
    Parquet files of the Hub's data set. The split dev may be called validation. Without a dev file, the fraction
    `settings.holdout` of train's articles is held out as dev, or of its contexts if there is only one article. A single
    file is train for fine-tuning, and is used as a whole for scoring.
    """

    hub: str
    version: Version
    settings: SpanSettings = field(default_factory=SpanSettings)

    def read(self, task: TaskInfo, split: str, data: str | None) -> list[Question]:
        """Read a split; wrong starts of answers are repaired (`_repair_answer_starts`).

        `data` is a folder, a file, `hf:NAME`, or None for the data set `hub`.
        """
        source = self.hub if data is None else data
        if is_hub_source(source):
            questions = list(self._iter_hub_questions(split, source))
        else:
            questions = self._read_files(task, split, Path(source))
        return _repair_answer_starts(questions, source, is_train=split == task.train_split)

    def _read_files(self, task: TaskInfo, split: str, data: Path) -> list[Question]:
        """Read a split from a file or folder; without a dev file, dev is held out of train."""
        path: Path | None
        if data.is_file():
            path = data
            is_dev_held_out = not task.scores_whole_file
        else:
            is_dev_held_out = self._find_file(data, "dev") is None
            path = self._find_file(data, "train" if is_dev_held_out else split)
            if path is None:  # `find_data_file` raises the error that lists the expected names
                hint = self._missing_file_hint(data, split)
                path = find_data_file(data, self._file_names(split), self.hub, hint)
        questions = _read_questions(path, self.version)
        if not is_dev_held_out:
            return questions
        # Questions about the same article are alike, so all of an article's questions go to the same split.
        # A question without a title is alike only to those about the same context.
        units = [question.title or question.context for question in questions]
        unit_name = "article"
        if len({question.title for question in questions}) == 1:
            units = [question.context for question in questions]
            unit_name = "context"
        return hold_out_dev(
            split,
            questions,
            units,
            self.settings.holdout,
            origin=str(path),
            unit_name=unit_name,
            remedy="add a dev.json",
        )

    def _file_names(self, split: str) -> list[str]:
        """Return the names that a split's file may have, the preferred ones first."""
        endings = (f"-v{self.version}.json", *_SUFFIXES, "-00000-of-00001.parquet")
        stems = ("dev", "validation") if split == "dev" else (split,)
        return [stem + ending for stem in stems for ending in endings]

    def _folders(self, data: Path) -> list[Path]:
        """Return the folders that may hold the files: `data`, its subfolder `squad`, and the subfolder of the Hub."""
        return [data, match_case(data, "squad"), data / _HUB_FOLDERS[self.version]]

    def _find_file(self, data: Path, split: str) -> Path | None:
        """Return the file of a split in the folder `data` or its usual subfolders, None if there is none."""
        paths = [match_case(folder, name) for name in self._file_names(split) for folder in self._folders(data)]
        return next((path for path in paths if path.is_file()), None)

    def _missing_file_hint(self, data: Path, split: str) -> str | None:
        """Return the remedy for a folder without a split's file, by the files that it has; None without files."""
        paths = [path for folder in self._folders(data) if folder.is_dir() for path in sorted(folder.iterdir())]
        names = [path.name for path in paths if path.suffix.lower() in _SUFFIXES]
        lowercase = [name.lower() for name in names]
        other_task, other_version = ("squad2", "2.0") if self.version == "1.1" else ("squad1", "1.1")
        if f"{split}-v{other_version}.json" in lowercase and not any(self.version in name for name in names):
            return f"use the task {other_task} for the files of version {other_version}"
        if any(name.startswith(f"{split}-00000-of-") for name in lowercase):
            return f"combine the parts of {split} into {split}.parquet"
        read_names = self._file_names("train") + self._file_names("dev")
        unread = [name for name in names if name.lower() not in read_names]
        if unread:
            return f"rename one of {', '.join(unread[:_LISTED_FILES])} to {split}.json, .jsonl or .parquet"
        return f"add {split}.json" if names else None

    def _iter_hub_questions(self, split: str, source: str) -> Iterator[Question]:
        """Yield the questions of a data set of the Hub; raises `InputError` for a repeated id."""
        table = read_hub_split(source, split.replace("dev", "validation"))
        columns = table.column_indices(_HUB_COLUMNS)
        ids = table.ids(columns[0], must_be_unique=True)
        for index, row in enumerate(table.cells):
            where = table.where(index)
            title, context, question, answers_json = (row[column] for column in columns[1:])
            answers = parse_repaired_json(answers_json, where, _FLAT_LAYOUT) if answers_json else None
            values = {"id": ids[index], "question": question, "answers": answers}
            record = validate_as(_QuestionRecord, values, where, _FLAT_LAYOUT)
            yield record.to_question(context, title, where, self.version)


def read_squad_file(path: Path, version: Version | None = None) -> list[Question]:
    """Read all questions of a file in either layout; if `version` is None, answers may be missing."""
    return _repair_answer_starts(_read_questions(path, version), str(path), is_train=False)


# ---------------------------------------------------------------- records of a file


def _require_text(text: str) -> str:
    """Return the text; raises `ValueError` if it is blank, which pydantic converts into a `ValidationError`."""
    if not text.strip():
        raise ValueError("it is empty")
    return text


_NonBlank = Annotated[str, AfterValidator(_require_text)]


class _AnswerRecord(BaseModel):
    text: _NonBlank
    answer_start: int = NOT_FOUND  # a file may omit it; `_repair_answer_starts` then searches the context


class _QuestionRecord(BaseModel):
    id: str | int
    question: _NonBlank
    answers: list[_AnswerRecord] | None = None
    is_impossible: bool | None = None

    @field_validator("answers", mode="before")
    @classmethod
    def _convert_hub_answers(cls, value: object) -> object:
        """Convert the flat layout's `{"text": […], "answer_start": […]}` into a list with an object per answer."""
        if not isinstance(value, dict):
            return value
        texts = value.get("text")
        starts = value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list):
            raise ValueError("needs two lists, text and answer_start")
        return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]

    def to_question(self, context: str, title: str, where: str, version: Version | None) -> Question:
        """Return the question; raises `InputError` if its answers contradict the version or `is_impossible`.

        If `version` is None, answers may be missing.
        """
        answers = tuple(Answer(answer.text, answer.answer_start) for answer in self.answers or [])
        where = f"{where} (id {self.id})"
        if answers and self.is_impossible:
            hint = "remove the answers, or rename them to plausible_answers"
            raise InputError(f"{where}: is_impossible is true, but it has answers", hint)
        if not answers and version == "1.1":
            raise InputError(f"{where}: has no answer", "use squad2 for unanswerable questions")
        if not answers and version == "2.0" and self.is_impossible is False:
            hint = "set is_impossible to true or add an answer"
            raise InputError(f"{where}: has no answer, but is_impossible is false", hint)
        return Question(str(self.id), self.question, context, answers, title)


class _ParagraphRecord(BaseModel):
    context: _NonBlank
    qas: list[_QuestionRecord]


class _ArticleRecord(BaseModel):
    paragraphs: list[_ParagraphRecord]
    title: str | int | None = None


class _SquadRecord(BaseModel):
    data: list[_ArticleRecord]


class _FlatRecord(_QuestionRecord):
    """A question with its context: the layout of the Hub's data sets and of `run_qa.py` in `transformers`."""

    context: _NonBlank
    title: str | int | None = None


def _read_questions(path: Path, version: Version | None) -> list[Question]:
    """Read a file's questions; raises `InputError` for a file without questions and for repeated ids.

    A JSON file has the published layout, or it holds a list of flat questions, at the top or under the key `data`. A
    JSON lines file has one flat question per line, and a Parquet file one per row.
    """
    suffix = path.suffix.lower()
    iter_questions = _iter_document
    if suffix in JSON_LINES_ENDINGS:
        iter_questions = _iter_json_lines
    elif suffix == ".parquet":
        iter_questions = _iter_parquet
    located_questions = list(iter_questions(path, version))
    if not located_questions:
        raise InputError(f"{path}: holds no questions", _PUBLISHED_LAYOUT)
    check_unique((question.id, where) for question, where in located_questions)
    return [question for question, _ in located_questions]


def _iter_json_lines(path: Path, version: Version | None) -> Iterator[tuple[Question, str]]:
    """Yield the flat questions of JSON lines, each with its file and line."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path}:{number}"
            value = parse_repaired_json(line, where, _FLAT_LAYOUT)
            yield _parse_flat_question(value, where, version)


def _iter_parquet(path: Path, version: Version | None) -> Iterator[tuple[Question, str]]:
    """Yield the flat questions of a Parquet file, each with its file and row."""
    for number, row in iter_parquet_rows(SourcePart(TextSource(str(path), "parquet"))):
        yield _parse_flat_question(row, f"{path}:{number}", version)


def _iter_document(path: Path, version: Version | None) -> Iterator[tuple[Question, str]]:
    """Yield the questions of a JSON document in either layout, each with its file and its path in the document."""
    document: object = parse_repaired_json(read_text(path), str(path), _PUBLISHED_LAYOUT)
    rows = document.get("data") if isinstance(document, dict) else document
    if isinstance(rows, list) and rows and isinstance(rows[0], dict) and "context" in rows[0]:
        for number, row in enumerate(rows):
            yield _parse_flat_question(row, f"{path}: data[{number}]", version)
        return
    articles = validate_as(_SquadRecord, document, str(path), _PUBLISHED_LAYOUT).data
    for a, article in enumerate(articles):
        title = str(a if article.title is None else article.title)
        for p, paragraph in enumerate(article.paragraphs):
            for q, record in enumerate(paragraph.qas):
                where = f"{path}: data[{a}].paragraphs[{p}].qas[{q}]"
                yield record.to_question(paragraph.context, title, where, version), where


def _parse_flat_question(value: object, where: str, version: Version | None) -> tuple[Question, str]:
    """Parse a flat question; return it with `where`, its file and line or its path in the document."""
    record = validate_as(_FlatRecord, value, where, _FLAT_LAYOUT)
    title = "" if record.title is None else str(record.title)
    return record.to_question(record.context, title, where, version), where


# ---------------------------------------------------------------- wrong starts of answers


def _repair_answer_starts(questions: list[Question], origin: str, *, is_train: bool) -> list[Question]:
    """Move answers that are not at their `answer_start` to their nearest occurrence, and print their number.

    In training data, answers that do not occur in the context are dropped, and so are questions that have only such
    answers. In other data they remain, because scoring needs only the texts of the answers.
    """
    moved = 0
    missing = 0
    repaired: list[Question] = []
    for question in questions:
        answers = [_locate_answer(answer, question.context) for answer in question.answers]
        for old, new in zip(question.answers, answers, strict=True):
            if new.start == NOT_FOUND:
                missing += 1
            elif new.start != old.start:
                moved += 1
        if is_train:
            answers = [answer for answer in answers if answer.start != NOT_FOUND]
            if question.answers and not answers:
                continue
        repaired.append(replace(question, answers=tuple(answers)))
    if moved:
        console.info(f"{origin}: {count_of(moved, 'answer')} not at its answer_start; using the nearest occurrence")
    if missing:
        left_out = ", left out" if is_train else ""
        console.warn(f"{origin}: {count_of(missing, 'answer')} not found in the context{left_out}")
    if not repaired:
        message = f"{origin}: no training question has an answer in its context"
        raise InputError(message, "check that this is the right file")
    return repaired


def _locate_answer(answer: Answer, context: str) -> Answer:
    """Return the answer at its occurrence nearest to `answer.start`, or at `NOT_FOUND` if it does not occur.

    Of two occurrences at the same distance the first is taken. An answer without a start is at its first occurrence.
    """
    start = max(answer.start, 0)
    before = context.rfind(answer.text, 0, start + len(answer.text))  # the last occurrence that begins up to `start`
    after = context.find(answer.text, start)
    if before == NOT_FOUND:
        return Answer(answer.text, after)
    is_after_nearer = after != NOT_FOUND and after - start < start - before
    return Answer(answer.text, after if is_after_nearer else before)
