from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from albert_cli import store
from albert_cli.data.batches import original_ids, sample_batch
from albert_cli.data.build import build_data
from albert_cli.data.describe import decode_examples, measure_lengths, measure_sample
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.tokenization import BuildSettings
from albert_cli.errors import CheckpointError
from albert_cli.inspection import describe_directory
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.corpora import FakeVocabulary, numbered_corpus, text_like_corpus

Files = Callable[[int], list[str]]


@pytest.fixture
def data(small_vocabulary: Path, write_files: Files, tmp_path: Path) -> Path:
    build_data(
        write_files(2), small_vocabulary, tmp_path / "data", BuildSettings(holdout=0.1, split_bytes=20_000), workers=1
    )
    return tmp_path / "data"


def test_a_data_directory_is_described_with_examples(data: Path) -> None:
    facts, text = describe_directory(data, examples=3, step=2, seed=1)
    assert json.loads(json.dumps(facts))["kind"] == "data"
    assert [example["index"] for example in facts["examples"]] == [64, 65, 66]
    assert "from step 2, 32 sequences a step, seed 1:" in text
    assert text.count("example ") == 3
    assert "  A: " in text
    assert "[" in text.split("example", 1)[1]
    assert "\x1b" not in text, "no colour where stdout is not a terminal"
    pieces = facts["totals"]["train"]["tokens"]
    assert facts["tokens_per"]["document"]["mean"] == pytest.approx(
        pieces / facts["totals"]["train"]["documents"], 0.01
    )


@pytest.mark.parametrize("colour", [True, False])
def test_examples_fit_a_terminal_and_are_coloured_unless_it_is_refused(
    colour: bool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    _, text = describe_directory(data, examples=2)
    assert ("\x1b[" in text) == colour
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines()[1:])) <= 80
    assert re.search(r" \[\S", plain), "the marks stay where colour is refused, and where it is not"


def test_lengths_of_documents_and_sentences_are_read_from_every_shard() -> None:
    corpus = numbered_corpus([[[4, 4]] * 50, [[8] * 5] * 30])
    found = measure_lengths(corpus)
    assert found["document"] == {"mean": 20.0, "p5": 8, "p50": 8, "p95": 40}
    assert found["sentence"] == {"mean": 6.4, "p5": 4, "p50": 8, "p95": 8}


def test_decoded_examples_are_the_text_of_the_batch(data: Path) -> None:
    corpus, vocabulary = TokenCorpus.open(data), Vocabulary.load(data / "vocabulary")
    packed = sample_batch(corpus, vocabulary, PairSettings(max_seq_length=64), 0, np.arange(20))
    ids = original_ids(packed)
    for row, example in enumerate(decode_examples(packed, vocabulary.pieces, range(20))):
        window = slice(int(packed.offsets[row]), int(packed.offsets[row + 1]))
        text = " ".join("".join(part for part, _ in run) for run in example["segments"])
        ordinary = [i for i in ids[window].tolist() if i >= vocabulary.first_ordinary_id]
        assert text.split() == vocabulary.decode(ordinary).split() or packed.segment_ids[window].any()
        assert text.replace(" ", "") == vocabulary.decode(ordinary).replace(" ", "")
        masked = [seen for run in example["segments"] for _, seen in run if seen is not None]
        inside = (packed.masked_index >= window.start) & (packed.masked_index < window.stop)
        shown = "".join(vocabulary.pieces[i] for i in packed.ids[packed.masked_index[inside]].tolist())
        assert "".join(masked) == shown.replace("▁", " ")


def test_the_sample_shows_the_rates_that_the_settings_ask_for() -> None:
    facts = measure_sample(text_like_corpus(400), FakeVocabulary(), PairSettings(max_seq_length=128), 0)
    assert facts["mask_rate"] == pytest.approx(0.15, abs=0.005)
    assert facts["label_1_fraction"] == pytest.approx(0.5, abs=0.07)
    assert facts["ngram_fractions"] == pytest.approx(facts["ngram_expected"], abs=0.08)
    assert facts["one_segment_fraction"] == 0


def test_the_sample_says_how_often_short_documents_are_drawn() -> None:
    corpus, vocabulary = numbered_corpus([[[5, 5]] * 60, [[500]] * 20]), FakeVocabulary()
    for rules, draws, examples in (
        (PairSettings(103), 0.1, 106),
        (PairSettings(13), None, 1060),
    ):
        found = measure_sample(corpus, vocabulary, rules, 0)
        assert found["short_documents"] == pytest.approx(0.75 if draws else 0, abs=0.03)
        assert (found["short_document_draws"], found["examples_per_pass"]) == (draws, examples)


def test_a_vocabulary_is_described(small_vocabulary: Path) -> None:
    facts, text = describe_directory(small_vocabulary)
    assert facts["size"] == 300
    assert "ordinary_tokens" in text


def test_verify_counts_files_and_names_the_damaged_one(data: Path) -> None:
    assert describe_directory(data, verify=True)[0]["verified"] > 10
    path, *_ = sorted(data.glob("shards/*/train-00.ids"))
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"train-00\.ids"):
        describe_directory(data, verify=True)


def test_a_run_directory_shows_its_last_metrics(tmp_path: Path) -> None:
    records = [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": 2.0},
        {"step": 2, "eval": {"mlm_loss": 5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    with store.commit_directory(tmp_path / "step-00000002", "checkpoint") as staging:
        (staging / "config.json").write_text('{"model_type": "albert", "hidden_size": 64}')
    facts, text = describe_directory(tmp_path)
    assert facts["kind"] == "run"
    assert facts["checkpoints"] == ["step-00000002"]
    assert facts["last_training"]["loss"] == 2.0
    assert "mlm_loss" in text
    assert describe_directory(tmp_path / "step-00000002")[0]["model"]["hidden_size"] == 64
    assert describe_directory(tmp_path, verify=True)[0]["verified"] == 1


def test_a_run_that_ended_before_its_first_logged_step_is_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("[train]\nseed = 0\n")
    store.write_json(tmp_path / "status.json", {"state": "diverged", "exit_code": 5})
    facts, text = describe_directory(tmp_path)
    assert facts["kind"] == "run" and "diverged" in text


def test_what_is_nothing_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing of this program"):
        describe_directory(tmp_path)
    with pytest.raises(CheckpointError, match="no such directory"):
        describe_directory(tmp_path / "missing")
    (tmp_path / "a.txt").write_text("Words.\n")
    with pytest.raises(CheckpointError, match=r"a\.txt: a file"):
        describe_directory(tmp_path / "a.txt")


def test_pieces_cannot_drive_the_terminal() -> None:
    corpus = text_like_corpus(20, size=9)
    vocabulary = FakeVocabulary(size=9, is_word_start=np.ones(9, bool))
    packed = sample_batch(corpus, vocabulary, PairSettings(max_seq_length=32), 0, np.arange(2))
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "\x1b[31m", "a\nb", "▁c", "d"]
    shown = json.dumps(decode_examples(packed, pieces, [0, 1]))
    assert "\\u001b" not in shown
    assert "\\n" not in shown
