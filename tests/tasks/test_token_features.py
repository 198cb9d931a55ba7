"""Long texts with entities: windows as in `transformers`, every word labeled once, predictions joined."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from albert_cli.model.packing import PackedTokens
from albert_cli.tasks.entities import tag_labels
from albert_cli.tasks.token_classification import TokenClassification
from albert_cli.tasks.token_data import TokenExample, read_token_file, split_words
from albert_cli.tasks.token_features import IGNORED, TokenFeatures, split_into_windows, window_overlap
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.task_runs import SHAPE

TASK = TokenClassification(name="t", title="t", metrics=(), labels=tag_labels(["LOC", "PER"]))
LIMIT = 24
WORDS = " ".join(["bade wi figo luma , ne wix kra"] * 7)
LONG = " ".join(f"bade wi{'x' * (i % 3)} figo luma, ne kra" for i in range(9))


def example(text: str, name: str = "0") -> TokenExample:
    words = split_words(text)
    return TokenExample(text, words, tuple(TASK.labels[i % 5] for i in range(len(words))), name)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 22, 60])
def test_split_into_windows_labels_every_token_once(size: int) -> None:
    lengths = [0, 1, size - 1, size, size + 1, 2 * size, 100, 3]
    windows = split_into_windows(np.cumsum([0, *lengths]), size)
    tagged = np.concatenate([np.arange(sum(lengths))[windows.tagged_tokens(w)] for w in range(len(windows.text))])
    assert tagged.tolist() == list(range(sum(lengths))), "each token once, in order"
    assert (windows.tokens.length <= size).all() and set(windows.text) == set(range(len(lengths)))
    inside = windows.tagged.start >= windows.tokens.start
    assert (
        inside.all()
        and (windows.tagged.start + windows.tagged.length <= windows.tokens.start + windows.tokens.length).all()
    )
    assert np.bincount(windows.text)[:4].tolist() == [1, 1, 1, 1], "a text that fits is one window"


def test_encode_windows_equal_overflowing_tokens(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.copy_to(tmp_path, 48)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["", "bade", LONG, "figo luma"]
    features = TASK.encode([example(text) for text in texts], vocabulary, LIMIT)
    packed, _ = features.batch(np.arange(len(features)))
    stride = window_overlap(LIMIT - 2)
    theirs = tokenizer(texts, max_length=LIMIT, truncation=True, stride=stride, return_overflowing_tokens=True)
    bounds = zip(packed.offsets[:-1], packed.offsets[1:], strict=True)
    assert [packed.ids[a:b].tolist() for a, b in bounds] == theirs["input_ids"]
    assert features.windows.text.tolist() == theirs["overflow_to_sample_mapping"]
    assert len(features) > 8 and features.truncated == 0


def test_encode_long_text_has_every_label_once(vocabulary: Vocabulary) -> None:
    long = example(LONG)
    features = TASK.encode([long, example("bade")], vocabulary, LIMIT)
    _, labels = features.batch(np.arange(len(features)))
    assert labels is not None
    shuffled = np.arange(len(features))[::-1]
    _, reversed_labels = features.batch(shuffled)
    assert reversed_labels is not None and sorted(reversed_labels) == sorted(labels)
    whole = TASK.encode([long, example("bade")], vocabulary, 512)
    _, whole_labels = whole.batch(np.arange(2))
    assert len(whole) == 2 and whole_labels is not None
    assert labels[labels != IGNORED].tolist() == whole_labels[whole_labels != IGNORED].tolist()
    begins_word = whole.begun_word >= 0
    assert whole.labels is not None
    assert whole.labels[begins_word].tolist() == [TASK.labels.index(tag) for tag in (*(long.tags or ()), "O")]


def test_predict_word_within_a_token_continues_its_entity(vocabulary: Vocabulary) -> None:
    text = "bade wi"
    letters = tuple((index, index + 1) for index, letter in enumerate(text) if letter != " ")
    features = TASK.encode([TokenExample(text, letters, None, "0")], vocabulary, LIMIT)
    assert features.count_words() == [len(letters)]
    begins_word = features.begun_word >= 0
    assert (features.further_words[begins_word].sum() + begins_word.sum()) == len(letters)
    assert features.further_words.max() > 0, "a token of several letters"

    class SecondTag(torch.nn.Module):
        def forward(self, tokens: PackedTokens) -> torch.Tensor:
            return torch.tensor([[0.0, 2.0, 1.0, 0.5, 0.0]]).repeat(len(tokens.ids), 1)

    (logits,) = TASK.predict(SecondTag(), features, torch.device("cpu"))
    tags = TASK.predict_tags(TokenExample(text, letters, None, "0"), logits)
    first_words = features.begun_word[begins_word]
    assert tags == ["B-LOC" if index in first_words else "I-LOC" for index in range(len(letters))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was fine-tuned on texts of one window and scored on longer texts; every word is a token.

    `bade` is a place, `figo luma` a person.
    """
    folder = tmp_path_factory.mktemp("long")
    rng = random.Random(0)
    words = ("bade", "wi", "wix", "figo", "luma", "ne", "kra", ",")
    (folder / "text.txt").write_text("".join(" ".join(rng.choices(words, k=9)) + "\n" for _ in range(2000)))
    albert("vocab", folder / "text.txt", "--size", 39, "--out", folder / "vocabulary")
    shape = replace(SHAPE, vocab_size=Vocabulary.load(folder / "vocabulary").size)
    encoder = untrained(folder / "encoder", shape, folder / "vocabulary")
    tags = ("B-LOC", "O", "B-PER", "I-PER", "O", "O", "O", "O")
    lines = [f"{word} {tag}\n" for word, tag in zip(WORDS.split(), tags * 7, strict=True)]
    # Texts of one window train every position of it; of two overlapping windows, only one trains a token.
    for split, size in (("train", LIMIT - 2), ("dev", 40)):
        texts = ["".join(lines[start : start + size]) for start in range(16)]
        (folder / f"{split}.conll").write_text("\n".join(texts))
    call: list[object] = ["finetune", "ner", "--checkpoint", encoder, "--data", folder, "--out", folder / "model"]
    call += QUICK
    for setting in ("optimizer.lr=5e-3", "schedule.total_steps=80", "train.eval_every=80"):
        call += ["-s", setting]
    call += ["-s", f"data.max_seq_length={LIMIT}"]
    albert(*call)
    return folder / "model"


def test_predict_long_text_equals_the_pipeline(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(WORDS + "\n")
    albert("predict", model, "--input", tmp_path / "in.txt", "--out", tmp_path / "out.jsonl", "--device", "cpu")
    ours = json.loads((tmp_path / "out.jsonl").read_text())["prediction"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, model_max_length=LIMIT)
    pipeline = transformers.pipeline(
        "token-classification", model=str(model), tokenizer=tokenizer, device="cpu", aggregation_strategy="simple",
        stride=window_overlap(LIMIT - 2),
    )  # fmt: skip
    # A token of SentencePiece begins with the blank before its word.
    theirs = {
        (e["end"] - len(WORDS[e["start"] : e["end"]].strip()), e["end"], e["entity_group"]) for e in pipeline(WORDS)
    }
    assert {(e["start"], e["end"], e["label"]) for e in ours} == theirs
    assert len(ours) == 14 and ours[-1]["start"] > 150, "the whole text is tagged"


def test_finetune_scores_the_end_of_a_long_text(model: Path) -> None:
    result = json.loads((model / "results.json").read_text())
    assert result["scores"]["entity_f1"] > 0.9
    line = json.loads((model / "predictions.dev.jsonl").read_text().splitlines()[0])
    assert line["prediction"][-1]["start"] == line["label"][-1]["start"] > 80


def test_features_of_texts_without_tokens(vocabulary: Vocabulary) -> None:
    features = TASK.encode([example(""), example(" ")], vocabulary, LIMIT)
    assert isinstance(features, TokenFeatures) and features.lengths.tolist() == [2, 2]
    assert features.count_words() == [0, 0]


def test_describe_collapse_with_o_as_the_last_tag(vocabulary: Vocabulary) -> None:
    task = TokenClassification(name="t", title="t", metrics=(), labels=("B-PER", "I-PER", "O"))
    text = example("bade")
    features = task.encode([replace(text, tags=("B-PER",))], vocabulary, LIMIT)
    only_o = np.array([[0.0, 0.0, 1.0]], dtype=np.float32)
    assert task.describe_collapse([only_o], features) == "no entity in any text"
    assert task.describe_collapse([only_o[:, ::-1]], features) is None


@pytest.mark.parametrize(
    ("labels", "tags", "gold_classes"),
    [
        (("O", "I-PER"), "I-PER I-PER O", [1, 1, 0]),  # IO
        (("O", "B-LOC", "I-LOC", "I-PER"), "I-PER I-LOC I-LOC B-LOC O", [3, 1, 2, 1, 0]),  # IOB1, as in CoNLL 2003
        (("O", "B-PER"), "B-PER O", [1, 0]),
    ],
)
def test_token_task_scores_a_head_without_some_tags(
    labels: tuple[str, ...], tags: str, gold_classes: list[int], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    words = zip(["bade", "wi", "figo", "luma", "ne"], tags.split(), strict=False)
    (tmp_path / "a.conll").write_text("".join(f"{word} {tag}\n" for word, tag in words))
    task = replace(TASK, labels=labels)
    examples = read_token_file(tmp_path / "a.conll", tags=labels)
    features = task.encode(examples, vocabulary, LIMIT)
    assert features.labels is not None
    assert features.labels[features.begun_word >= 0].tolist() == gold_classes
    perfect = 60 * np.eye(len(labels), dtype=np.float32)[[labels.index(tag) for tag in tags.split()]]
    scores = task.compute_metrics([perfect], features, examples)
    assert (scores["entity_f1"], scores["accuracy"]) == (1, 1)


def test_token_task_scores_words_whose_tag_the_head_lacks(vocabulary: Vocabulary) -> None:
    task = replace(TASK, labels=("O", "B-PER"))
    people = replace(example("bade wi ne"), tags=("B-PER", "I-PER", "O"))
    features = task.encode([people], vocabulary, LIMIT)
    logits = 60 * np.eye(2, dtype=np.float32)[[1, 1, 0]]
    scores = task.compute_metrics([logits], features, [people])
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["loss"] == pytest.approx(0)  # of the words whose tags the head has
