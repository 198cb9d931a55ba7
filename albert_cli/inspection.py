"""Describe the content of a directory that a command has written, and verify its files (`albert inspect`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from albert_cli import console, journal, quickstart, store
from albert_cli.data.describe import ExampleRequest, describe_data, format_description
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError
from albert_cli.results import RESULTS
from albert_cli.text.build_vocabulary import describe_vocabulary
from albert_cli.text.vocabulary import REQUEST_FILE
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_sampling_recipe
from albert_cli.work_plan import PLAN_FILE

JsonObject: TypeAlias = Mapping[str, object]

# The kind of a directory without a manifest, by a glob pattern of a file in it; the first pattern with a file decides.
_KIND_BY_FILE: Final = {
    journal.JOURNAL: "run",
    RESULTS: "evaluation",
    quickstart.RESULT_FILE: "quickstart",
    quickstart.PLAN_FILE: "unfinished quickstart",
    "config.json": "Hugging Face model",
    "plan.json": "unfinished data",
    REQUEST_FILE: "unfinished vocabulary",
    "recipe.toml": "run",  # a run that ended before its first step was logged
    PLAN_FILE: "unfinished evaluation or search",
    ".work-*.json": "unfinished experiments",
    "stages/*.json": "experiments",
}
# The keys of `results.json`, `quickstart.json` and `config.json` that are shown.
_RESULT_KEYS: Final = (
    "task", "metric", "score", "median", "spread", "majority", "seeds",
    "best", "glue_score", "mean_of_tasks", "tasks_scored", "left_out", "average", "reached", "experiment", "scale",
)  # fmt: skip
_QUICKSTART_KEYS: Final = ("title", "metric", "conclusion", "report", "seconds")
_MODEL_KEYS: Final = (
    "model_type", "hidden_size", "embedding_size", "num_hidden_layers", "vocab_size", "max_position_embeddings",
    "attention", "attention_window", "attention_block", "attention_global",
)  # fmt: skip


@dataclass(frozen=True)
class Inspection:
    """Result of `albert inspect`.

    manifest: None if the directory has none; verified: number of files whose hash is correct, None if verification was
    not requested; content: facts about this kind of directory as JSON values; lines: these facts for a person.
    """

    directory: Path
    kind: str
    manifest: store.Manifest | None
    verified: int | None
    content: JsonObject
    lines: list[str]

    def to_json(self) -> dict[str, object]:
        """Return the inspection as one JSON object."""
        values: dict[str, object] = {"directory": str(self.directory), "kind": self.kind}
        if self.manifest is not None:
            values["fingerprint"] = self.manifest.fingerprint()
            values["created_by"] = self.manifest.created_by
            values["parents"] = dict(self.manifest.parents)
        if self.verified is not None:
            values["verified"] = self.verified
        return values | dict(self.content)

    def format(self) -> str:
        """Format the inspection as text for a person."""
        identity = ", no manifest of its own"  # the steps of a run have manifests, the run itself has none
        if self.manifest is not None:
            identity = f" {self.manifest.fingerprint()}"
        lines = [f"{self.directory}: {self.kind}{identity}", *self.lines]
        if self.verified is not None:
            lines.append(f"verified: {self.verified} files match their SHA-256")
        return "\n".join(lines)


def inspect_directory(
    directory: Path,
    *,
    verify: bool = False,
    examples: int = 0,
    seed: int | None = None,
    step: int = 0,
    recipe: str | None = None,
) -> Inspection:
    """Describe the content of a directory.

    verify: hash every file that a manifest lists. The other arguments are for data directories. examples: number of
    training examples to decode, from the first one of step `step` on. recipe, seed: those of the training run that
    would sample these examples; None is the default recipe, or the recipe's seed. Raises `CheckpointError` if the
    directory is of no known kind, or if a file is damaged.
    """
    hint = "name a directory that `albert` wrote; text goes to `albert vocab` and `albert data`"
    if not directory.is_dir():
        raise CheckpointError(*store.no_directory_message(directory, hint))
    manifest = store.read_manifest(directory)
    kind = _detect_kind(directory, manifest)
    if kind is None:
        raise CheckpointError(f"{directory}: not written by albert, and not a Hugging Face model", hint)
    verified = None
    # Verification comes first, because damaged files cannot be described.
    if verify and kind == "data":
        verified = verify_data(directory, everything=True)
    elif verify:
        verified = _verify_manifests_below(directory)
    if kind == "data":
        content, lines = _describe_data(directory, examples, seed, step, recipe)
    elif kind == "vocabulary":
        content, lines = describe_vocabulary(directory)
    else:
        content = _describe_run_or_result(directory)
        lines = console.format_named_values(content)
    return Inspection(directory, kind, manifest, verified, content, lines)


def _detect_kind(directory: Path, manifest: store.Manifest | None) -> str | None:
    """Return the kind of a directory, None if it is unknown."""
    if manifest is not None:
        return manifest.kind
    if store.saved_steps(directory):
        return "run"
    if _read_json(directory / RESULTS, ("experiment",)) is not None:
        return "experiment"
    for pattern, kind in _KIND_BY_FILE.items():
        if any(directory.glob(pattern)):
            return kind
    return None


def _describe_data(
    directory: Path, examples: int, seed: int | None, step: int, recipe: str | None
) -> tuple[JsonObject, list[str]]:
    """Return facts about a data directory and its training examples, as JSON values and as lines to print."""
    settings = PretrainRecipe()
    if recipe is not None:
        settings = load_sampling_recipe(recipe)
    if seed is None:
        seed = settings.train.seed
    request = ExampleRequest(
        step=step,
        first=settings.examples_before(step),
        batch_size=len(settings.batch_index(step)),  # only shown: it does not limit the number of examples
        count=examples,
    )
    description = describe_data(directory, settings.data, seed, request)
    return description.to_json(), format_description(description, settings.data)


def _verify_manifests_below(directory: Path) -> int:
    """Verify `directory` and all directories in it that have a manifest and are not hidden; return the number of files.

    Raises `CheckpointError` if a file is damaged, or if there is no manifest.
    """
    folders = [folder for folder in store.walk_folders(directory) if os.path.lexists(folder / store.MANIFEST)]
    if not folders:
        raise CheckpointError(f"{directory}: no {store.MANIFEST}, so nothing can be verified")
    return sum(len(store.verify(folder).files) for folder in folders)


def _describe_run_or_result(directory: Path) -> JsonObject:
    """Return facts about a model, a run or the output of several runs, without those whose file is missing."""
    records: list[JsonObject] = []
    if (directory / journal.JOURNAL).is_file():
        records = list(journal.read_journal(directory / journal.JOURNAL))
    facts = {
        "checkpoints": [step.name for step in store.saved_steps(directory)] or None,
        "status": _read_json(directory / "status.json"),
        "state": _read_json(directory / "state.json"),
        "last_training": _last_with_key(records, "loss"),
        "last_evaluation": _last_with_key(records, "eval"),
        "results": _read_json(directory / RESULTS, _RESULT_KEYS),
        "quickstart": _read_json(directory / quickstart.RESULT_FILE, _QUICKSTART_KEYS),
        "model": _read_json(directory / "config.json", _MODEL_KEYS),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _read_json(path: Path, keys: tuple[str, ...] | None = None) -> JsonObject | None:
    """Return a file's JSON object, or only the entries with these keys; None without the file or the entries."""
    if not os.path.lexists(path):
        return None
    values = store.read_json(path)
    if keys is None:
        return values
    return {key: values[key] for key in keys if key in values} or None


def _last_with_key(records: list[JsonObject], key: str) -> JsonObject | None:
    """Return the last record that has the key, None if none has."""
    return next((record for record in reversed(records) if key in record), None)
