"""The inputs of `albert pretrain`: its recipe, its data directories and its device, checked to fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from albert_cli import store
from albert_cli.data.cooccurrence import compute_word_vectors
from albert_cli.data.records import read_data_facts
from albert_cli.data.sentence_order import warn_missing_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import word_dimensions
from albert_cli.ranks import RankGroup, is_main, process_group
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import capacity
from albert_cli.training.device import choose_device, prepare_model
from albert_cli.training.distill import Teacher
from albert_cli.training.idle_ranks import print_idle_gpus
from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob
from albert_cli.training.plan import estimate_run_memory
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_pretrain_recipe


@dataclass(frozen=True)
class PretrainInputs:
    """The user's recipe, the corpora that it reads, and the ranks and the device that train it.

    `resolve.resolve_recipe` derives the resolved recipe from the inputs: it replaces every value that is decided at the
    first start, such as "auto".
    """

    recipe: PretrainRecipe
    corpora: PretrainingCorpora
    data_fingerprint: str
    device: torch.device
    group: RankGroup

    def new_job(self, recipe: PretrainRecipe) -> PretrainingJob:
        """Create the job of a resolved recipe, with its teacher and with weights sampled from the recipe's seed."""
        torch.manual_seed(recipe.train.seed)
        model = PretrainingModel(recipe.model)
        if recipe.masked_bias == "unigram":
            # Add-one smoothing, because the logarithm of 0 is infinite.
            counts = self.corpora.train.unigram_counts() + 1
            with torch.no_grad():
                model.masked.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
        prepare_model(model, recipe.train, self.device)
        teacher = None
        if recipe.distill is not None:
            length = recipe.data.max_seq_length
            data = self.corpora.train.directory
            teacher = Teacher.load(recipe.distill, self.corpora.vocabulary, length, self.device, data)
        return PretrainingJob(model, recipe, self.corpora, teacher=teacher)

    @cached_property
    def word_vectors(self) -> Tensor | None:
        """The word vectors of `[init]`, [vocabulary size, `word_dimensions`]; computing them takes up to a minute.

        None if the recipe samples its word vectors, and on ranks other than 0, which receive rank 0's weights.
        """
        recipe = self.recipe
        if recipe.init.words == "random" or self.group.rank != 0:
            return None
        return compute_word_vectors(self.corpora.train, word_dimensions(recipe.init, recipe.model), recipe.train.seed)

    def warn_memory(self, recipe: PretrainRecipe) -> None:
        """Warn if a micro-batch of a resolved recipe exceeds the available memory."""
        sequences = recipe.sequences_per_micro_batch
        estimate = estimate_run_memory(recipe, self.device, sequences)
        key = "batch.micro_tokens" if recipe.batch.max_micro_tokens else "train.micro_batch_size"
        capacity.warn_training_memory(estimate, sequences, self.device, key)

    def list_parents(self, recipe: PretrainRecipe) -> dict[str, str]:
        """Return the fingerprints of everything that the weights of a resolved recipe depend on."""
        parents = {"data": self.data_fingerprint}
        if recipe.warm_start is not None:
            parents["warm_start"] = str(recipe.warm_start.fingerprint)
        if recipe.distill is not None:
            parents["teacher"] = str(recipe.distill.fingerprint)
        return parents


@contextmanager
def open_inputs(
    recipe_name: str, data: Path, out: Path, overrides: Sequence[str], device: str, *, verify: bool
) -> Iterator[PretrainInputs]:
    """Load the recipe of the run `out`, open and verify its corpora, and join the process group while the block runs.

    `verify` hashes all data again, including the files that have not changed since their last verification.
    """
    train = TokenCorpus.open(data, "train")
    heldout = TokenCorpus.open(data, "heldout")
    if is_main():
        verify_data(data, everything=verify)
    vocabulary = Vocabulary.load(train.vocabulary_dir)
    recipe = load_pretrain_recipe(recipe_name, overrides, vocabulary.size, out)
    torch_device = choose_device(device)
    print_idle_gpus(recipe, torch_device)
    with process_group(torch_device.type) as group:
        try:
            evaluation = _open_evaluation_corpora(recipe.evaluation, vocabulary, train.vocabulary_dir, verify=verify)
        except CheckpointError as error:
            raise CheckpointError(f"{recipe_name}: evaluation: {error.message}", error.hint) from None
        facts = read_data_facts(data)
        has_other_documents = train.n_distinct_documents > 1
        warn_missing_pairs(facts.totals["train"], recipe.data.sentence_loss, has_other_documents=has_other_documents)
        corpora = PretrainingCorpora(train, heldout, vocabulary, facts.unigram_entropy_nats, evaluation)
        yield PretrainInputs(recipe, corpora, store.fingerprint(data), torch_device, group)


def _open_evaluation_corpora(
    directories: Sequence[str], vocabulary: Vocabulary, vocabulary_dir: Path, *, verify: bool
) -> dict[str, TokenCorpus]:
    """Open the directories of the recipe's `evaluation`; return each corpus by the name of its directory.

    The corpus is the directory's held-out text, or its training text if no text is held out.
    """
    corpora = {}
    for directory in map(Path, directories):
        corpus = TokenCorpus.open(directory, "heldout")
        if is_main():
            verify_data(directory, everything=verify)
        if Vocabulary.load(corpus.vocabulary_dir).fingerprint != vocabulary.fingerprint:
            raise ConfigError(
                f"{directory}: was built with another vocabulary than the training data",
                f"build it with that vocabulary: albert data … --vocab {vocabulary_dir} --out {directory}",
            )
        if corpus.n_tokens == 0:
            corpus = TokenCorpus.open(directory, "train")
        corpora[store.resolve_dots(directory).name] = corpus
    if len(corpora) < len(directories):
        raise ConfigError(
            f"evaluation lists two directories with the same name: {', '.join(directories)}",
            "rename one; the scores are listed by the last part of the path",
        )
    return corpora
