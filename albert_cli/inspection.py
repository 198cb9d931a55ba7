"""`albert inspect`: what a directory holds, and whether its bytes are intact."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from albert_cli import console, journal, store
from albert_cli.data.describe import describe_data
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError
from albert_cli.results import RESULTS
from albert_cli.text.build_vocabulary import describe_vocabulary
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_pretrain_recipe

# By a file in it, what a directory without a manifest is, or what is being made there.
_KINDS = {
    journal.JOURNAL: "run",
    RESULTS: "evaluation",
    "config.json": "Hugging Face model",
    "plan.json": "unfinished data",
    "request.json": "unfinished vocabulary",
    "samples/.locks": "unfinished vocabulary",
    "recipe.toml": "run",  # one that ended before its first step was logged
}
_RESULT = ("task", "metric", "score", "median", "spread", "majority", "seeds")
_MODEL = (
    "model_type", "hidden_size", "embedding_size", "num_hidden_layers", "vocab_size", "max_position_embeddings",
    "attention", "attention_window", "attention_block", "attention_global",
)  # fmt: skip


def describe_directory(
    directory: Path,
    *,
    verify: bool = False,
    examples: int = 0,
    seed: int | None = None,
    step: int = 0,
    recipe: str | None = None,
) -> tuple[dict[str, Any], str]:
    """What `directory` holds, as a mapping and as text.

    examples: how many to decode from the first of `step` on, of data, as the recipe (or the defaults) draws them;
    verify: re-hash every file. Raises `CheckpointError` where there is nothing to describe or a file is damaged.
    """
    hint = "it shows what `albert` wrote; text goes to `albert vocab` and `albert data`"
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: {'a file' if directory.exists() else 'no such directory'}", hint)
    manifest = store.read_manifest(directory)
    kind = manifest.kind if manifest else "run" if any(directory.glob("step-*")) else ""
    kind = kind or next((kind for name, kind in _KINDS.items() if (directory / name).exists()), "")
    if not kind:
        raise CheckpointError(f"{directory}: nothing of this program, and no Hugging Face model", hint)
    facts: dict[str, Any] = {"directory": str(directory), "kind": kind}
    if manifest is not None:
        facts |= {"fingerprint": manifest.fingerprint(), "created_by": manifest.created_by}
        facts |= {"parents": dict(manifest.parents)}
    if verify:  # first: what is damaged cannot be described
        facts["verified"] = (
            verify_data(directory, everything=True) if kind == "data" else _verify_manifests_below(directory)
        )
    text = [f"{directory}: {kind}" + (f" {facts['fingerprint']}" if manifest else ", unverified (no manifest)")]
    if kind == "data":
        drawn = (
            PretrainRecipe() if recipe is None else load_pretrain_recipe(recipe, [], Vocabulary.load(directory).size)
        )
        seed = drawn.train.seed if seed is None else seed
        batch_size, first = len(drawn.examples_of(step)), drawn.examples_before(step)
        more, lines = describe_data(directory, drawn.data, seed, step, batch_size, first, examples)
    elif kind == "vocabulary":
        more, lines = describe_vocabulary(directory)
    else:
        more = _read_run_or_result(directory)
        lines = console.format_named_values(more)
    if verify:
        lines = [*lines, f"verified: {facts['verified']} files match their SHA-256"]
    return facts | more, "\n".join([*text, *lines])


def _verify_manifests_below(directory: Path) -> int:
    manifests = (p.relative_to(directory) for p in directory.rglob(store.MANIFEST))
    found = sorted(p.parent for p in manifests if not any(part.startswith(".") for part in p.parts))
    if not found:
        raise CheckpointError(f"{directory}: no {store.MANIFEST}, so nothing can be verified")
    return sum(len(store.verify(directory / place).files) for place in found)


def _read_run_or_result(directory: Path) -> dict[str, Any]:
    """Of a run, a checkpoint, a task or a result: its steps, its last metrics, its score, its shape."""
    facts: dict[str, Any] = {}
    if steps := store.saved_steps(directory):
        facts["checkpoints"] = [step.name for step in steps]
    for name in ("status", "state"):
        if (directory / f"{name}.json").is_file():
            facts[name] = store.read_json(directory / f"{name}.json")
    if (directory / journal.JOURNAL).is_file():
        records = journal.read_journal(directory / journal.JOURNAL)
        for name, wanted in (("last_training", "loss"), ("last_evaluation", "eval")):
            facts[name] = next((r for r in reversed(records) if wanted in r), None)
    for key, file, names in (("results", RESULTS, _RESULT), ("model", "config.json", _MODEL)):
        if os.path.lexists(directory / file):
            values = store.read_json(directory / file)
            facts[key] = {name: values[name] for name in names if name in values}
    return facts
