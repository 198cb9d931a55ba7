"""Windows of questions and contexts, and the way back from pieces to the text as written."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from albert_cli import config
from albert_cli.errors import ConfigError
from albert_cli.tasks.squad.data import NOT_FOUND, Answer, Question, read_squad_file
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.tasks.squad.windows import AnswerSpans, SpanFeatures, encode_spans
from albert_cli.text.vocabulary import Vocabulary

SETTINGS = SpanSettings(max_query_length=6, doc_stride=5)
WORDS = ["bade", "Figo", "luma", "népi", "rosu", "½", "1990", "ﬁno", "goba"]


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    rng = random.Random(2)
    contexts = [" ".join(rng.choices(WORDS, k=size)) for size in (1, 3, 8, 15, 30)]
    made = []
    for number in range(40):
        context, questions_asked = rng.choice(contexts), " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))
        answer = rng.choice(context.split())
        answers = (Answer(answer, context.index(answer)),) if number % 4 else ()
        made.append(Question(str(number), questions_asked, context, answers))
    return made


def plain_windows(question: Question, vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The token ids of a question's windows, by a loop."""
    query = vocabulary.encode(question.question)[: SETTINGS.max_query_length]
    context = vocabulary.encode(question.context)
    room, start, windows = limit - len(query) - 3, 0, []
    while True:
        shown = context[start : start + room]
        windows.append([vocabulary.cls_id, *query, vocabulary.sep_id, *shown, vocabulary.sep_id])
        if start + room >= len(context):
            return windows
        start += min(len(shown), SETTINGS.doc_stride)


@pytest.mark.parametrize("limit", [14, 20, 100])
def test_encode_spans_windows_equal_plain_loop(questions: list[Question], vocabulary: Vocabulary, limit: int) -> None:
    features = encode_spans(questions, vocabulary, limit, SETTINGS)
    expected = [(number, w) for number, q in enumerate(questions) for w in plain_windows(q, vocabulary, limit)]
    batch, answers = features.batch(np.arange(len(features)))
    result = [ids.tolist() for ids in np.split(batch.ids, batch.offsets[1:-1])]
    assert list(zip(features.question_of_window.tolist(), result, strict=True)) == expected
    segments = np.split(batch.segment_ids, batch.offsets[1:-1])
    for ids, segment, begin in zip(
        result, segments, features.context_start_in_sequence(np.arange(len(features))), strict=True
    ):
        assert ids[begin - 1] == vocabulary.sep_id
        assert segment.tolist() == [0] * begin + [1] * (len(ids) - begin)
    assert answers.shape == (len(features), 2)


def test_batch_does_not_depend_on_its_other_windows(questions: list[Question], vocabulary: Vocabulary) -> None:
    features = encode_spans(questions, vocabulary, 16, SETTINGS)
    whole, answers = features.batch(np.arange(len(features)))
    for window in (0, 7, len(features) - 1):
        one, answer = features.batch(np.array([window]))
        assert one.ids.tolist() == whole.ids[whole.offsets[window] : whole.offsets[window + 1]].tolist()
        assert answer[0].tolist() == answers[window].tolist()
        assert one.position_ids.tolist() == list(range(len(one.ids)))


def test_encode_spans_answers_equal_hand_computed(vocabulary: Vocabulary) -> None:
    context = "ba ba ba de ba ba ba ba ba ba"
    pieces = len(vocabulary.encode(context))
    question = Question("q", "ba", context, (Answer("de", 9),))
    features = encode_spans([question], vocabulary, 14, SETTINGS)
    ids = vocabulary.encode(context)
    position = len(vocabulary.encode("ba ba ba"))
    position += vocabulary.pieces[ids[position]] == "▁"  # a lone space piece is not in the answer
    for window, (start, shown) in enumerate(
        zip(features.context_offset.tolist(), features.context_length.tolist(), strict=True)
    ):
        last = len(vocabulary.encode("ba ba ba de")) - 1
        begin = int(features.context_start_in_sequence(np.array([window]))[0])
        inside = start <= position and last < start + shown
        expected = [position - start + begin, last - start + begin] if inside else [0, 0]
        assert features.answer[window].tolist() == expected
    assert features.context_length.sum() >= pieces
    assert features.answer.any()


def test_encode_spans_missing_answer_points_to_cls(vocabulary: Vocabulary) -> None:
    lost = Question("a", "ba", "de fi", (Answer("go", NOT_FOUND),))
    features = encode_spans([lost, Question("b", "ba", "de fi")], vocabulary, 14, SETTINGS)
    assert features.answer.tolist() == [[0, 0], [0, 0]]


def test_describe_collapse_needs_different_gold_spans(vocabulary: Vocabulary) -> None:
    size = 3
    spans = AnswerSpans(np.arange(size), np.full(size, 5), np.full(size, 9), np.ones(size), np.full(size, -1.0))
    same = [
        Question(str(i), "wi? " * (i + 1), f"Figo {word} luma", (Answer(word, 5),))
        for i, word in enumerate(("bade", "rosu", "goba"))
    ]
    assert SQUAD["squad1"].describe_collapse(spans, encode_spans(same, vocabulary, 32, SETTINGS)) is None
    different = [*same[:2], replace(same[2], answers=(Answer("Figo", 0),))]
    features = encode_spans(different, vocabulary, 32, SETTINGS)
    assert SQUAD["squad1"].describe_collapse(spans, features) == "the same span in every context"


def test_encode_spans_without_room_is_rejected(vocabulary: Vocabulary) -> None:
    with pytest.raises(ConfigError, match="leaves no room"):
        encode_spans([Question("a", "ba", "de")], vocabulary, 9, SETTINGS)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_span_settings_threshold_must_be_finite(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"recipe: threshold is {value}"):
        config.validate_recipe(SpanSettings, {"threshold": float(value)}, "recipe")


@pytest.mark.parametrize("stride", [1, 3, 5, 50])
@pytest.mark.parametrize("limit", [10, 14, 20])
def test_has_most_context_matches_a_plain_loop(
    questions: list[Question], vocabulary: Vocabulary, limit: int, stride: int
) -> None:
    features = encode_spans(questions, vocabulary, limit, replace(SETTINGS, doc_stride=stride))
    scored: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for window, (owner, start, shown) in enumerate(
        zip(
            features.question_of_window.tolist(),
            features.context_offset.tolist(),
            features.context_length.tolist(),
            strict=True,
        )
    ):
        for token in range(shown):
            context = min(token, shown - 1 - token) + 0.01 * shown
            scored.setdefault((owner, start + token), []).append((context, -window))
    index = np.arange(len(features))[::-1].copy()
    retained = np.split(features.has_most_context(index), np.cumsum(features.context_length[index])[:-1])
    for window, best in zip(index.tolist(), retained, strict=True):
        owner, start = int(features.question_of_window[window]), int(features.context_offset[window])
        assert best.tolist() == [max(scored[owner, start + i])[1] == -window for i in range(len(best))]


# ---------------------------------------------------------------- the way back


def answer_spans(questions: list[Question], features: SpanFeatures) -> list[tuple[Question, Answer, int, int]]:
    """For every answer the place in the context that its pieces stand for."""
    pairs = [(number, answer) for number, q in enumerate(questions) for answer in q.answers]
    context = features.context_of_question[np.array([number for number, _ in pairs])]
    starts = np.array([answer.start for _, answer in pairs])
    first, last = features.contexts.tokens_at(context, starts, starts + [len(answer.text) for _, answer in pairs])
    base = features.contexts.offsets[:-1][context]
    begins, ends = features.contexts.starts[base + first].tolist(), features.contexts.ends[base + last].tolist()
    return [(questions[n], a, begin, end) for (n, a), begin, end in zip(pairs, begins, ends, strict=True)]


@pytest.fixture(scope="module")
def dev_questions(shared_data: Path) -> list[Question]:
    """The questions of SQuAD's dev set on contexts that are not ASCII, and a fiftieth of the others.

    SQuAD 2.0 has the same contexts and answers, but fewer.
    """
    questions = read_squad_file(shared_data / "squad" / "dev-v1.1.json", "1.1")
    return [q for number, q in enumerate(questions) if not q.context.isascii() or number % 50 == 0]


def test_encode_spans_dev_answers_map_back(dev_questions: list[Question], vocabulary: Vocabulary) -> None:
    """Through cleaning all of them; through pieces all but those that begin or end inside a piece."""
    features = encode_spans(dev_questions, vocabulary, 384, SpanSettings())
    inside = 0
    for question, answer, begin, end in answer_spans(dev_questions, features):
        stop = answer.start + len(answer.text)
        assert begin <= answer.start < stop <= end  # never less than the answer
        if (begin, end) != (answer.start, stop):
            inside += 1
            # What is too much belongs to the same pieces: no space, so no further word, is taken in.
            assert " " not in question.context[begin : answer.start] + question.context[stop:end]
    assert inside < 0.1 * sum(len(q.answers) for q in dev_questions)


def test_encode_spans_real_windows_hold_answers(dev_questions: list[Question], vocabulary: Vocabulary) -> None:
    questions = dev_questions[::20]
    features = encode_spans(questions, vocabulary, 384, SpanSettings())
    _, answers = features.batch(np.arange(len(features)))
    whole = {(q.id): (begin, end) for q, a, begin, end in answer_spans(questions, features) if a == q.answers[0]}
    base = features.contexts.offsets[:-1][features.context_of_question[features.question_of_window]]
    shift = base + features.context_offset - features.context_start_in_sequence(np.arange(len(features)))
    for window, (first, last) in enumerate(answers.tolist()):
        if first:
            question = questions[features.question_of_window[window]]
            begin, end = (
                int(a[shift[window] + t])
                for a, t in ((features.contexts.starts, first), (features.contexts.ends, last))
            )
            assert (begin, end) == whole[question.id]
    held = set(features.question_of_window[answers[:, 0] > 0].tolist())
    assert len(held) >= 0.95 * len(questions)


def test_encode_spans_tokenizes_contexts_once(vocabulary: Vocabulary) -> None:
    questions = [Question(str(i), "ba", json.dumps({"x": i % 2})) for i in range(10)]
    features = encode_spans(questions, vocabulary, 30, SETTINGS)
    assert len(features.contexts.lengths) == 2
    assert features.context_of_question.tolist() == [0, 1] * 5
