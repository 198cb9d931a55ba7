"""Save and restore a run's checkpoints: the model in Hugging Face's layout, and the state from which training resumes.

The state consists of the weights, the optimizer's tensors (LAMB: two moments per weight) and a small JSON file. It has
no state of a data loader, because a batch is a function of (seed, step). It has no state of a random generator, because
the generators are seeded for each micro-batch from (seed, step, number of the micro-batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors.torch import save_file
from torch.optim import Optimizer

from albert_cli import console, store
from albert_cli.errors import CheckpointError, DiskError
from albert_cli.model import weight_files
from albert_cli.training.optimizers import load_optimizer_state, state_tensors

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass
class StepWindow:
    """Sums over the steps since the last journal record: losses and metrics, tokens of all ranks, FLOPs of this rank.

    `counts`: by name, the number of steps that have the value; a batch without sentence pairs lacks `order_loss`.
    `seconds`: the time of the steps, without the evaluations and saves between them.
    """

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def add(self, values: Mapping[str, float], tokens: int, flops: float, seconds: float) -> None:
        """Add the values, tokens, FLOPs and seconds of one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        self.tokens += tokens
        self.flops += flops
        self.seconds += seconds

    def means(self) -> dict[str, float]:
        """Return the mean of each value over the steps that have it."""
        return {name: total / self.counts[name] for name, total in self.sums.items()}

    def speed(self, peak: float | None) -> dict[str, float]:
        """Return tokens per second of all ranks, and the MFU of one rank if its `peak` in FLOP/s is known."""
        seconds = max(self.seconds, 1e-9)
        speed: dict[str, float] = {"tokens_per_second": round(self.tokens / seconds)}
        if peak and self.flops:
            speed["mfu"] = round(self.flops / seconds / peak, 4)
        return speed


@dataclass
class TrainState:
    """The progress of a run: the number of updates, the seconds of training, and the best evaluation of fine-tuning.

    `best_score` is None and `best_step` is 0 before the first evaluation, and always in pretraining. `window` has the
    steps that no journal record has yet, so that a resumed run writes the same records; its FLOPs are those of rank 0.
    """

    step: int = 0
    seconds: float = 0.0
    best_score: float | None = None
    best_step: int = 0
    window: StepWindow = field(default_factory=StepWindow)


def read_state(directory: Path) -> TrainState:
    """Read the progress that a step's directory holds; raises `CheckpointError` if it cannot be read."""
    return store.read_record(directory / "state.json", TrainState)


def step_directory(out: Path, step: int) -> Path:
    """Return the directory of a step's checkpoint in the run `out`."""
    return out / f"step-{step:08d}"


def save_checkpoint(
    out: Path,
    state: TrainState,
    optimizer: Optimizer,
    write_model: Callable[[Path], None],
    recipe: str,
    parents: Mapping[str, str],
    keep: int,
) -> Path:
    """Write the checkpoint of `state.step`, then delete all but the newest `keep`; return the new one's directory.

    A checkpoint that exists already is not written again. `write_model` writes the model into the directory that is its
    argument. `recipe` is the resolved recipe as TOML. `parents` are the fingerprints of the data and the checkpoints
    that the run depends on.
    """
    directory = step_directory(out, state.step)
    saved = store.saved_steps(out)
    if directory in saved:
        return directory
    if saved:
        expected_bytes = sum(path.stat().st_size for path in saved[-1].iterdir())
    else:  # the weights and LAMB's two moments
        expected_bytes = sum(3 * parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
    with store.commit_directory(directory, "checkpoint", parents, needed=expected_bytes) as staging:
        write_model(staging)
        save_file({name: tensor.cpu() for name, tensor in state_tensors(optimizer).items()}, staging / OPTIMIZER_FILE)
        store.write_json(staging / "state.json", asdict(state))
        store.write_text(staging / "recipe.toml", recipe)
    prune_checkpoints(out, keep)
    return directory


def prune_checkpoints(out: Path, keep: int) -> None:
    """Delete all checkpoints but the newest `keep`, the oldest first; 0 deletes all of them."""
    steps = store.saved_steps(out)
    for directory in steps[: max(0, len(steps) - keep)]:
        store.remove_directory(directory)


def find_newest_valid(out: Path) -> Path | None:
    """Return the newest checkpoint whose hashes all match, None if there is none.

    A newer checkpoint that is damaged or has no manifest is renamed to `damaged-step-…` with a warning, because it
    would block the same step of the resumed run. Raises an error, and renames nothing, if the disk fails.
    """
    steps = store.step_directories(out)
    for directory in reversed(steps):
        try:
            store.verify(directory, "checkpoint")
            return directory
        except DiskError:  # the checkpoint may be intact
            raise
        except CheckpointError as error:
            damaged = directory.with_name(f"damaged-{directory.name}")
            if damaged.exists():
                store.remove_directory(damaged)
            console.warn(f"{error.message}; renamed to {damaged.name}")
            directory.rename(damaged)
    if steps:
        console.warn(f"{out}: no checkpoint is intact, so the run restarts")
    return None


def restore_optimizer(directory: Path, optimizer: Optimizer) -> TrainState:
    """Load the optimizer's moments from a verified checkpoint and return the progress; the caller loads the weights.

    Raises `CheckpointError` if the moments do not fit the optimizer's parameters.
    """
    state = read_state(directory)
    path = directory / OPTIMIZER_FILE
    try:
        load_optimizer_state(optimizer, weight_files.read_tensors(path), state.step)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: does not fit this run's model and optimizer ({error})",
            "use the model and the optimizer.name of the run that saved the checkpoint, "
            "or load only its weights with warm_start.checkpoint",
        ) from None
    return state
