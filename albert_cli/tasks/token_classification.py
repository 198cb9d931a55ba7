"""Token classification (the task `ner`): find the named entities of a text by a BIO tag for each word.

A word has the tag of its first token, in training and in prediction. Shapes: T packed tokens, N windows of texts, C
tags.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli import console
from albert_cli.data.arrays import offsets_from_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import TokenClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import AnyTask, Array, Task, as_any_task, check_finite, iter_evaluation_batches
from albert_cli.tasks.classification import match_labels, select_classifier_rows, softmax
from albert_cli.tasks.entities import OUTSIDE, Entity, score_entities, tag_labels, tags_to_entities
from albert_cli.tasks.features import Int32, Int64
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_data import (
    TokenExample,
    TokenFiles,
    find_token_files,
    parse_token_object,
    read_token_file,
    split_words,
)
from albert_cli.tasks.token_features import IGNORED, TokenFeatures, split_into_windows
from albert_cli.text.vocabulary import Vocabulary

METRICS = ("entity_f1", "entity_precision", "entity_recall", "accuracy")
NER = "ner"
ARCHITECTURE = "ForTokenClassification"


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task[TokenExample, TokenFeatures, list[Array]]):
    """A tag for each word; `labels` are the tags.

    The outputs are logits float32 [words, C] for each text, of its words up to the last one that has a token. Words
    without a token have the tag O: words of which cleaning leaves no character, and words within the token that an
    earlier word begins.
    """

    def parse_example(self, line: InputLine) -> TokenExample:
        """Parse a text. An object has a `text`, or `tokens`, which are joined by blanks."""
        if line.is_record:
            return parse_token_object(line.values(), str(line.number), line.where, labeled=False)
        return TokenExample(line.text, split_words(line.text), None, str(line.number))

    def example_fields(self, example: TokenExample) -> dict[str, object]:
        return {"text": example.text}

    def encode(self, examples: Sequence[TokenExample], vocabulary: Vocabulary, max_seq_length: int) -> TokenFeatures:
        """Tokenize texts; a text of more than `max_seq_length` tokens becomes several overlapping windows."""
        tokenized_texts = list(vocabulary.encode_with_offsets([example.text for example in examples]))
        ids = [np.empty(0, np.int32)]  # without examples the lists would be empty, which `np.concatenate` rejects
        begun_words = [np.empty(0, np.int64)]  # for each token: the index of the word that it begins, or -1
        labels = [np.empty(0, np.int64)]
        for example, tokens in zip(examples, tokenized_texts, strict=True):
            begun_word = _find_begun_words(example.words, tokens.starts, tokens.ends)
            ids.append(tokens.ids)
            begun_words.append(begun_word)
            if example.tags is not None:
                labels.append(self._token_labels(example.tags, begun_word))
        is_labeled = all(example.tags is not None for example in examples)
        offsets = offsets_from_lengths(np.array([len(tokens.ids) for tokens in tokenized_texts], dtype=np.int64))
        return TokenFeatures(
            ids=np.concatenate(ids).astype(np.int32),
            begun_word=np.concatenate(begun_words),
            labels=np.concatenate(labels) if is_labeled else None,
            offsets=offsets,
            windows=split_into_windows(offsets, max_seq_length - 2),  # without [CLS] and [SEP]
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
        )

    def _token_labels(self, tags: Sequence[str], begun_word: Int64) -> Int64:
        """Return the label of each token of a text, `IGNORED` for a token that begins no word."""
        word_labels = [self.labels.index(tag) for tag in tags]
        # Tokens that begin no word have the index -1, which selects the last element.
        return np.array([*word_labels, IGNORED], dtype=np.int64)[begun_word]

    def new_model(self, config: ModelConfig) -> TokenClassifier:
        return TokenClassifier(config, len(self.labels))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Return the cross-entropy, averaged over the labeled words of each window and summed over windows.

        `labels` are int64 [T].
        """
        tokens = pack(batch, device)
        label_T, window_T = to_device([labels, tokens.host.sequence], device)
        loss_T = F.cross_entropy(model(tokens).float(), label_T, ignore_index=IGNORED, reduction="none")
        is_word_T = (label_T != IGNORED).float()
        windows = len(batch.offsets) - 1
        words_N = torch.zeros(windows, device=device).index_add(0, window_T, is_word_T)
        return (loss_T / words_N.clamp(min=1).index_select(0, window_T)).sum()

    # ---------------------------------------------------------------- scoring

    def predict(self, model: nn.Module, features: TokenFeatures, device: torch.device) -> list[Array]:
        outputs = [self._outside_logits(words) for words in features.count_words()]
        windows = features.windows
        with torch.inference_mode():
            for index, tokens in iter_evaluation_batches(features, device):
                logits_TC = model(tokens).float().cpu().numpy()
                check_finite(logits_TC)
                for window, cls_position in zip(index.tolist(), tokens.host.offsets[:-1].tolist(), strict=True):
                    # Each token is scored in one window, and is only context in the others.
                    labeled = windows.labeled_tokens(window)
                    tokens_before = labeled.start - int(windows.tokens.start[window])  # context
                    first = cls_position + 1 + tokens_before
                    begun_word = features.begun_word[labeled]
                    logits = logits_TC[first : first + len(begun_word)]
                    begins_word = begun_word >= 0
                    text = int(windows.text[window])
                    outputs[text][begun_word[begins_word]] = logits[begins_word]
        return outputs

    def _outside_logits(self, words: int) -> Array:
        """Return logits [words, C] of the tag O, which words without a token keep."""
        logits = np.full((words, len(self.labels)), -30.0, dtype=np.float32)  # a probability of 1e-13
        logits[:, self.labels.index(OUTSIDE)] = 0.0
        return logits

    def predict_tags(self, example: TokenExample, logits: Array) -> list[str]:
        """Return the most likely tag of each word; O for the words after the last one with a token."""
        tags = [self.labels[index] for index in logits.argmax(axis=1)]
        words_without_logits = len(example.words) - len(tags)
        return tags + [OUTSIDE] * words_without_logits

    def compute_metrics(
        self, outputs: list[Array], features: TokenFeatures, examples: Sequence[TokenExample]
    ) -> dict[str, float]:
        """Compute entity precision, recall and F1, the accuracy of tags, and the mean loss of words with logits."""
        gold = []
        predicted = []
        losses = []
        for example, logits in zip(examples, outputs, strict=True):
            tags = example.tags or ()
            gold.append(tags)
            predicted.append(self.predict_tags(example, logits))
            labels = [self.labels.index(tag) for tag in tags[: len(logits)]]
            gold_probabilities = softmax(logits)[np.arange(len(labels)), labels]
            losses.append(-np.log(gold_probabilities + 1e-30))  # finite for a probability of 0
        return {**score_entities(gold, predicted), "loss": float(np.concatenate(losses).mean())}

    def score_baseline(self, train: Sequence[TokenExample], dev: Sequence[TokenExample]) -> float:
        """Compute entity F1 on dev if each word gets its most frequent tag in train; words not in train get O."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for example in train:
            for (start, end), tag in zip(example.words, example.tags or (), strict=True):
                counts[example.text[start:end]][tag] += 1
        most_frequent = {word: tag_counts.most_common(1)[0][0] for word, tag_counts in counts.items()}
        predicted = [[most_frequent.get(e.text[start:end], OUTSIDE) for start, end in e.words] for e in dev]
        return score_entities([e.tags or () for e in dev], predicted)["entity_f1"]

    def describe_collapse(self, outputs: list[Array], features: TokenFeatures) -> str | None:
        """Describe outputs without any entity, if there are gold entities."""
        outside = self.labels.index(OUTSIDE)
        has_gold = features.labels is not None and bool((~np.isin(features.labels, (outside, IGNORED))).any())
        has_predictions = any((logits.argmax(axis=1) != outside).any() for logits in outputs)
        return "no entity in any text" if has_gold and not has_predictions else None

    def average(self, outputs: Sequence[list[Array]]) -> list[Array]:
        """Return for each word the logarithms of the models' mean probabilities (§4.9)."""
        averaged = []
        for logits_of_models in zip(*outputs, strict=True):
            probabilities = np.mean([softmax(logits) for logits in logits_of_models], axis=0)
            averaged.append(np.log(probabilities + 1e-30))  # finite for a probability of 0
        return averaged

    def format_predictions(
        self, examples: Sequence[TokenExample], outputs: list[Array], *, with_details: bool
    ) -> list[str]:
        """Return JSON lines with id, text, and predicted entities: character offsets, type, text, score.

        `with_details` adds the gold entities unless they are hidden.
        """
        lines = []
        for example, logits in zip(examples, outputs, strict=True):
            line: dict[str, object] = {"id": example.id, "text": example.text}
            if with_details and example.tags is not None:
                gold = tags_to_entities(example.tags, example.words)
                line["label"] = [_entity_fields(entity, example.text) for entity in gold]
            line["prediction"] = self._predicted_entities(example, logits)
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines

    def _predicted_entities(self, example: TokenExample, logits: Array) -> list[dict[str, object]]:
        """Return a text's entities; an entity's score is the mean probability of its words' tags."""
        tags = self.predict_tags(example, logits)
        probabilities = softmax(logits).max(axis=1) if len(logits) else np.zeros(0)
        # The words after the last one with a token have no logits, and are outside all entities.
        words_with_logits = example.words[: len(probabilities)]
        entities = []
        for entity in tags_to_entities(tags, example.words):
            inside = [entity.start <= start and end <= entity.end for start, end in words_with_logits]
            score = float(np.mean(probabilities[inside]))
            entities.append({**_entity_fields(entity, example.text), "score": round(score, 5)})
        return entities

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, ARCHITECTURE, self.labels, finetuned)

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        return self.accepts_checkpoint(checkpoint) and self._head_rows(checkpoint) is not None

    def _head_rows(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        """Return the index of the head's row for each tag; None for a head of another class or with other tags."""
        return match_labels(self.labels, tag_names(checkpoint))

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        rows = self._head_rows(checkpoint)
        if rows is None:
            tags = ", ".join(checkpoint.output_names) or "none"
            message = f"{checkpoint.directory}: its tags ({tags}) are not {self.title}'s ({', '.join(self.labels)})"
            raise CheckpointError(message, "use a model of these tags, or -s model.head=new")
        return select_classifier_rows(checkpoint, rows)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task from the tags of a token classifier; raises `CheckpointError` if O is not among them."""
        if checkpoint.architecture != ARCHITECTURE:
            return None
        if OUTSIDE not in checkpoint.output_names:
            message = f"{checkpoint.directory}: none of its tags is O ({', '.join(checkpoint.output_names)})"
            raise CheckpointError(message, "use a model with BIO tags")
        return cls(name="", title="predict", metrics=(), labels=checkpoint.output_names, inputs=1)


def open_token_task(settings: TableSettings, data: str | None, model_labels: tuple[str, ...]) -> AnyTask:
    """Make the task `ner` of the tagged words in `data`: a folder with a file for each split, or a single file.

    The tags are those of train. For a single file, or without train, they are `model_labels`, the tags of the model, if
    it has any. Raises `ConfigError` for data None, and `InputError` for missing or damaged files.
    """
    if data is None:
        raise ConfigError("the task 'ner' has no data", "use --data DIR with train.conll or train.jsonl")
    files = find_token_files(data)
    first_file = next(iter(files.values()))  # train, or the first file if there is no train
    # A single file is found as train, but may be only for scoring.
    source = TokenFiles(files, settings.holdout, is_single_file=files == {"train": data})
    is_for_scoring = source.is_single_file or "train" not in files
    if is_for_scoring and model_labels:
        labels = model_labels
    else:
        examples = read_token_file(Path(first_file))
        labels = tag_labels([tag[2:] for example in examples for tag in example.tags or () if tag != OUTSIDE])
    if len(labels) < 2:
        raise InputError(f"{first_file}: no entities, so there is nothing to learn")
    types = ", ".join(label[2:] for label in labels if label.startswith("B-"))
    console.info(f"{first_file}: words → entities ({types})")
    has_default_title = settings.title == TableSettings.title
    task = TokenClassification(
        name=NER,
        title="Named entities" if has_default_title else settings.title,
        metrics=METRICS,
        labels=labels,
        inputs=1,
        source=source,
        train_split="train" if "train" in files else None,
        # Without a dev file, a part of train is held out (`settings.holdout`).
        dev_splits=("dev",) if {"train", "dev"} & files.keys() else (),
        test_splits=("test",) if "test" in files else (),
    )
    return as_any_task(task)


def tag_names(checkpoint: hub.Checkpoint) -> tuple[str, ...]:
    """Return the tags of a checkpoint's token classifier; () if it has none."""
    return checkpoint.output_names if checkpoint.architecture == ARCHITECTURE else ()


def _find_begun_words(words: Sequence[tuple[int, int]], starts: Int32, ends: Int32) -> Int64:
    """Return for each token the index of the word of which it is the first token, or -1, int64 [tokens].

    `words`, `starts` and `ends` are character positions in the text, in ascending order.
    """
    begun_word: NDArray[np.int64] = np.full(len(starts), -1, dtype=np.int64)
    token = 0
    for index, (start, end) in enumerate(words):
        while token < len(starts) and ends[token] <= start:
            token += 1
        if token < len(starts) and starts[token] < end:
            begun_word[token] = index
            token += 1
    return begun_word


def _entity_fields(entity: Entity, text: str) -> dict[str, object]:
    """Return an entity as it is written into a file of predictions."""
    return {"start": entity.start, "end": entity.end, "label": entity.type, "text": text[entity.start : entity.end]}
