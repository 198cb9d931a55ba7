"""Tests of `experiments.minimal_pairs`: pseudo-log-likelihoods, scores by phenomenon, and invalid files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from albert_cli.errors import InputError
from albert_cli.experiments import minimal_pairs
from albert_cli.experiments.minimal_pairs import (
    MinimalPair,
    format_minimal_pairs,
    pseudo_log_likelihoods,
    read_minimal_pairs,
    score_minimal_pairs,
)
from albert_cli.experiments.plan import ExperimentRequest
from albert_cli.experiments.recipe import load_experiment
from albert_cli.experiments.stages import make_plan
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS, jackknife_error
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.checkpoints import untrained
from tests.helpers.command import albert

SENTENCES = ("bade figo luma.", "kra ne", "wi bade figo luma kra ne bade.")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


@pytest.fixture
def model(vocabulary: Vocabulary) -> PretrainingModel:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=vocabulary.size, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=48, initializer_range=0.5,
    )  # fmt: skip
    return PretrainingModel(config).eval()


def pair(good: str, bad: str, term: str | None = None) -> MinimalPair:
    return MinimalPair(sentence_good=good, sentence_bad=bad, linguistics_term=term)


def test_pseudo_log_likelihoods_sum_over_single_masks(
    model: PretrainingModel, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = pseudo_log_likelihoods(model, vocabulary, SENTENCES, CPU)
    monkeypatch.setattr(minimal_pairs, "_MICRO_BATCH", 1)  # every masked copy alone
    alone = [pseudo_log_likelihoods(model, vocabulary, [sentence], CPU)[0] for sentence in SENTENCES]
    assert together == pytest.approx(alone, abs=1e-3)
    # A sum has a term for every token, and an untrained model gives each token less than 1/2 on average.
    assert all(value < -math.log(2) * len(vocabulary.encode(s)) for value, s in zip(together, SENTENCES, strict=True))


def test_score_minimal_pairs_counts_preferred_sentences(
    model: PretrainingModel, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    likelihoods = {"bade figo": -1.0, "figo bade": -2.0, "kra ne": -3.0, "ne kra": -3.0}

    def look_up(_: object, __: object, sentences: list[str], ___: object) -> np.ndarray:
        return np.array([likelihoods[sentence] for sentence in sentences])

    monkeypatch.setattr(minimal_pairs, "pseudo_log_likelihoods", look_up)
    pairs = [pair("bade figo", "figo bade", "order")] * 3
    pairs += [pair("figo bade", "bade figo", "order"), pair("kra ne", "ne kra", "tie")]
    scores = score_minimal_pairs(model, vocabulary, pairs, CPU)
    assert scores.phenomena["order"].accuracy == 0.75 and scores.phenomena["order"].pairs == 4
    assert scores.phenomena["order"].standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 4), abs=1e-6)
    assert scores.phenomena["tie"].accuracy == 0, "an equal likelihood is no preference"
    assert scores.total.accuracy == scores.accuracy[0] == 0.6
    # A sentence that is e times as likely as the other is preferred with a probability of 0.7311.
    assert scores.preference[0] == pytest.approx((3 * 0.7311 + 0.2689 + 0.5) / 5, abs=1e-4)
    assert jackknife_error(scores.accuracy) > jackknife_error(scores.preference) > 0
    assert "order" in format_minimal_pairs(scores)


def test_read_minimal_pairs_accepts_the_layout_of_blimp(tmp_path: Path) -> None:
    row = {
        "sentence_good": "Many girls insulted themselves.", "sentence_bad": "Many girls insulted herself.",
        "field": "morphology", "linguistics_term": "anaphor_agreement", "UID": "anaphor_number_agreement",
        "simple_LM_method": True, "pairID": "0",
    }  # fmt: skip
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row) + "\n\n" + json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": "u"}))
    first, second = read_minimal_pairs(path)
    assert (first.sentence_good, first.phenomenon, second.phenomenon) == (
        row["sentence_good"],
        "anaphor_agreement",
        "u",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sentence_good": "a"}', r"line 1: sentence_bad: Field required"),
        ('{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good": 3, "sentence_bad": "b"}', "line 2: sentence_"),
        ("not json", "line 1: line: Invalid JSON"),
        ("\n", "no pairs"),
    ],
)
def test_read_minimal_pairs_rejects_invalid_lines(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_minimal_pairs(path)
    with pytest.raises(InputError, match="no such file"):
        read_minimal_pairs(tmp_path / "missing.jsonl")


def test_sentence_longer_than_the_model_names_its_line(
    model: PretrainingModel, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl")
    row = {"sentence_good": "bade", "sentence_bad": "bade figo luma " * 30}
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    with pytest.raises(InputError, match=r"pairs\.jsonl, line 3: .* the model has positions for 1 to 46"):
        score_minimal_pairs(model, vocabulary, read_minimal_pairs(path), CPU)


def test_score_minimal_pairs_leaves_out_equal_tokens(
    model: PretrainingModel, vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]
) -> None:
    equal = pair("bade figo", "bade  figo", "equal")
    pairs = [pair("bade figo luma", "figo bade luma", "order"), pair("kra ne wi", "ne wi kra", "order")]
    scores = score_minimal_pairs(model, vocabulary, pairs, CPU)
    mixed = score_minimal_pairs(model, vocabulary, [*pairs, equal], CPU)
    assert (mixed.total, mixed.phenomena) == (scores.total, scores.phenomena)
    assert mixed.preference[0] == scores.preference[0]
    assert mixed.to_json()["same_tokens"] == 1 and scores.to_json()["same_tokens"] == 0
    assert "1 of 3 minimal pairs" in capsys.readouterr().err
    with pytest.raises(InputError, match="of every pair have the same tokens"):
        score_minimal_pairs(model, vocabulary, [equal], CPU)


def test_read_minimal_pairs_of_a_folder_is_rejected(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl")
    with pytest.raises(InputError, match="is a folder") as caught:
        read_minimal_pairs(tmp_path)
    assert caught.value.hint is not None and f"cat {tmp_path}/*.jsonl" in caught.value.hint


def write_pairs(path: Path) -> Path:
    rows = [
        {"sentence_good": "bade figo luma.", "sentence_bad": "figo bade luma.", "linguistics_term": term}
        for term in ("order", "other")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SHAPE = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=48,
)  # fmt: skip


def test_probe_with_minimal_pairs_reports_phenomena(tmp_path: Path, tiny_data: Path, tiny_vocabulary: Path) -> None:
    checkpoint = untrained(tmp_path / "checkpoint", SHAPE, tiny_vocabulary)
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    call = ("probe", checkpoint, "--data", tiny_data, "--sequences", 8, "--minimal-pairs", pairs, "--device", "cpu")
    result = json.loads(albert(*call, "--json").out)
    assert set(result["minimal_pairs"]["phenomena"]) == {"order", "other"}
    assert result["minimal_pairs_accuracy"] == result["minimal_pairs"]["accuracy"]
    assert 0 < result["minimal_pairs_preference"] < 1
    for name in ("minimal_pairs_accuracy", "minimal_pairs_preference"):
        assert len(result["without_parts"][name]) == JACKKNIFE_GROUPS
    assert "minimal pairs" in albert(*call).out


def test_plan_with_minimal_pairs_scores_them_in_every_probe(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    experiment = load_experiment("sharing")
    plain = make_plan(experiment, ExperimentRequest("mini", tmp_path, dry_run=True))
    scored = make_plan(experiment, ExperimentRequest("mini", tmp_path, dry_run=True, minimal_pairs=pairs))
    for before, after in zip(plain.runs, scored.runs, strict=True):
        assert before.pretrain is not None and after.pretrain is not None
        assert before.pretrain.id == after.pretrain.id
        assert before.probe is not None and after.probe is not None
        assert before.probe.id != after.probe.id and str(pairs) in after.probe.argv
        assert before.tasks["minimal-pairs"] is before.probe and after.tasks["minimal-pairs"] is after.probe


def test_probe_of_one_pair_has_no_jackknife_values(tmp_path: Path, tiny_data: Path, tiny_vocabulary: Path) -> None:
    checkpoint = untrained(tmp_path / "checkpoint", SHAPE, tiny_vocabulary)
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    pairs.write_bytes(b"\xef\xbb\xbf" + pairs.read_bytes().splitlines()[0])  # with a byte order mark
    call = ("probe", checkpoint, "--data", tiny_data, "--sequences", 8, "--minimal-pairs", pairs, "--device", "cpu")
    printed = albert(*call, "--json").out
    assert "NaN" not in printed
    assert "minimal_pairs_accuracy" not in json.loads(printed)["without_parts"]
