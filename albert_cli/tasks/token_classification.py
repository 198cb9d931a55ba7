"""Token classification (the task `ner`): find the named entities of a text by a BIO tag for each word.

The tag of a word is predicted at the word's first token. Further tokens are trained, too. Programs that read the tag of
every token, such as the `pipeline` of `transformers`, then find whole entities.

Shapes: T packed tokens, N windows of texts, W words, C tags.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli import console
from albert_cli.data.arrays import concatenate_ranges
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.formatting import round_prediction
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import TokenClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import AnyTask, Array, Task, as_any_task, check_finite, iter_evaluation_batches
from albert_cli.tasks.classification import softmax
from albert_cli.tasks.entities import (
    OUTSIDE,
    Entity,
    entity_types,
    find_overlapped_words,
    inside_tag,
    is_tag,
    normalize_tags,
    score_entities,
    tag_labels,
    tags_to_entities,
)
from albert_cli.tasks.features import Int32, Int64, tokenize_with_offsets
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.label_names import match_outputs
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_data import (
    TokenExample,
    TokenFiles,
    describe_file,
    find_token_files,
    parse_token_object,
    read_token_file,
    split_words,
)
from albert_cli.tasks.token_features import IGNORED, TokenFeatures, split_into_windows
from albert_cli.text.vocabulary import Vocabulary

NER = "ner"
ARCHITECTURE = "ForTokenClassification"
_TABLE_SETTINGS = ("title", "holdout")  # the settings of `[table]` that the task `ner` uses


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task[TokenExample, TokenFeatures, list[Array]]):
    """Prediction of a tag for each word; `labels` are the tags.

    A word inside the first token of an earlier word continues that word: its predicted tag is the I tag of the same
    type. A word of which normalization leaves no character has no token, and its predicted tag is O.

    The outputs are logits float32 [words, C] for each text, of its words up to the last word that has a token.
    """

    def parse_example(self, line: InputLine) -> TokenExample:
        """Parse a line of text, or a record with a `text` or with `tokens`, which are joined."""
        if line.has_named_values:
            return parse_token_object(line.values(), str(line.number), line.where, labeled=False)
        return TokenExample(line.text, split_words(line.text), None, str(line.number))

    def example_fields(self, example: TokenExample) -> dict[str, object]:
        return {"text": example.text}

    def encode(self, examples: Sequence[TokenExample], vocabulary: Vocabulary, max_seq_length: int) -> TokenFeatures:
        """Tokenize texts; a text of more than `max_seq_length` tokens becomes several overlapping windows."""
        tokens = tokenize_with_offsets([example.text for example in examples], vocabulary)
        begun_word = np.full(len(tokens.ids), -1, dtype=np.int64)  # index of the word that each token begins, -1: none
        further_words = np.zeros(len(tokens.ids), dtype=np.int64)
        labels = np.full(len(tokens.ids), IGNORED, dtype=np.int64)
        offsets = tokens.offsets.tolist()
        for example, start, end in zip(examples, offsets[:-1], offsets[1:], strict=True):
            token_starts = tokens.starts[start:end]
            token_ends = tokens.ends[start:end]
            begun, further = _find_begun_words(example.words, token_starts, token_ends)
            begun_word[start:end] = begun
            further_words[start:end] = further
            if example.tags is not None:
                labels[start:end] = self._token_labels(example, begun_word[start:end], token_starts, token_ends)
        is_labeled = all(example.tags is not None for example in examples)
        return TokenFeatures(
            ids=tokens.ids,
            begun_word=begun_word,
            further_words=further_words,
            labels=labels if is_labeled else None,
            offsets=tokens.offsets,
            windows=split_into_windows(tokens.offsets, max_seq_length - 2),  # without [CLS] and [SEP]
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
        )

    def _token_labels(self, example: TokenExample, begun_word: Int64, starts: Int32, ends: Int32) -> Int64:
        """Return the class of each token of a tagged text, int64 [tokens], as in `_tag_classes`.

        A word's first token has the word's tag, and its further tokens have the I tag of the same type. A token that is
        only a blank has the next word's tag if this is an I tag, and O otherwise.
        begun_word: the word that each token begins, or -1; starts, ends: each token's first and end character.
        """
        tags = [*(example.tags or ()), OUTSIDE]  # blanks after the last word are outside
        class_of_first = self._tag_classes(tags)
        class_of_further = self._tag_classes([inside_tag(tag) for tag in tags])
        class_of_blank = self._tag_classes([tag if tag.startswith("I-") else OUTSIDE for tag in tags])
        end_of_text = (len(example.text), len(example.text))
        word_starts, word_ends = np.array([*example.words, end_of_text], dtype=np.int64).T
        # Find the first word that ends after the token's start. The token is in this word or before it.
        word = np.searchsorted(word_ends[:-1], starts, side="right")
        labels = np.where(word_starts[word] < ends, class_of_further[word], class_of_blank[word])
        return np.where(begun_word >= 0, class_of_first[begun_word], labels)

    def _tag_classes(self, tags: Sequence[str]) -> Int64:
        """Return the class of each BIO tag, int64 [tags]; `IGNORED` if the model lacks the tag.

        A B tag that the model lacks has the class of the I tag: in the schemes IO and IOB1, an I tag begins an entity.
        """
        class_of_tag = {tag: index for index, tag in enumerate(self.labels)}
        classes = [class_of_tag.get(tag, class_of_tag.get(inside_tag(tag), IGNORED)) for tag in tags]
        return np.array(classes, dtype=np.int64)

    def new_model(self, config: ModelConfig) -> TokenClassifier:
        return TokenClassifier(config, len(self.labels))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Return the cross-entropy, averaged over the labeled tokens of each window and summed over windows.

        `labels` are int64 [T], as `TokenFeatures.batch` returns them.
        """
        tokens = pack(batch, device)
        label_T, window_T = to_device([labels, tokens.host.sequence], device)
        loss_T = F.cross_entropy(model(tokens).float(), label_T, ignore_index=IGNORED, reduction="none")
        is_labeled_T = (label_T != IGNORED).float()
        windows = len(batch.offsets) - 1
        labeled_N = torch.zeros(windows, device=device).index_add(0, window_T, is_labeled_T)
        return (loss_T / labeled_N.clamp(min=1).index_select(0, window_T)).sum()

    # ---------------------------------------------------------------- scoring

    def _inside_logits(self, logits_WC: Array) -> Array:
        """Return logits [words, C] of words that continue words with these logits: I tags have the larger of B and I.

        A B tag without an I tag of its type remains.
        """
        inside_WC = logits_WC.copy()
        for begin, tag in enumerate(self.labels):
            if tag.startswith("B-") and inside_tag(tag) in self.labels:
                inside = self.labels.index(inside_tag(tag))
                inside_WC[:, inside] = np.maximum(logits_WC[:, begin], logits_WC[:, inside])
                inside_WC[:, begin] = logits_WC.min(axis=1) - 30
        return inside_WC

    def _outside_logits(self, words: int) -> Array:
        """Return logits [words, C] of the tag O, for words without a token; other tags have probability 1e-13."""
        logits = np.where(np.array(self.labels) == OUTSIDE, 0, -30).astype(np.float32)
        return np.tile(logits, (words, 1))

    def predict(self, model: nn.Module, features: TokenFeatures, device: torch.device) -> list[Array]:
        outputs = [self._outside_logits(words) for words in features.count_words()]
        windows = features.windows
        with torch.inference_mode():
            for index, tokens in iter_evaluation_batches(features, device):
                logits_TC = model(tokens).float().cpu().numpy()
                check_finite(logits_TC)
                for window, cls_position in zip(index.tolist(), tokens.host.offsets[:-1].tolist(), strict=True):
                    # A token's logits are used from one window; in other windows the token is only context.
                    tagged = windows.tagged_tokens(window)
                    context_tokens = tagged.start - int(windows.tokens.start[window])
                    first = cls_position + 1 + context_tokens
                    begun_word = features.begun_word[tagged]
                    token_logits = logits_TC[first : first + len(begun_word)]
                    begins_word = begun_word >= 0
                    text = int(windows.text[window])
                    outputs[text][begun_word[begins_word]] = token_logits[begins_word]
                    further_words = features.further_words[tagged]
                    inside_logits = self._inside_logits(np.repeat(token_logits, further_words, axis=0))
                    outputs[text][concatenate_ranges(begun_word + 1, further_words)] = inside_logits
        return outputs

    def predict_tags(self, example: TokenExample, logits: Array) -> list[str]:
        """Return the most likely tag of each word; O for the words at the end that have no logits."""
        tags = [self.labels[index] for index in logits.argmax(axis=1)]
        words_without_logits = len(example.words) - len(tags)
        return tags + [OUTSIDE] * words_without_logits

    def compute_metrics(
        self, outputs: list[Array], features: TokenFeatures, examples: Sequence[TokenExample]
    ) -> dict[str, float]:
        """Return entity precision, recall and F1, the accuracy of tags, and the mean loss of words with logits.

        The predicted tags are compared as BIO tags. The loss leaves out words whose tag the model lacks.
        """
        gold = []
        predicted = []
        losses = []
        for example, logits in zip(examples, outputs, strict=True):
            tags = example.tags or ()
            gold.append(tags)
            predicted.append(normalize_tags(self.predict_tags(example, logits), example.id))
            classes = self._tag_classes(tags[: len(logits)])
            words = np.flatnonzero(classes != IGNORED)
            gold_probabilities = softmax(logits)[words, classes[words]]
            losses.append(-np.log(gold_probabilities + 1e-30))  # finite for a probability of 0
        return {**score_entities(gold, predicted), "loss": float(np.concatenate(losses).mean())}

    def score_majority(self, train: Sequence[TokenExample], dev: Sequence[TokenExample]) -> float:
        """Return entity F1 on dev if each word has its most frequent tag in train; a word not in train has O."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for example in train:
            for (start, end), tag in zip(example.words, example.tags or (), strict=True):
                counts[example.text[start:end]][tag] += 1
        most_frequent = {word: tag_counts.most_common(1)[0][0] for word, tag_counts in counts.items()}
        predicted = [[most_frequent.get(e.text[start:end], OUTSIDE) for start, end in e.words] for e in dev]
        return score_entities([e.tags or () for e in dev], predicted)["entity_f1"]

    def describe_collapse(self, outputs: list[Array], features: TokenFeatures) -> str | None:
        """Describe outputs without any entity if there are gold entities; return None otherwise."""
        outside = self.labels.index(OUTSIDE)
        has_gold = features.labels is not None and bool((~np.isin(features.labels, (outside, IGNORED))).any())
        has_predictions = any((logits.argmax(axis=1) != outside).any() for logits in outputs)
        return "no entity in any text" if has_gold and not has_predictions else None

    def average(self, outputs: Sequence[list[Array]]) -> list[Array]:
        """Return logits of each word: the logarithms of the models' mean probabilities (§4.9).

        A model has no logits for the last words of a text if its vocabulary has no tokens for them: it predicts O
        there.
        """
        averaged = []
        for logits_of_models in zip(*outputs, strict=True):
            words = max(map(len, logits_of_models))
            padded = []
            for logits in logits_of_models:
                padded.append(np.concatenate([logits, self._outside_logits(words - len(logits))]))
            probabilities = np.mean([softmax(logits) for logits in padded], axis=0)
            averaged.append(np.log(probabilities + 1e-30))  # finite for a probability of 0
        return averaged

    def iter_predictions(
        self, examples: Sequence[TokenExample], outputs: list[Array], *, with_details: bool
    ) -> Iterator[dict[str, object]]:
        """Yield id, text, and predicted entities with character offsets, type, text and score.

        `with_details` adds the gold entities unless they are hidden.
        """
        for example, logits in zip(examples, outputs, strict=True):
            line: dict[str, object] = {"id": example.id, "text": example.text}
            if with_details and example.tags is not None:
                gold = tags_to_entities(example.tags, example.words)
                line["label"] = [_entity_fields(entity, example.text) for entity in gold]
            line["prediction"] = self._predicted_entities(example, logits)
            yield line

    def _predicted_entities(self, example: TokenExample, logits: Array) -> list[dict[str, object]]:
        """Return a text's entities; an entity's score is the mean probability of its words' tags."""
        probabilities = softmax(logits).max(axis=1) if len(logits) else np.zeros(0)
        entities = []
        for entity in tags_to_entities(self.predict_tags(example, logits), example.words):
            # Words at the end without logits have the tag O, so they are in no entity.
            score = float(np.mean(probabilities[find_overlapped_words(entity, example.words)]))
            entities.append({**_entity_fields(entity, example.text), "score": round_prediction(score)})
        return entities

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, ARCHITECTURE, self.labels, finetuned)

    def match_head(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        is_unnamed = checkpoint.architecture == ARCHITECTURE and checkpoint.has_unnamed_labels
        tags = checkpoint.output_names if is_unnamed else tag_names(checkpoint)
        return match_outputs(self.labels, tags, are_unnamed=is_unnamed)

    def wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        tags = ", ".join(checkpoint.output_names) or "none"
        message = f"{checkpoint.directory}: its tags ({tags}) are not {self.title}'s ({', '.join(self.labels)})"
        hint = "use a model of these tags, or -s model.head=new"
        if checkpoint.architecture == ARCHITECTURE and len(checkpoint.output_names) == len(self.labels):
            hint = "use -s 'model.labels=[…]' to name its outputs in their order, or -s model.head=new"
        return CheckpointError(message, hint)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task from the tags of a token classifier; raises `CheckpointError` unless they are BIO tags."""
        if checkpoint.architecture != ARCHITECTURE:
            return None
        tags = tag_names(checkpoint)
        if not tags:
            message = (
                f"{checkpoint.directory}: its tags are not O, B-TYPE and I-TYPE ({', '.join(checkpoint.output_names)})"
            )
            hint = "use a model with BIO tags"
            if checkpoint.has_unnamed_labels:
                hint = (
                    "write the tags under id2label in config.json, in the order of the outputs; "
                    "`albert eval` and `albert finetune` take them as -s 'model.labels=[…]'"
                )
            raise CheckpointError(message, hint)
        return cls(name="", title="predict", metrics=(), labels=tags, inputs=1)


def open_token_task(settings: TableSettings, data: str | None, model_labels: tuple[str, ...]) -> AnyTask:
    """Build the task `ner` from the tagged words in `data`: a folder with a file for each split, or a single file.

    The tags of a folder with a train file are those in train. A single file or a folder without train may serve to
    score a model: its tags are `model_labels`, the tags of the model. If `model_labels` is empty, they are the tags in
    the first file. Raises `ConfigError` if `data` is None, or for a setting that only the task `table` has, and
    `InputError` for missing or damaged files.
    """
    _reject_unused_settings(settings)
    if data is None:
        raise ConfigError("the task 'ner' has no data", "use --data DIR with train.conll or train.jsonl")
    files = find_token_files(data)
    first_file = next(iter(files.values()))  # train, or the first file if there is no train
    source = TokenFiles(files, data, settings.holdout)
    if source.may_be_for_scoring and model_labels:
        labels = model_labels
    else:
        examples = read_token_file(Path(first_file))
        labels = tag_labels(entity_types(tag for example in examples for tag in example.tags or ()))
    if len(labels) < 2:
        raise InputError(f"{first_file}: no entities, so there is nothing to learn")
    for split, file in files.items():
        for note in describe_file(Path(file), labeled=split != "test"):
            console.info(note)
    console.info(f"{first_file}: words → entities ({', '.join(entity_types(labels))})")
    has_default_title = settings.title == TableSettings.title
    task = TokenClassification(
        name=NER,
        title="Named entities" if has_default_title else settings.title,
        metrics=("entity_f1", "entity_precision", "entity_recall", "accuracy"),
        labels=labels,
        inputs=1,
        source=source,
    )
    return as_any_task(task.with_splits(files))


def _reject_unused_settings(settings: TableSettings) -> None:
    """Raise `ConfigError` for a value of `[table]` that the task `ner` does not use, unless it is the default."""
    for setting in fields(settings):
        if setting.name not in _TABLE_SETTINGS and getattr(settings, setting.name) != setting.default:
            hint = "remove it"
            if setting.name in ("train", "dev", "test"):
                hint += "; the files are those of --data"
            raise ConfigError(f"the task 'ner' does not use table.{setting.name}", hint)


def tag_names(checkpoint: hub.Checkpoint) -> tuple[str, ...]:
    """Return the BIO tags of a checkpoint's token classifier; () if it has other tags, another head or none."""
    names = checkpoint.output_names if checkpoint.architecture == ARCHITECTURE else ()
    is_bio = OUTSIDE in names and all(is_tag(name, prefixes=("B", "I")) for name in names)
    return names if is_bio else ()


def _find_begun_words(words: Sequence[tuple[int, int]], starts: Int32, ends: Int32) -> tuple[Int64, Int64]:
    """Return the index of the word that each token begins, -1 for none, and the number of further words in the token.

    Both are int64 [tokens]. `words` are the first and the end character of each word, `starts` and `ends` those of each
    token, all ascending.
    """
    begun_word: NDArray[np.int64] = np.full(len(starts), -1, dtype=np.int64)
    further_words: NDArray[np.int64] = np.zeros(len(starts), dtype=np.int64)
    token = 0
    for index, (start, end) in enumerate(words):
        while token < len(starts) and ends[token] <= start:
            token += 1
        if token < len(starts) and starts[token] < end:
            begun_word[token] = index
            token += 1
        elif token > 0 and ends[token - 1] > start:  # this token began an earlier word
            further_words[token - 1] += 1
    return begun_word, further_words


def _entity_fields(entity: Entity, text: str) -> dict[str, object]:
    """Return an entity as it is written into a file of predictions."""
    return {"start": entity.start, "end": entity.end, "label": entity.type, "text": text[entity.start : entity.end]}
