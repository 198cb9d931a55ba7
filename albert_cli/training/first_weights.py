"""Set the weights that a run starts with: sampled, computed from the text, or copied from a parent checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch.optim import Optimizer

from albert_cli import config, store
from albert_cli.errors import CheckpointError
from albert_cli.model import hub
from albert_cli.model.informed_init import InformedInit, apply_informed_init
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import StepWindow, TrainState
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.pretrain_inputs import PretrainInputs
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.warm_start import copy_parent_weights, load_parent


@dataclass(frozen=True)
class ParentRun:
    """A run that another run continues: the directory and the number of the step to continue from, and the recipe.

    `data` is the fingerprint of the data directory that this parent run trained on, None if the step's manifest has
    none.
    """

    directory: Path
    step: int
    recipe: PretrainRecipe
    data: str | None

    @classmethod
    def load(cls, directory: Path) -> ParentRun:
        """Load a parent run from the directory of a step.

        Raises `CheckpointError` unless this is a step of `albert pretrain` with all its files.
        """
        manifest = store.read_manifest(directory)
        files = (checkpoint.OPTIMIZER_FILE, "state.json", "recipe.toml")
        if manifest is not None and all((directory / name).is_file() for name in files):
            values = store.read_toml(directory / "recipe.toml")
            if "task" not in values:  # a fine-tuning recipe has a task
                recipe = config.validate_recipe(PretrainRecipe, values, str(directory / "recipe.toml"))
                return cls(directory, checkpoint.read_state(directory).step, recipe, manifest.parents.get("data"))
        raise CheckpointError(
            f"{directory}: is not a step of `albert pretrain` with its {checkpoint.OPTIMIZER_FILE}, so it cannot be "
            "continued",
            "load only its weights with warm_start.checkpoint",
        )


def set_first_weights(inputs: PretrainInputs, job: PretrainingJob, optimizer: Optimizer, out: Path) -> TrainState:
    """Set the weights that a run without a saved step starts with, and return the state that training begins with.

    The job's weights are already sampled from the seed. With `[warm_start]` the parent's weights replace them. With
    `[init]` computed weights replace them, which are also saved as the checkpoint `RUN/init`.
    """
    recipe = job.settings
    warm_start = recipe.warm_start
    if warm_start is not None:
        corpora = job.corpora
        # The checks before the first start have already printed how the positions are resized.
        parent = load_parent(warm_start, recipe.model, corpora.vocabulary, corpora.train.directory, quiet=True)
        if warm_start.continues is None:
            copy_parent_weights(job.model, parent, stack=warm_start.stack)
            return TrainState()
        state = checkpoint.restore_optimizer(parent.directory, optimizer)
        state.window = StepWindow()  # the first journal record has only steps of this run
        copy_parent_weights(job.model, parent, f"with its moments, from step {state.step:,}")
        return state
    if recipe.init == InformedInit():  # the defaults keep the sampled weights
        return TrainState()
    group = inputs.group
    if group.rank == 0:
        apply_informed_init(job.model.cpu(), recipe.init, inputs.word_vectors, recipe.train.seed)
        job.model.to(inputs.device)
    # Matrix decompositions round differently on different processors, so all ranks use the weights of rank 0.
    group.broadcast_tensors(job.model.parameters())
    if group.rank == 0:
        # An earlier start may have saved this directory and ended before its first checkpoint, so replace it.
        parents = {"data": inputs.data_fingerprint}
        with store.commit_directory(out / hub.INIT_DIRECTORY, "checkpoint", parents, replace=True) as staging:
            job.write_model(staging)
    return TrainState()
