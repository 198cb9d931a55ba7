"""Read the examples of a task and encode them as tokens; `Inputs` holds the examples and their tokens by split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.randomness import epoch_order
from albert_cli.tasks.base import AnyTask, Example, fingerprint_examples
from albert_cli.tasks.features import Features
from albert_cli.tasks.registry import find_task
from albert_cli.text.vocabulary import Vocabulary

# `epoch_order` with this epoch number shuffles the examples, and a subset is the first ones. Training never reaches
# this epoch, so no training epoch repeats this order.
_SUBSET_EPOCH = 2**64 - 1


@dataclass(frozen=True)
class InputSettings:
    """The settings that, together with a task's files, determine the task's inputs.

    `train_split` is None if a checkpoint is only scored. `train_examples` is the size of the training subset that
    `seed` samples; with 0 all examples are used, and `seed` stays 0. `dev_examples` is the size of the subset of each
    dev split, which does not depend on the seed; with 0 all examples are used. With `both_orders` the training features
    hold every pair in both orders.
    """

    train_split: str | None
    dev_splits: tuple[str, ...]
    max_seq_length: int
    train_examples: int = 0
    seed: int = 0
    dev_examples: int = 0
    both_orders: bool = False


@dataclass(frozen=True)
class Inputs:
    """The examples of a task and their encoded features, by split.

    `fingerprint` is a hash of the class names and of all examples by split.
    """

    settings: InputSettings
    examples: Mapping[str, Sequence[Example]]
    features: Mapping[str, Features]
    fingerprint: str

    @property
    def train_features(self) -> Features:
        """The features of the training split, or of its subset; with `both_orders` also those of the swapped pairs."""
        assert self.settings.train_split is not None, "inputs for scoring have no training split"
        return self.features[self.settings.train_split]

    @property
    def train_examples(self) -> Sequence[Example]:
        """The examples of the training split, or of its subset."""
        assert self.settings.train_split is not None, "inputs for scoring have no training split"
        return self.examples[self.settings.train_split]

    @property
    def num_training_examples(self) -> int:
        """The number of training examples, 0 without a training split."""
        return 0 if self.settings.train_split is None else len(self.train_examples)

    @property
    def dev_features(self) -> Features:
        """The features of the dev split, which selects the best checkpoint."""
        return self.features[self.settings.dev_splits[0]]

    @property
    def dev_examples(self) -> Sequence[Example]:
        """The examples of the dev split, which selects the best checkpoint."""
        return self.examples[self.settings.dev_splits[0]]


def load_inputs(task: AnyTask, data: str | None, vocabulary: Vocabulary, settings: InputSettings) -> Inputs:
    """Read and encode the splits of a task from `data`, the task's files as in `TaskRequest`.

    Raises `InputError` for missing or damaged files.
    """
    examples = read_examples(task, data, settings)
    features: dict[str, Features] = {}
    for split, split_examples in examples.items():
        to_encode = split_examples
        if settings.both_orders and split == settings.train_split:
            to_encode = [*split_examples, *task.swap_pairs(split_examples)]
        features[split] = encode_examples(task, to_encode, vocabulary, settings.max_seq_length)
    return Inputs(settings, examples, features, fingerprint_examples(task.output_names, examples))


def read_examples(task: AnyTask, data: str | None, settings: InputSettings) -> dict[str, list[Example]]:
    """Return the examples of the training split, if `settings` name one, and of all dev splits, by split.

    If the settings have subset sizes, returns only the subsets. Raises `InputError` for missing or damaged files.
    """
    examples: dict[str, list[Example]] = {}
    if settings.train_split is not None:
        train = task.read(settings.train_split, data)
        if settings.train_examples:
            order = epoch_order(len(train), settings.seed, _SUBSET_EPOCH)
            train = [train[i] for i in order[: settings.train_examples]]
        examples[settings.train_split] = train
    for split in settings.dev_splits:
        dev = task.read(split, data)
        if settings.dev_examples:
            order = epoch_order(len(dev), 0, _SUBSET_EPOCH)
            dev = [dev[i] for i in sorted(order[: settings.dev_examples])]  # sorted: in the order of the file
        examples[split] = dev
    return examples


def require_train_split(task: AnyTask) -> str:
    """Return the name of the task's training split; raises `InputError` if the task has no training data."""
    if task.train_split is not None:
        return task.train_split
    if task.classifier_of:
        title = find_task(task.classifier_of).title
        raise InputError(
            f"{task.title} has no training data; models fine-tuned on {title} answer it",
            f"run `albert finetune {task.classifier_of}` and give its output as --checkpoint",
        )
    raise InputError(f"{task.title}: found no training data", "add a train file to the --data directory")


def encode_examples(
    task: AnyTask, examples: Sequence[Example], vocabulary: Vocabulary, max_seq_length: int
) -> Features:
    """Encode examples as tokens, and print how many of them were truncated to `max_seq_length` tokens."""
    features: Features = task.encode(examples, vocabulary, max_seq_length)
    if features.truncated:
        too_long = task.describe_truncation(max_seq_length)
        console.info(f"{task.title}: {features.truncated:,} of {len(examples):,} {too_long} and were truncated")
    return features
