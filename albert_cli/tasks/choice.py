"""Multiple choice: select the option that answers a question about a passage, by one logit per option (RACE, §4.2).

Each option is encoded as a sequence `[CLS] passage [SEP] question and option [SEP]`. Shapes: Q questions, K options of
the question with the most options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli.data.batches import PackedBatch
from albert_cli.data.pairs import SPECIALS
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import MultipleChoice
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array
from albert_cli.tasks.choice_options import MAX_OPTIONS, parse_options
from albert_cli.tasks.classification import LogitsTask, label_array, predict_logits
from albert_cli.tasks.features import PairFeatures, TokenSlices, tokenize
from albert_cli.tasks.input_lines import InputLine, first_of, row_id
from albert_cli.text.vocabulary import Vocabulary

_MAX_QA_TOKENS = 128  # of question and option together; `max_qa_length` in ALBERT's released code for RACE
_ARCHITECTURE = "ForMultipleChoice"
_MASKED_LOGIT = -1e30  # the logit of padding, for questions with fewer than K options
# The position of the option in a question such as "She felt _ .". Underscores within a word such as `snake_case` are
# not a blank, but a blank may be directly before or after a word.
_BLANK = re.compile("(?<![A-Za-z0-9_])_+|_+(?![A-Za-z0-9_])")
_INPUT_FORMAT = 'write {"text": "…", "question": "…", "choices": ["…", "…"]}'


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question about a passage, with its options; passage or question may be empty.

    `label` is the index of the correct option, None if it is hidden. `group` names the part of the data to which the
    question belongs, such as RACE's "middle"; the accuracy is also computed for each group.
    """

    id: str
    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    group: str = ""

    @property
    def qa_texts(self) -> list[str]:
        """The question with each option, which replaces the question's blanks (`_`, `___`) or follows the question."""
        texts_between_blanks = _BLANK.split(self.question)
        if len(texts_between_blanks) > 1:
            return [option.join(texts_between_blanks) for option in self.options]
        return [f"{self.question} {option}".strip() for option in self.options]


@dataclass(frozen=True, kw_only=True)
class Choice(LogitsTask[ChoiceExample]):
    """Selection of one option for each question; `labels` are the letters of the options, in their order."""

    collapse_message = "the same option for all questions"

    @property
    def sequences_per_item(self) -> int:
        """The number of options; some questions may have fewer."""
        return len(self.labels)

    def parse_example(self, line: InputLine) -> ChoiceExample:
        """Parse an object with `choices` (`options`), `question`, a passage (`text`, `article`, …) and `id`.

        Passage or question may be absent, but not both; `null` is an empty option. Raises `InputError` unless there are
        2 to `MAX_OPTIONS` options.
        """
        values = line.values()
        options, _ = parse_options(first_of(values, ("choices", "options")))
        if len(options) < 2:
            raise InputError(f'{line.where}: "choices" is not a list of two texts or more', _INPUT_FORMAT)
        if len(options) > MAX_OPTIONS:
            hint = f"give at most {MAX_OPTIONS}, one for each letter"
            raise InputError(f"{line.where}: {len(options)} choices", hint)
        passage = first_of(values, ("text", "passage", "article", "context"))
        if passage is None:
            passage = ""
        question = values.get("question", "")
        if not isinstance(passage, str) or not isinstance(question, str) or passage == question == "":
            raise InputError(f'{line.where}: "text" and "question" must be texts, and not both empty', _INPUT_FORMAT)
        return ChoiceExample(row_id(values, line.number), passage, question, options, None)

    def group_for_encoding(self, examples: Sequence[ChoiceExample]) -> Iterable[Sequence[ChoiceExample]]:
        """Split examples into groups of consecutive ones with the same number of options."""
        return (list(group) for _, group in groupby(examples, key=lambda example: len(example.options)))

    def encode(self, examples: Sequence[ChoiceExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        """Encode K sequences per question. A question with fewer options is padded with sequences without text.

        Question and option are cut to their last tokens, because the option comes last. They may take `_MAX_QA_TOKENS`
        tokens, and at most half of the sequence without its special tokens. The passage is cut to its first tokens and
        takes the rest.
        """
        size = len(examples)
        counts = np.array([len(example.options) for example in examples], dtype=np.int64)
        max_options = int(counts.max(initial=1))
        passages = [example.passage for example in examples]
        qa_texts: list[str] = []
        for example in examples:
            qa_texts += example.qa_texts
            qa_texts += [""] * (max_options - len(example.options))
        ids, slices = tokenize(passages + qa_texts, vocabulary)
        # `passage`, `qa` and the arrays that depend on them have an item for each of the Q * K sequences.
        passage = slices.select(np.repeat(np.arange(size), max_options))
        qa = slices.select(size + np.arange(size * max_options))
        is_padding = (np.arange(max_options) >= counts[:, None]).ravel()
        max_text_tokens = max_seq_length - SPECIALS
        qa_length = np.minimum(qa.length, min(_MAX_QA_TOKENS, (max_text_tokens + 1) // 2))
        passage_length = np.where(is_padding, 0, np.minimum(passage.length, max_text_tokens - qa_length))
        is_truncated = ~is_padding & ((passage_length < passage.length) | (qa_length < qa.length))
        return PairFeatures(
            ids=ids,
            first=TokenSlices(passage.start, passage_length),
            second=TokenSlices(qa.start + qa.length - qa_length, qa_length),
            is_pair=np.ones(size * max_options, dtype=bool),
            labels=label_array([example.label for example in examples]),
            truncated=int(np.count_nonzero(is_truncated.reshape(-1, max_options).any(axis=1))),
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            sequences_per_item=max_options,
            option_counts=counts if is_padding.any() else None,
        )

    def new_model(self, config: ModelConfig) -> MultipleChoice:
        # `loss_sum` and `predict` set `choices` to the number of options of their batches.
        return MultipleChoice(config, choices=len(self.labels))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Return the cross-entropy over each question's options, summed over questions.

        `labels` are int64 [Q], or [Q, 2] with the number of options if some questions have fewer than K.
        """
        assert isinstance(model, MultipleChoice)
        sequences = len(batch.offsets) - 1
        model.choices = sequences // len(labels)
        if labels.ndim == 1:
            return super().loss_sum(model, batch, labels, device)
        label_Q, count_Q = to_device([labels[:, 0].copy(), labels[:, 1].copy()], device)
        logits_QK = model(pack(batch, device)).float()
        is_padding_QK = torch.arange(model.choices, device=device) >= count_Q[:, None]
        return self.loss_from_logits(logits_QK.masked_fill(is_padding_QK, _MASKED_LOGIT), label_Q)

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        """Return logits [Q, K], with `_MASKED_LOGIT` for the padding of questions with fewer than K options."""
        choices = features.sequences_per_item
        # `albert export` passes a `ReplayedModel` to check its ONNX file; this model has no `choices`.
        if isinstance(model, MultipleChoice):
            model.choices = choices
        logits = predict_logits(model, features, choices, device)
        if features.option_counts is not None:
            logits[np.arange(choices) >= features.option_counts[:, None]] = _MASKED_LOGIT
        return logits

    def output_labels(self, example: ChoiceExample) -> tuple[str, ...]:
        return self.labels[: len(example.options)]

    def compute_metrics(
        self, outputs: Array, features: PairFeatures, examples: Sequence[ChoiceExample]
    ) -> dict[str, float]:
        """Return the accuracy, the accuracy of each named group (`GROUP_accuracy`), and the mean loss."""
        is_correct = outputs.argmax(axis=1) == features.gold
        metrics = {"accuracy": float(is_correct.mean())}
        groups = np.array([example.group for example in examples])
        for name in np.unique(groups):
            if name:
                metrics[f"{name}_accuracy"] = float(is_correct[groups == name].mean())
        return {**metrics, "loss": self.mean_loss(outputs, features)}

    def chance_loss(self, train: Sequence[ChoiceExample]) -> float:
        """Return the loss of uniform probabilities over each question's options.

        The head does not see an option's letter, so it cannot learn that some letters are correct more often.
        """
        return float(np.mean(np.log([len(example.options) for example in train])))

    def example_fields(self, example: ChoiceExample) -> dict[str, object]:
        return {"text": example.passage, "question": example.question, "choices": list(example.options)}

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        """Write encoder and head; `config.json` has no labels, because options have no names."""
        hub.write_checkpoint(model, directory, _ARCHITECTURE, (), finetuned)

    def match_head(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        classifier_rows = len(checkpoint.tensors.get("classifier.weight", ()))
        has_one_logit = classifier_rows == 1  # per option
        if checkpoint.architecture == _ARCHITECTURE and has_one_logit:
            return []  # options have no names, so there is no order of labels to match
        return None

    def wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        message = f"{checkpoint.directory}: has no multiple-choice head"
        hint = "pass a model that was fine-tuned on questions with options, or use -s model.head=new"
        return CheckpointError(message, hint)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        if checkpoint.architecture != _ARCHITECTURE:
            return None
        return cls(name="", title="predict", metrics=(), labels=tuple(ascii_uppercase))
