"""Set the weights that a run starts with: sampled, computed from the text, or copied from a parent run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from albert_cli import config, store
from albert_cli.data.cooccurrence import compute_word_vectors
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import CheckpointError
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import InformedInit, apply_informed_init, word_dimensions
from albert_cli.ranks import RankGroup
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.warm_start import copy_parent_weights, load_parent


@dataclass(frozen=True)
class ContinuedRun:
    """A run that another run continues: the directory of the step to continue from, and that step's number.

    `data` is the fingerprint of the continued run's data directory, None if its manifest has none.
    """

    directory: Path
    step: int
    recipe: PretrainRecipe
    data: str | None

    @classmethod
    def load(cls, directory: Path) -> ContinuedRun:
        """Load a run from a step's directory; raises `CheckpointError` unless it is a complete pretraining step."""
        manifest = store.read_manifest(directory)
        files = (checkpoint.OPTIMIZER_FILE, "state.json", "recipe.toml")
        if manifest is not None and all((directory / name).is_file() for name in files):
            values = store.read_toml(directory / "recipe.toml")
            if "task" not in values:
                recipe = config.validate_recipe(PretrainRecipe, values, str(directory / "recipe.toml"))
                return cls(directory, checkpoint.read_state(directory).step, recipe, manifest.parents.get("data"))
        raise CheckpointError(
            f"{directory}: is not a step of `albert pretrain` with its {checkpoint.OPTIMIZER_FILE}, so it cannot be "
            "continued",
            "use warm_start.checkpoint for the weights alone",
        )


@dataclass(frozen=True)
class LoadedParent:
    """The checkpoint that a run starts from and, if the run continues another one, that run."""

    checkpoint: hub.Checkpoint
    continued: ContinuedRun | None = None


def load_warm_start(recipe: PretrainRecipe, corpora: PretrainingCorpora) -> LoadedParent | None:
    """Load the parent that `[warm_start]` names; None without the section."""
    if recipe.warm_start is None:
        return None
    parent = load_parent(recipe.warm_start, recipe.model, corpora.vocabulary)
    if recipe.warm_start.continues is None:
        return LoadedParent(parent)
    return LoadedParent(parent, ContinuedRun.load(parent.directory))


def compute_init_words(recipe: PretrainRecipe, corpora: PretrainingCorpora, group: RankGroup) -> Tensor | None:
    """Compute the word vectors [V, d] of `[init]`, in up to a minute.

    Returns None if the recipe samples its word vectors, and on ranks other than 0, which receive rank 0's weights.
    """
    if recipe.init.words == "random" or group.rank != 0:
        return None
    return compute_word_vectors(corpora.train, word_dimensions(recipe.init, recipe.model), recipe.train.seed)


def new_model(recipe: PretrainRecipe, corpus: TokenCorpus) -> PretrainingModel:
    """Create a model with weights sampled from the recipe's seed, the same in every process."""
    torch.manual_seed(recipe.train.seed)
    model = PretrainingModel(recipe.model)
    if recipe.masked_bias == "unigram":
        counts = corpus.unigram_counts() + 1  # add-one smoothing, because the logarithm of 0 is infinite
        with torch.no_grad():
            model.masked.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
    return model


def set_first_weights(
    job: PretrainingJob,
    optimizer: Optimizer,
    compute_words: Callable[[], Tensor | None],
    group: RankGroup,
    out: Path,
    data_fingerprint: str,
) -> TrainState:
    """Set the weights that a run without a saved step starts with, and return the state that training begins with.

    The job's weights are already sampled from the seed. They stay, or are replaced by the parent's (`[warm_start]`) or
    by computed ones (`[init]`), which are also saved as the checkpoint `RUN/init`.
    """
    recipe = job.settings
    parent = load_warm_start(recipe, job.corpora)
    if parent is not None and parent.continued is not None:
        state = checkpoint.restore_optimizer(parent.continued.directory, optimizer)
        copy_parent_weights(job.model, parent.checkpoint, f"with its moments, from step {state.step:,}")
        return TrainState(state.step, state.seconds)
    if parent is not None:
        assert recipe.warm_start is not None
        copy_parent_weights(job.model, parent.checkpoint, stack=recipe.warm_start.stack)
        return TrainState()
    if recipe.init == InformedInit():  # the defaults keep the sampled weights
        return TrainState()
    if group.rank == 0:
        device = job.device
        apply_informed_init(job.model.cpu(), recipe.init, compute_words(), recipe.train.seed)
        job.model.to(device)
    # Matrix decompositions round differently on different processors, so all ranks use the weights of rank 0.
    group.broadcast_tensors(job.model.parameters())
    if group.rank == 0:
        # An earlier start may have saved this directory and ended before its first checkpoint, so replace it.
        parents = {"data": data_fingerprint}
        with store.commit_directory(out / hub.INIT_DIRECTORY, "checkpoint", parents, replace=True) as staging:
            job.write_model(staging)
    return TrainState()
