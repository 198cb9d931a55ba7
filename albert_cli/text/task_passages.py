"""Read the passages of SQuAD's and RACE's files as a corpus."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from albert_cli.errors import InputError
from albert_cli.text.lines import text_lines
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import parse_json
from albert_cli.text.sentences import split_sentences
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import SourceKind
from albert_cli.text.text_readers import iter_short_text

_JSON_LINES_HINT = "JSON lines need the ending .jsonl"


def read_task_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the texts of a SQuAD (1.1 and 2.0) or RACE file.

    `squad`: the contexts of an article, one per line, are one text, for the paper's intrinsic dev set (Section 4.1).
    `race`: the `article` of a file is one text. `squad-answers`: each question and, on the next line, the sentence of
    its context with the answer is one text, so that pretraining sees question and answer together.
    """
    data = "\n".join(line for _, line in text_lines(part, settings, counter))
    if not data.strip():
        return
    name = part.source.name
    kind = part.source.kind
    task = "RACE" if kind == "race" else "SQuAD"
    value = parse_json(data, name, f"it is read in {task}'s format; {_JSON_LINES_HINT}")
    try:
        texts = _extract_texts(value, kind)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("its text is no string")
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{name}: not in {task}'s format ({reason})", _JSON_LINES_HINT) from None
    if kind == "squad-answers" and not texts:
        raise InputError(f"{name}: no question has an answer in its context", "use SQuAD's training file")
    for number, text in enumerate(texts, 1):
        yield from iter_short_text(text, part, number, settings, counter)


def _extract_texts(value: Any, kind: SourceKind) -> list[str]:
    if kind == "race":
        return [value["article"]]
    if kind == "squad":
        return ["\n".join(p["context"] for p in article["paragraphs"]) for article in value["data"]]
    paragraphs = [paragraph for article in value["data"] for paragraph in article["paragraphs"]]
    return [text for paragraph in paragraphs for text in _join_questions_and_answers(paragraph)]


def _join_questions_and_answers(paragraph: Any) -> Iterator[str]:
    """Yield each answered question of a paragraph and, on the next line, the sentences that contain its first answer.

    Splitting into sentences changes white space, so positions are counted in characters other than white space.
    """
    context = paragraph["context"]
    sentences = split_sentences(context)
    sentence_ends = list(accumulate(_count_non_space(sentence) for sentence in sentences))
    for question in paragraph["qas"]:
        for answer in question.get("answers", [])[:1]:
            answer_text = answer["text"]
            start = answer["answer_start"]
            if not answer_text.strip() or context[start : start + len(answer_text)] != answer_text:
                continue  # the answer's position is unknown
            first_character = _count_non_space(context[:start])
            last_character = first_character + _count_non_space(answer_text)
            first = bisect_right(sentence_ends, first_character)
            last = bisect_left(sentence_ends, last_character)
            yield " ".join(question["question"].split()) + "\n" + " ".join(sentences[first : last + 1])


def _count_non_space(text: str) -> int:
    return sum(map(len, text.split()))
