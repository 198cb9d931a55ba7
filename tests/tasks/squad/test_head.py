"""Questions answered by spans, from the file to the official predictions, with both heads."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import QuestionAnswering
from albert_cli.model.packing import pack
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.tasks.squad.data import Answer, Question, read_squad_file
from albert_cli.tasks.squad.head import BeamQuestionAnswering
from albert_cli.tasks.squad.metrics import evaluate_answers
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.task import BEAM_ARCHITECTURE, LINEAR_ARCHITECTURE, SQUAD
from albert_cli.tasks.squad.windows import SpanFeatures, encode_spans, iter_best_answers
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.losses import Operations
from tests.helpers.task_runs import build_model, finetune, prepare

CPU = torch.device("cpu")
SHORT = SpanSettings(max_query_length=12, doc_stride=8, max_answer_length=6, n_best=5)
OVERRIDES = [
    "data.max_seq_length=40",
    "span.max_query_length=12",
    "span.doc_stride=12",
    "schedule.total_steps=60",
    "schedule.warmup_steps=6",
    "optimizer.lr=5e-3",
    "train.batch_size=16",
    "train.eval_every=30",
]
WORDS = ["bade", "figo", "luma", "nepi", "rosu", "tave", "wizo", "krade", "stefi", "goba"]


def article(rng: random.Random, number: int, *, impossible: bool) -> dict[str, Any]:
    """Contexts in which each marker word is followed by its answer; the question is the marker."""
    paragraphs = []
    for p in range(4):
        words = rng.choices(WORDS, k=12)
        position = rng.randrange(10)
        words[position] = "zozo"
        before = " ".join(words[: position + 1]) + " "
        qas: list[dict[str, Any]] = [
            {
                "id": f"{number}-{p}",
                "question": "zozo?",
                "answers": [{"text": words[position + 1], "answer_start": len(before)}],
            }
        ]
        if impossible:
            qas.append({"id": f"{number}-{p}-no", "question": "mama pipi?", "answers": [], "is_impossible": True})
        paragraphs.append({"context": " ".join(words), "qas": qas})
    return {"title": f"article {number}", "paragraphs": paragraphs}


def write(path: Path, articles: int, *, impossible: bool, seed: int = 1) -> Path:
    rng = random.Random(seed)
    data = [article(rng, number, impossible=impossible) for number in range(articles)]
    path.write_text(json.dumps({"version": "own", "data": data}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Callable[[str], Path]:
    """A run of either task on its own small file, made once."""
    folder = tmp_path_factory.mktemp("squad")
    made: dict[str, Path] = {}

    def run(task: str) -> Path:
        if task not in made:
            data = folder / task
            data.mkdir()
            write(data / "train.json", 20, impossible=task == "squad2")
            write(data / "dev.json", 4, impossible=task == "squad2", seed=2)
            finetune(prepare(task, str(finished), str(data), OVERRIDES, "cpu"), folder / f"{task}-run")
            made[task] = folder / f"{task}-run"
        return made[task]

    return run


@pytest.mark.parametrize(("task", "architecture"), [("squad1", LINEAR_ARCHITECTURE), ("squad2", BEAM_ARCHITECTURE)])
def test_finetune_squad_writes_official_predictions(tuned: Callable[[str], Path], task: str, architecture: str) -> None:
    out = tuned(task)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    version = SQUAD[task].version
    questions = read_squad_file(out.parent / task / "dev.json", version)
    lines = [json.loads(line) for line in (out / "predictions.dev.jsonl").read_text(encoding="utf-8").splitlines()]
    at_threshold = "predictions.json" if task == "squad1" else "predictions_at_threshold.json"
    official = json.loads((out / at_threshold).read_text(encoding="utf-8"))
    n_best = json.loads((out / "nbest_predictions.json").read_text(encoding="utf-8"))

    assert results["metric"] == "f1"
    assert results["majority"] == (0.5 if task == "squad2" else 0.0)
    if task == "squad1":
        assert results["score"] > 0
    else:  # after 60 steps the model may answer no question
        assert results["score"] >= results["majority"]
    assert [line["id"] for line in lines] == list(official) == list(n_best) == [q.id for q in questions]
    for line, question in zip(lines, questions, strict=True):
        assert line["question"] == question.question
        assert line["title"] == question.title
        assert line["answers"] == [answer.text for answer in question.answers]
        assert line["prediction"] == official[question.id]
        if line["prediction"]:
            assert question.context[line["start"] : line["end"]] == line["prediction"]
            assert n_best[question.id][0]["text"] == line["prediction"]
        probabilities = [entry["probability"] for entry in n_best[question.id]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert len({entry["text"] for entry in n_best[question.id]}) == len(probabilities) <= 20
        assert all(set(entry) == {"text", "probability"} for entry in n_best[question.id])
        assert sum(probabilities) == pytest.approx(1, abs=1e-4)
    golds = [[answer.text for answer in q.answers] for q in questions]
    assert results["scores"]["f1"] == pytest.approx(evaluate_answers(list(official.values()), golds, version)["f1"])
    assert np.mean([line["em"] for line in lines]) == pytest.approx(results["scores"]["em"], abs=1e-4)
    assert (out / "null_odds.json").is_file() == (version == "2.0")
    assert hub.read_checkpoint(out).architecture == architecture
    made_for = hub.read_checkpoint(out).finetuned_task
    assert made_for is not None
    assert (made_for.task, made_for.inputs, made_for.max_seq_length) == (task, 2, 40)
    assert made_for.settings["max_query_length"] == 12


def test_predict_squad_above_threshold_is_unanswered(tuned: Callable[[str], Path]) -> None:
    out = tuned("squad2")
    odds = json.loads((out / "null_odds.json").read_text(encoding="utf-8"))
    predictions = json.loads((out / "predictions_at_threshold.json").read_text(encoding="utf-8"))
    assert {identifier for identifier, value in odds.items() if value > 0} == {
        i for i, text in predictions.items() if not text
    }
    n_best = json.loads((out / "nbest_predictions.json").read_text(encoding="utf-8"))
    scores = json.loads((out / "results.json").read_text(encoding="utf-8"))["scores"]
    questions = read_squad_file(out.parent / "squad2" / "dev.json")
    raw = list(json.loads((out / "predictions.json").read_text(encoding="utf-8")).values())
    assert raw == [n_best[q.id][0]["text"] for q in questions]
    result = evaluate_answers(
        raw, [[a.text for a in q.answers] for q in questions], "2.0", [odds[q.id] for q in questions]
    )
    assert result["best_f1"] == pytest.approx(scores["best_f1"])
    assert result["best_f1"] >= result["f1"] == pytest.approx(scores["f1"])
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["best_threshold"] == result["best_threshold"]


def test_linear_head_equals_hugging_face(tuned: Callable[[str], Path], vocabulary: Vocabulary) -> None:
    from transformers import AutoModelForQuestionAnswering

    out = tuned("squad1")
    theirs = AutoModelForQuestionAnswering.from_pretrained(out).eval()
    ours = SQUAD["squad1"].load(hub.read_checkpoint(out)).eval()
    features = encoded([question("bade zozo figo luma " * 6)], vocabulary, 40)
    batch, _ = features.batch(np.arange(len(features)))
    with torch.inference_mode():
        logits = ours(pack(batch, CPU))
        for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            ids, segments = (
                torch.from_numpy(a[begin:end].astype(np.int64))[None] for a in (batch.ids, batch.segment_ids)
            )
            expected = theirs(input_ids=ids, token_type_ids=segments)
            torch.testing.assert_close(logits[begin:end, 0], expected.start_logits[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(logits[begin:end, 1], expected.end_logits[0], atol=1e-5, rtol=1e-5)


def test_beam_head_is_not_read_by_hugging_face(tuned: Callable[[str], Path]) -> None:
    from transformers import AutoModel, AutoModelForQuestionAnswering

    out = tuned("squad2")
    values = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert values["architectures"] == ["AlbertCliForBeamQuestionAnswering"]
    for cls in (AutoModel, AutoModelForQuestionAnswering):
        with pytest.raises(ValueError, match="albert_cli"):
            cls.from_pretrained(out)
    again = SQUAD["squad1"].load(hub.read_checkpoint(out))
    assert isinstance(again, BeamQuestionAnswering)


def test_eval_squad_retrain_trains_again(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    from tests.helpers.task_runs import evaluate as evaluate_runs

    out = tuned("squad1")
    short = [*OVERRIDES, "schedule.total_steps=1", "schedule.warmup_steps=0", "model.head=checkpoint"]
    short += ["optimizer.lr=1e-9"]
    data = str(out.parent / "squad1")
    done = evaluate_runs("squad1", str(out), data, tmp_path / "again", 2, short, "cpu", retrain=True)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert done["scores_by_seed"] == {"0": results["score"], "1": results["score"]}


def test_finetune_squad2_starts_from_squad1_head(tuned: Callable[[str], Path]) -> None:
    out = tuned("squad1")
    data = str(write(out.parent / "both.json", 6, impossible=True))
    retained = [*OVERRIDES, "model.head=checkpoint"]
    model = build_model(prepare("squad2", str(out), data, [*retained, "span.head=linear"], "cpu"), 0)
    result = hub.read_checkpoint(out).tensors
    assert all(torch.equal(tensor, result[name]) for name, tensor in model.state_dict().items())
    fresh = build_model(prepare("squad2", str(out), data, [*OVERRIDES, "span.head=linear"], "cpu"), 0)
    assert not torch.equal(fresh.span.weight, result["span.weight"])
    assert torch.equal(fresh.encoder.embeddings.word.weight, result["encoder.embeddings.word.weight"])
    with pytest.raises(CheckpointError, match=r"start head: start\.weight is missing"):
        build_model(prepare("squad2", str(out), data, retained, "cpu"), 0)
    with pytest.raises(ConfigError, match=r"model\.weights is random but model\.head is the checkpoint's"):
        prepare("squad1", str(out), data, [*retained, "model.weights=random"], "cpu")


def test_from_checkpoint_bad_settings_are_rejected(tuned: Callable[[str], Path]) -> None:
    result = hub.read_checkpoint(tuned("squad1"))
    values: Any = result.values
    recorded = values["albert_task"]
    damaged = recorded | {"settings": {"doc_stride": 0}}
    with pytest.raises(CheckpointError, match=r"config\.json: doc_stride is 0: .*greater than or equal to 1"):
        task_from_checkpoint(replace(result, values=values | {"albert_task": damaged}))
    for wrong in ({"inputs": 7}, {"max_seq_length": 0}):
        assert replace(result, values=values | {"albert_task": recorded | wrong}).finetuned_task is None


def test_load_incomplete_head_is_rejected(tuned: Callable[[str], Path]) -> None:
    result = hub.read_checkpoint(tuned("squad2"))
    cut = replace(result, tensors={n: t for n, t in result.tensors.items() if not n.startswith("null_answer.output")})
    with pytest.raises(CheckpointError, match=r"null_answer head: null_answer\.output\.weight is missing"):
        SQUAD["squad1"].load(cut)


# ---------------------------------------------------------------- the arithmetic of both heads, against plain loops


def question(context: str, answer: str = "figo", identifier: str = "q") -> Question:
    return Question(identifier, "zozo?", context, (Answer(answer, context.index(answer)),))


def encoded(questions: list[Question], vocabulary: Vocabulary, length: int = 30) -> SpanFeatures:
    return encode_spans(questions, vocabulary, length, SHORT)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    rng = random.Random(3)
    contexts = [" ".join(rng.choices(WORDS, k=size)) for size in (5, 9, 14, 22)]
    present = [question(c, rng.choice(c.split()), str(i)) for i, c in enumerate(contexts)]
    return [*present, Question("none", "wizo ba?", contexts[2])]


def tiny_model(cls: type[Any], vocabulary: Vocabulary) -> Any:
    from albert_cli.model.config import ModelConfig

    torch.manual_seed(5)
    shape = ModelConfig(
        vocab_size=vocabulary.size, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=48, initializer_range=0.5, classifier_dropout_prob=0.0,
    )  # fmt: skip
    return cls(shape)


def alone(features: SpanFeatures, window: int) -> tuple[Any, list[int], tuple[int, int]]:
    """A window as a batch of its own, the tokens of its context, and its answer."""
    batch, answer = features.batch(np.array([window]))
    begin = int(features.context_start_in_sequence(np.array([window]))[0])
    return batch, list(range(begin, begin + int(features.context_length[window]))), tuple(answer[0].tolist())


def test_span_loss_linear_is_mean_cross_entropy(questions: list[Question], vocabulary: Vocabulary) -> None:
    model, features = tiny_model(QuestionAnswering, vocabulary), encoded(questions, vocabulary)
    batch, answers = features.batch(np.arange(len(features)))
    result = SQUAD["squad1"].loss_sum(model, batch, answers, CPU)
    expected = 0.0
    for window in range(len(features)):
        one, _, answer = alone(features, window)
        logits = model(pack(one, CPU))
        expected += sum(-F.log_softmax(logits[:, i], 0)[answer[i]].item() for i in (0, 1)) / 2
    assert float(result) == pytest.approx(expected, rel=1e-5)


def test_span_loss_beam_equals_formula(questions: list[Question], vocabulary: Vocabulary) -> None:
    model, features = tiny_model(BeamQuestionAnswering, vocabulary), encoded(questions, vocabulary)
    batch, answers = features.batch(np.arange(len(features)))
    result = SQUAD["squad2"].loss_sum(model, batch, answers, CPU)
    expected = 0.0
    for window in range(len(features)):
        one, context, (first, last) = alone(features, window)
        x, _ = model(pack(one, CPU))
        allowed = [0, *context]
        start = torch.stack([model.start(x[t])[0] for t in allowed]).log_softmax(0)
        ends = [end_logit(model, x[t], x[first]) for t in allowed]
        end = torch.stack(ends).log_softmax(0)
        null = null_logit(model, x, start, allowed)
        target = torch.tensor(float(first == 0))
        expected -= float(start[allowed.index(first)] + end[allowed.index(last)]) / 2
        expected += float(F.binary_cross_entropy_with_logits(null, target)) / 2
    assert float(result) == pytest.approx(expected, rel=1e-5)


def end_logit(model: Any, token: Any, start: Any) -> Any:
    head = model.end
    return head.output(head.norm(torch.tanh(head.dense(torch.cat([token, start])))))[0]


def null_logit(model: Any, x: Any, start: Any, allowed: list[int]) -> Any:
    head = model.null_answer
    mean = sum(float(p.exp()) * x[t] for p, t in zip(start, allowed, strict=True))
    return head.output(torch.tanh(head.dense(torch.cat([mean, x[0]]))))[0]


@pytest.mark.parametrize("cls", [QuestionAnswering, BeamQuestionAnswering])
def test_window_spans_equal_plain_loops(cls: type[Any], questions: list[Question], vocabulary: Vocabulary) -> None:
    model, features = tiny_model(cls, vocabulary).eval(), encoded(questions, vocabulary)
    assert len(features) > len(questions)  # windows that overlap
    with torch.inference_mode():
        with Operations() as operations:
            result = SQUAD["squad1"].predict(model, features, CPU)
        assert torch.float64 not in operations.types  # which Apple's GPUs lack
        expected: dict[tuple[int, int, int], tuple[float, float]] = {}
        null: dict[int, list[float]] = {}
        for window in range(len(features)):
            owner = int(features.question_of_window[window])
            scored, nothing = (
                plain_beam(model, features, window)
                if cls is BeamQuestionAnswering
                else plain_linear(model, features, window)
            )
            null.setdefault(owner, []).append(nothing)
            for (first, last), value in scored.items():
                span = (owner, *characters(features, window, first, last))
                if span[1] < span[2]:  # else a piece of a space alone
                    expected[span] = max(value, expected.get(span, value), key=sum)
    for number in range(len(questions)):
        terms = {k[1:]: v for k, v in expected.items() if k[0] == number}
        here = {span: sum(both) for span, both in terms.items()}
        top = sorted(here, key=lambda span: -here[span])[:5]
        begin = int(result.offsets[number])
        got = list(zip(result.start[begin:].tolist(), result.end[begin:].tolist(), strict=True))[:5]
        assert got == top
        total = sum(np.exp(v) for v in here.values())
        assert result.probability[begin] == pytest.approx(np.exp(here[top[0]]) / total, rel=1e-4)
        relative = 0.0 if cls is BeamQuestionAnswering else here[top[0]]
        assert result.null_score[number] == pytest.approx(min(null[number]) - relative, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("cls", [QuestionAnswering, BeamQuestionAnswering])
def test_predict_context_without_token_is_empty(cls: type[Any], vocabulary: Vocabulary) -> None:
    questions_asked = [Question("q", "zozo?", "\u0301"), question("bade figo")]
    model, features = tiny_model(cls, vocabulary).eval(), encoded(questions_asked, vocabulary)
    assert features.context_length.tolist()[0] == 0
    result = SQUAD["squad1"].predict(model, features, CPU)
    assert np.isfinite(result.null_score).all()
    lines = [
        json.loads(line) for line in SQUAD["squad2"].format_predictions(questions_asked, result, with_details=False)
    ]
    assert (lines[0]["prediction"], lines[0]["probability"]) == ("", 0.0)
    if cls is QuestionAnswering:
        assert lines[0]["null_odds"] > 1e6


def test_write_predictions_has_n_best_answers(vocabulary: Vocabulary) -> None:
    questions_asked = [Question("q", "zozo?", " ".join(WORDS))]
    features = encode_spans(questions_asked, vocabulary, 48, replace(SHORT, n_best=60, max_answer_length=30))
    assert len(features) == 1  # of which 40 spans are kept where no more answers are asked for
    result = SQUAD["squad1"].predict(tiny_model(QuestionAnswering, vocabulary).eval(), features, CPU)
    assert len(next(iter(iter_best_answers(questions_asked, result, 60)))) > 40  # of equal texts only one counts


def characters(features: SpanFeatures, window: int, first: int, last: int) -> tuple[int, int]:
    base = int(features.contexts.offsets[features.context_of_question[features.question_of_window[window]]])
    shift = base + int(features.context_offset[window]) - int(features.context_start_in_sequence(np.array([window]))[0])
    return int(features.contexts.starts[shift + first]), int(features.contexts.ends[shift + last])


def best_here(features: SpanFeatures, window: int, context: list[int]) -> list[int]:
    retained = features.has_most_context(np.array([window]))
    return [token for token, is_best in zip(context, retained, strict=True) if is_best]


Scored = dict[tuple[int, int], tuple[float, float]]


def plain_linear(model: Any, features: SpanFeatures, window: int) -> tuple[Scored, float]:
    one, context, _ = alone(features, window)
    logits = model(pack(one, CPU))
    starts = sorted(best_here(features, window, context), key=lambda t: -float(logits[t, 0]))[: SHORT.n_best]
    ends = sorted(context, key=lambda t: -float(logits[t, 1]))[: SHORT.n_best]
    scored = {
        (s, e): (float(logits[s, 0]), float(logits[e, 1]))
        for s in starts
        for e in ends
        if s <= e < s + SHORT.max_answer_length
    }
    return scored, float(logits[0].sum())


def plain_beam(model: Any, features: SpanFeatures, window: int) -> tuple[Scored, float]:
    one, context, _ = alone(features, window)
    x, _ = model(pack(one, CPU))
    allowed = [0, *context]
    start = torch.stack([model.start(x[t])[0] for t in allowed]).log_softmax(0)
    chance = dict(zip(allowed, start.tolist(), strict=True))
    scored = {}
    for s in sorted(best_here(features, window, context), key=lambda t: -chance[t])[: SHORT.start_top]:
        end = dict(
            zip(
                allowed,
                torch.stack([end_logit(model, x[t], x[s]) for t in allowed]).log_softmax(0).tolist(),
                strict=True,
            )
        )
        near = [t for t in context if s <= t < s + SHORT.max_answer_length]
        for e in sorted(near, key=lambda t: -end[t])[: SHORT.end_top]:
            scored[s, e] = (chance[s], end[e])
    return scored, float(null_logit(model, x, start, allowed))
