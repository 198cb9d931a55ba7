"""Named entities in scripts without spaces and in Hangul: the score on dev is that of predictions on plain text."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.languages import sentences
from tests.helpers.task_runs import SHAPE

Spans = set[tuple[int, int, str]]
LANGUAGES = {  # names of persons, names of locations, and the text around a person and a location
    "japanese": (("田中太郎", "鈴木"), ("東京", "大阪"), ("", "は", "で働く。")),
    "korean": (("김철수", "이영희"), ("서울", "부산"), ("", "는 ", "에서 일한다.")),
    "arabic": (("محمد علي", "فاطمة"), ("القاهرة", "بيروت"), ("يعمل ", " في ", ".")),
    "german": (("Jürgen Müller", "Änne"), ("Köln", "Österreich"), ("", " wohnt in ", ".")),
}


def labeled_texts(language: str, count: int) -> list[tuple[str, Spans]]:
    """Return texts with a person and a location, and the spans of these."""
    persons, locations, (before, between, after) = LANGUAGES[language]
    rng = random.Random(0)
    texts = []
    for _ in range(count):
        person = rng.choice(persons)
        location = rng.choice(locations)
        start = len(before + person + between)
        spans = {(len(before), len(before + person), "PER"), (start, start + len(location), "LOC")}
        texts.append((f"{before}{person}{between}{location}{after}", spans))
    return texts


def entity_f1(gold: list[Spans], predicted: list[Spans]) -> float:
    """Return the F1 of predicted spans."""
    correct = sum(len(a & b) for a, b in zip(gold, predicted, strict=True))
    return 2 * correct / len([*chain(*gold), *chain(*predicted)])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with a vocabulary of all languages."""
    folder = tmp_path_factory.mktemp("unspaced")
    lines = [text for language in LANGUAGES for text, _ in labeled_texts(language, 40)]
    lines += [text for language in LANGUAGES for text in sentences(language)]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    albert("vocab", folder / "text.txt", "--size", 420, "--out", folder / "vocabulary")
    shape = replace(SHAPE, vocab_size=Vocabulary.load(folder / "vocabulary").size)
    return untrained(folder / "encoder", shape, folder / "vocabulary")


@pytest.mark.parametrize("language", LANGUAGES)
def test_finetune_ner_score_is_that_of_plain_text(encoder: Path, tmp_path: Path, language: str) -> None:
    texts = labeled_texts(language, 40)
    (tmp_path / "plain.txt").write_text("".join(f"{text}\n" for text, _ in texts))
    rows = [json.dumps({"text": text, "entities": sorted(spans)}) + "\n" for text, spans in texts]
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "dev"):
        (data / f"{split}.jsonl").write_text("".join(rows))
    settings = ("schedule.total_steps=40", "train.eval_every=40", "optimizer.lr=5e-3", "train.batch_size=16")
    options = [*QUICK, *chain.from_iterable(("-s", setting) for setting in settings)]
    out = tmp_path / "model"
    albert("finetune", "ner", "--checkpoint", encoder, "--data", data, "--out", out, *options)
    albert("predict", out, "--input", tmp_path / "plain.txt", "--out", tmp_path / "out.jsonl", "--device", "cpu")
    predicted = []
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        predicted.append({(e["start"], e["end"], e["label"]) for e in json.loads(line)["prediction"]})
    score = json.loads((out / "results.json").read_text())["scores"]["entity_f1"]
    assert score > 0.2
    assert score == pytest.approx(entity_f1([spans for _, spans in texts], predicted))
