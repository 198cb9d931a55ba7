"""Token classification: find the named entities of a text with a BIO tag for each word.

A word has the tag of its first token, in training and in prediction. Shapes: T packed tokens, N texts, C tags.
"""

from __future__ import annotations

import dataclasses
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
from albert_cli.tasks.base import AnyTask, Array, Task, as_any_tasks, check_finite, iter_evaluation_batches
from albert_cli.tasks.classification import comparable_name, softmax
from albert_cli.tasks.entities import OUTSIDE, score_entities, tag_labels, tags_to_entities
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
    """A tag for each word; the outputs are logits [words, C] of each text; words without a token have the tag O."""

    def example(self, line: InputLine) -> TokenExample:
        """Parse a text, or in JSON `text`, or `tokens` that are joined by blanks."""
        if line.is_record:
            return parse_token_object(line.values(), str(line.number), line.where, labeled=False)
        return TokenExample(line.text, split_words(line.text), None, str(line.number))

    def example_fields(self, example: TokenExample) -> dict[str, object]:
        return {"text": example.text}

    def encode(self, examples: Sequence[TokenExample], vocabulary: Vocabulary, max_seq_length: int) -> TokenFeatures:
        """Tokenize texts; a text of more than `max_seq_length` tokens becomes several overlapping windows."""
        encoded = list(vocabulary.encode_with_offsets([example.text for example in examples]))
        begun_words = [_find_begun_words(e.words, t.starts, t.ends) for e, t in zip(examples, encoded, strict=True)]
        labels = None
        if all(example.tags is not None for example in examples):
            labels_by_text = [self._token_labels(e, w) for e, w in zip(examples, begun_words, strict=True)]
            labels = np.concatenate([np.empty(0, np.int64), *labels_by_text])
        offsets = offsets_from_lengths(np.array([len(tokens.ids) for tokens in encoded], dtype=np.int64))
        windows = split_into_windows(offsets, max_seq_length - 2)
        return TokenFeatures(
            ids=np.concatenate([np.empty(0, np.int32), *(tokens.ids for tokens in encoded)]).astype(np.int32),
            begun_word=np.concatenate([np.empty(0, np.int64), *begun_words]),
            labels=labels,
            offsets=offsets,
            windows=windows,
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
        )

    def _token_labels(self, example: TokenExample, begun_word: Int64) -> Int64:
        """Return the label of each token of a text."""
        # The index -1, of tokens that begin no word, selects the last element.
        tags = np.array([self.labels.index(tag) for tag in example.tags or ()] + [IGNORED], dtype=np.int64)
        return tags[begun_word]

    def new_model(self, config: ModelConfig) -> TokenClassifier:
        return TokenClassifier(config, len(self.labels))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Return the cross-entropy, averaged over the words of each window and summed over windows."""
        tokens = pack(batch, device)
        label_T, sequence_T = to_device([labels, tokens.host.sequence], device)
        loss_T = F.cross_entropy(model(tokens).float(), label_T, ignore_index=IGNORED, reduction="none")
        is_word_T = (label_T != IGNORED).float()
        texts = len(batch.offsets) - 1
        words_N = torch.zeros(texts, device=device).index_add(0, sequence_T, is_word_T)
        return (loss_T / words_N.clamp(min=1).index_select(0, sequence_T)).sum()

    # ---------------------------------------------------------------- scoring

    def predict(self, model: nn.Module, features: TokenFeatures, device: torch.device) -> list[Array]:
        outputs = [self._outside_logits(words) for words in features.words_of_texts()]
        windows = features.windows
        with torch.inference_mode():
            for index, tokens in iter_evaluation_batches(features, device):
                logits_TC = model(tokens).float().cpu().numpy()
                check_finite(logits_TC)
                for window, cls_position in zip(index.tolist(), tokens.host.offsets[:-1].tolist(), strict=True):
                    begun_word = features.begun_word[windows.labeled_tokens(window)]
                    first = cls_position + 1 + int(windows.labeled.start[window] - windows.tokens.start[window])
                    begins = begun_word >= 0
                    logits = logits_TC[first : first + len(begun_word)]
                    outputs[int(windows.text[window])][begun_word[begins]] = logits[begins]
        return outputs

    def _outside_logits(self, words: int) -> Array:
        """Return logits [words, C] of the tag O, which words without a token retain."""
        logits = np.full((words, len(self.labels)), -30.0, dtype=np.float32)
        logits[:, self.labels.index(OUTSIDE)] = 0.0
        return logits

    def tags_of(self, example: TokenExample, logits: Array) -> list[str]:
        """Return the most likely tag of each word."""
        tags = [self.labels[index] for index in logits.argmax(axis=1)]
        return tags + [OUTSIDE] * (len(example.words) - len(tags))

    def compute_metrics(
        self, outputs: list[Array], features: TokenFeatures, examples: Sequence[TokenExample]
    ) -> dict[str, float]:
        """Compute entity precision, recall and F1, the accuracy of tags, and the mean loss of words."""
        gold = [list(example.tags or ()) for example in examples]
        predicted = [self.tags_of(example, logits) for example, logits in zip(examples, outputs, strict=True)]
        losses = []
        for example, logits in zip(examples, outputs, strict=True):
            labels = [self.labels.index(tag) for tag in (example.tags or ())[: len(logits)]]
            losses.append(-np.log(softmax(logits)[np.arange(len(labels)), labels] + 1e-30))
        return {**score_entities(gold, predicted), "loss": float(np.concatenate(losses).mean())}

    def score_baseline(self, train: Sequence[TokenExample], dev: Sequence[TokenExample]) -> float:
        """Return entity F1 if each word gets its most frequent tag in train, and O if it does not occur there."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for example in train:
            for (start, end), tag in zip(example.words, example.tags or (), strict=True):
                counts[example.text[start:end]][tag] += 1
        tags = {word: count.most_common(1)[0][0] for word, count in counts.items()}
        predicted = [[tags.get(e.text[start:end], OUTSIDE) for start, end in e.words] for e in dev]
        return score_entities([e.tags or () for e in dev], predicted)[METRICS[0]]

    def describe_collapse(self, outputs: list[Array], features: TokenFeatures) -> str | None:
        outside = self.labels.index(OUTSIDE)
        predicts_none = all((logits.argmax(axis=1) == outside).all() for logits in outputs)
        has_entities = features.labels is not None and bool((features.labels > outside).any())
        return "no entity in any text" if predicts_none and has_entities else None

    def average(self, outputs: Sequence[list[Array]]) -> list[Array]:
        """Return the logarithms of the probabilities of each word's tags, averaged over the models."""
        return [np.log(np.mean([softmax(x) for x in texts], axis=0) + 1e-30) for texts in zip(*outputs, strict=True)]

    def format_predictions(self, examples: Sequence[TokenExample], outputs: list[Array], *, scored: bool) -> list[str]:
        """Return lines with id, text, predicted entities (character offsets, label, score), and gold entities."""
        lines = []
        for example, logits in zip(examples, outputs, strict=True):
            line: dict[str, object] = {"id": example.id, "text": example.text}
            if scored and example.tags is not None:
                line["label"] = [
                    _describe_entity(example.text, *e) for e in tags_to_entities(example.tags, example.words)
                ]
            line["prediction"] = self._entities(example, logits)
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines

    def _entities(self, example: TokenExample, logits: Array) -> list[dict[str, object]]:
        """Return a text's entities; the score is the mean probability of their words' tags."""
        tags = self.tags_of(example, logits)
        probability = softmax(logits).max(axis=1) if len(logits) else np.zeros(0)
        entities = []
        for start, end, kind in tags_to_entities(tags, example.words):
            inside = [i for i, (first, last) in enumerate(example.words) if start <= first and last <= end]
            # Words after the last one that begins a token have no logits.
            score = float(np.mean([probability[i] for i in inside if i < len(probability)]))
            entities.append({**_describe_entity(example.text, start, end, kind), "score": round(score, 5)})
        return entities

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, ARCHITECTURE, self.labels, finetuned)

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        return self.accepts_checkpoint(checkpoint) and self._head_rows(checkpoint) is not None

    def _head_rows(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        """Return the head's row for each tag, by name; None for another head."""
        names = [comparable_name(name) for name in checkpoint.output_names]
        wanted = [comparable_name(name) for name in self.labels]
        if checkpoint.architecture != ARCHITECTURE or sorted(names) != sorted(wanted):
            return None
        return [names.index(name) for name in wanted]

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        """Order the head's rows as this task's tags, by name; raises `CheckpointError` if the names differ."""
        rows = self._head_rows(checkpoint)
        if rows is None:
            tags = ", ".join(checkpoint.output_names) or "none"
            message = f"{checkpoint.directory}: its tags ({tags}) are not {self.title}'s ({', '.join(self.labels)})"
            raise CheckpointError(message, "use a model of these tags, or -s model.head=new")
        head = {name: tensor[rows] for name, tensor in checkpoint.tensors.items() if name.startswith("classifier.")}
        return dataclasses.replace(checkpoint, tensors=checkpoint.tensors | head)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        if checkpoint.architecture != ARCHITECTURE:
            return None
        if OUTSIDE not in checkpoint.output_names:
            message = f"{checkpoint.directory}: none of its tags is O ({', '.join(checkpoint.output_names)})"
            raise CheckpointError(message, "use a model with BIO tags")
        return cls(name="", title="predict", metrics=(), labels=checkpoint.output_names, inputs=1)


def open_token_task(settings: TableSettings, data: str | None, model_labels: tuple[str, ...]) -> AnyTask:
    """Make a task from files of tagged words.

    The tags come from the folder's train file. For a single file, or without a train file, they come from the model, if
    it has tags. Raises `ConfigError` without `--data`, and `InputError` for missing or damaged files.
    """
    if data is None:
        raise ConfigError("the task 'ner' has no data", "use --data DIR with train.conll or train.jsonl")
    files = find_token_files(data)
    first_file = next(iter(files.values()))
    source = TokenFiles(files, settings.holdout, is_single_file=files == {"train": data})
    labels = model_labels
    if ("train" in files and not source.is_single_file) or not model_labels:
        examples = read_token_file(Path(files.get("train", first_file)))
        labels = tag_labels([tag[2:] for example in examples for tag in example.tags or () if tag != OUTSIDE])
    if len(labels) < 2:
        raise InputError(f"{first_file}: no entities, so there is nothing to learn")
    types = ", ".join(label[2:] for label in labels if label.startswith("B-"))
    console.info(f"{first_file}: words → entities ({types})")
    task = TokenClassification(
        name=NER,
        title="Named entities" if settings.title == "table" else settings.title,
        metrics=METRICS,
        labels=labels,
        inputs=1,
        source=source,
        train_split="train" if "train" in files else None,
        dev_splits=("dev",) if {"train", "dev"} & files.keys() else (),
        test_splits=("test",) if "test" in files else (),
    )
    return as_any_tasks({NER: task})[NER]


def tag_names(checkpoint: hub.Checkpoint) -> tuple[str, ...]:
    """Return the tags of a checkpoint's token classifier; () if it has none."""
    return checkpoint.output_names if checkpoint.architecture == ARCHITECTURE else ()


def _find_begun_words(words: Sequence[tuple[int, int]], starts: Int32, ends: Int32) -> Int64:
    """Return for each token the index of the word that it begins, or -1, int64 [tokens]."""
    begun_word: NDArray[np.int64] = np.full(len(starts), -1, dtype=np.int64)
    token = 0
    for index, (start, end) in enumerate(words):
        while token < len(starts) and ends[token] <= start:
            token += 1
        if token < len(starts) and starts[token] < end:
            begun_word[token] = index
            token += 1
    return begun_word


def _describe_entity(text: str, start: int, end: int, kind: str) -> dict[str, object]:
    return {"start": start, "end": end, "label": kind, "text": text[start:end]}
