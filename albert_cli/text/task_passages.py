"""Read the passages of SQuAD's and RACE's files as a corpus (`squad:`, `squad-answers:` and `race:` sources)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from albert_cli.errors import InputError
from albert_cli.text.lines import unlimited_lines
from albert_cli.text.plain_text import join_texts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import parse_json
from albert_cli.text.sentences import split_sentences
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import SourceKind
from albert_cli.text.text_readers import iter_text_within_limit

_JSON_LINES_HINT = "JSON lines need the ending .jsonl"


def read_task_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the texts of a SQuAD (1.1 or 2.0) or RACE file; the kind of the source decides what a text is.

    - `squad`: all contexts of an article, one per line. The paper's intrinsic dev set has this form (Section 4.1).
    - `race`: the `article` of a file.
    - `squad-answers`: a question and, on the next line, the sentences of the context that contain the answer. So
      pretraining sees question and answer together.

    Raises `InputError` if the file has another format.
    """
    content = "\n".join(line for _, line in unlimited_lines(part, settings, counter))
    if not content.strip():
        return
    name = part.source.name
    kind = part.source.kind
    task = "RACE" if kind == "race" else "SQuAD"
    value = parse_json(content, name, f"it is read in {task}'s format; {_JSON_LINES_HINT}")
    try:
        texts = _extract_texts(value, kind, settings)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else "a value has the wrong type"
        raise InputError(f"{name}: not in {task}'s format ({reason})", _JSON_LINES_HINT) from None
    if kind == "squad-answers" and not texts:
        raise InputError(f"{name}: no question has an answer in its context", "use SQuAD's training file")
    for number, text in enumerate(texts, 1):
        yield from iter_text_within_limit(text, part.record_location, number, settings, counter)


def _extract_texts(value: Any, kind: SourceKind, settings: ReadSettings) -> list[str]:
    """Return the texts of a file's JSON value.

    The value is not checked, so one of another form raises `KeyError`, `TypeError` or `AttributeError`.
    """
    if kind == "race":
        return [join_texts([value["article"]], settings)]
    if kind == "squad":
        return [join_texts([p["context"] for p in article["paragraphs"]], settings) for article in value["data"]]
    paragraphs = [paragraph for article in value["data"] for paragraph in article["paragraphs"]]
    return [text for paragraph in paragraphs for text in _join_questions_and_answers(paragraph, settings)]


def _join_questions_and_answers(paragraph: Any, settings: ReadSettings) -> Iterator[str]:
    """Yield each answered question of a paragraph and, on the next line, the sentences that contain its first answer.

    Joining lines and splitting into sentences change white space. So a position in the text is counted here as the
    number of characters before it that are not white space.
    """
    context = paragraph["context"]
    sentences = split_sentences(join_texts([context], settings))
    sentence_ends = list(accumulate(_count_non_space(sentence) for sentence in sentences))
    for question in paragraph["qas"]:
        answers = question.get("answers", [])
        if len(answers) == 0:  # SQuAD 2.0 has questions without an answer
            continue
        answer_text = answers[0]["text"]
        start = answers[0]["answer_start"]
        if not answer_text.strip() or context[start : start + len(answer_text)] != answer_text:
            continue  # the answer's position is unknown
        non_space_start = _count_non_space(context[:start])
        non_space_end = non_space_start + _count_non_space(answer_text)
        first_sentence = bisect_right(
            sentence_ends, non_space_start
        )  # the first one that ends after the answer's start
        last_sentence = bisect_left(
            sentence_ends, non_space_end
        )  # the first one that ends at or after the answer's end
        answer_sentences = " ".join(sentences[first_sentence : last_sentence + 1])
        yield " ".join(question["question"].split()) + "\n" + answer_sentences


def _count_non_space(text: str) -> int:
    """Return the number of characters other than white space."""
    return sum(map(len, text.split()))
