"""Plan the inputs of an experiment: the stages that build its vocabulary, its token shards and its generated tasks.

Each `plan_…` function takes the user's request and the scale, and runs nothing. Tasks with published files need no
stage; `find_available_tasks` checks that their files can be read.

Stages that read local files are identified by the content of these files, so that a changed file leads to new stages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

from albert_cli import config, store
from albert_cli.data.records import require_data_directory
from albert_cli.data.rewrites import has_fallback_holdout
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import AlbertError, ConfigError, InputError, MissingDataError
from albert_cli.evaluation.verify import find_task_data
from albert_cli.experiments.experiment import ExperimentScale
from albert_cli.experiments.plan import OUT, ExperimentPlan, ExperimentRequest, Stage, create_stage
from albert_cli.experiments.word_order_pairs import MAX_PAIRS, PAIRS_FILE, SENTENCE_WORDS
from albert_cli.os_errors import translate_read_errors
from albert_cli.tasks.data_files import match_case
from albert_cli.tasks.glue import GLUE, require_task_folders
from albert_cli.tasks.registry import find_task
from albert_cli.text.remote_files import is_url
from albert_cli.text.sources import is_stdin, resolve_sources
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK, FinetuneRecipe

RECALL_TASK: Final = "table"  # in an experiment, the task `table` always has the table that `recall_table` writes
MINIMAL_PAIRS_TASK: Final = "minimal-pairs"  # not a task of the registry: nothing is fine-tuned, the probe scores it


@dataclass(frozen=True)
class DataInput:
    """A directory or a file that stages read: its identity, its path, and the stage that writes it.

    The identity becomes one of the facts by which the stages that read the path are identified (`Stage.facts`). It is
    the id of the stage that writes the path, or the fingerprint or the hash of data of the user.
    """

    identity: str
    path: str
    needs: tuple[Stage, ...] = ()  # empty if the path exists already


@dataclass(frozen=True)
class _TaskFiles:
    """A task's training and dev files: the SHA-256 of their examples, or the error of reading them."""

    sha256: str = ""
    error: AlbertError | None = None


_ReadFiles = Callable[[str], _TaskFiles]  # of the task with this name


def hash_texts(request: ExperimentRequest, scale: ExperimentScale) -> dict[str, list[str]]:
    """Return, for each text source of the request and the scale, the names and hashes of its local files."""
    sources = dict.fromkeys((*request.text, *request.extra_text, *scale.text, *scale.extra_text))
    return {source: _hash_text(source) for source in sources}


def _hash_text(source: str) -> list[str]:
    """Return the name and the SHA-256 of each local file of a source, in order.

    The list is empty for a source without local files, and for an unreadable source. The checks before a run report
    such a source.
    """
    if is_url(source):  # listing its files needs the network
        return []
    try:
        paths = [resolved.path for resolved in resolve_sources([source]) if resolved.path is not None]
        with translate_read_errors(source):
            return [f"{path.name} {store.sha256_file(path)}" for path in paths]
    except (ConfigError, InputError):
        return []


def find_available_tasks(request: ExperimentRequest, scale: ExperimentScale) -> tuple[dict[str, str], dict[str, str]]:
    """Return the identity of each available task's data, and for each other task the reason to skip it.

    The identity has the hashes of the examples of the task and of its intermediate task. It is "" for the recall table,
    for minimal pairs, and in a dry run without `--tasks`. Raises `InputError` if `--tasks` is not a folder, or if it is
    the folder of one GLUE task instead of the tasks' parent folder, and `ConfigError` if a task does not exist.
    """
    reason_without_folder = "" if request.dry_run else "--tasks is missing"  # a dry run needs no files
    read_files = None
    if request.tasks is not None:
        if not request.tasks.is_dir():
            hint = "name the folder that contains the tasks, such as RTE"
            raise InputError(f"--tasks {request.tasks}: no such folder", hint)
        glue_tasks = [name for name in scale.tasks if name in GLUE]
        if glue_tasks:
            require_task_folders(find_task_data(glue_tasks[0], str(request.tasks)))
        read_files = cache(partial(_read_files, request.tasks))  # MNLI is the intermediate task of several tasks
    available = {}
    skipped = {}
    for name in scale.tasks:
        identity = ""
        reason = ""
        if name == RECALL_TASK:
            if not _recall_text(request, scale):
                reason = "--text is missing"
        elif name != MINIMAL_PAIRS_TASK:  # always available: without a file, pairs are generated from the training data
            find_task(name)  # raises an error for an unknown name, also without files
            reason = reason_without_folder
            if read_files is not None:
                identity, reason = _identify_task(name, load_task_recipe(name, scale), read_files)
        if reason:
            skipped[name] = reason
        else:
            available[name] = identity
    return available, skipped


def plan_task_data(name: str, identity: str, request: ExperimentRequest, scale: ExperimentScale) -> DataInput:
    """Return the data of a task that is fine-tuned: the directory of its files, or a stage that generates them.

    identity: the task's value in the first result of `find_available_tasks`.
    """
    if name == RECALL_TASK:
        source = _recall_text(request, scale)[0]  # the module `recall_table` takes a single source
        argv = [source, "--out", OUT]  # without a command, because the stage runs a module (`plan.MODULES`)
        facts = _text_facts([source], request)
        return _as_input(request, create_stage(request, "table", "table of key words to recall", facts, (), argv))
    directory = "TASKS"  # in the commands that a dry run prints, the folder that the user will name
    if request.tasks is not None:
        directory = find_task_data(name, str(request.tasks))
    return DataInput(identity, directory)


def plan_minimal_pairs(request: ExperimentRequest, scale: ExperimentScale) -> DataInput:
    """Return the file of minimal pairs: the user's, or pairs of word order, which a stage generates."""
    if request.minimal_pairs is not None:
        return DataInput(store.sha256_file(request.minimal_pairs), str(request.minimal_pairs))
    data = plan_data(request, scale, "usual")
    argv = [data.path, "--out", OUT]  # without a command, because the stage runs a module (`plan.MODULES`)
    facts: dict[str, object] = {"data": data.identity, "pairs": MAX_PAIRS, "words": list(SENTENCE_WORDS)}
    stage = create_stage(request, "pairs", "minimal pairs of word order", facts, data.needs, argv)
    return DataInput(stage.id, str(request.directory(stage) / PAIRS_FILE), (stage,))


def load_task_recipe(task: str, scale: ExperimentScale) -> FinetuneRecipe | None:
    """Return a task's recipe at a scale; None if the task has no recipe."""
    name = f"finetune/{task}"
    if name not in config.shipped_recipes():
        return None
    values = config.merge_values(config.read_recipe(name), scale.task_changes)
    return config.validate_recipe(FinetuneRecipe, values, name).with_derived_values()


def _identify_task(task: str, recipe: FinetuneRecipe | None, read_files: _ReadFiles) -> tuple[str, str]:
    """Return the identity of the files of a task and of its intermediate task, and the reason why they are unreadable.

    The reason is "" if they can be read, or if the files of the intermediate task do not exist: the task can start
    without it.
    """
    names = [task]
    if recipe is not None and recipe.intermediate_task != NO_INTERMEDIATE_TASK:
        names.append(recipe.intermediate_task)
    hashes = []
    for name in names:
        files = read_files(name)
        if files.error is None:
            hashes.append(files.sha256)
        elif name == task or not isinstance(files.error, MissingDataError):
            return "", files.error.message
    return " ".join(hashes), ""


def _read_files(folder: Path, name: str) -> _TaskFiles:
    """Read a task's training and dev files below a folder."""
    task = find_task(name)
    data = find_task_data(name, str(folder))
    digest = hashlib.sha256()
    try:
        for split in task.splits[: 1 + len(task.dev_splits)]:  # `splits` begins with the training split
            for example in task.read(split, data):
                digest.update(f"{split} {example!r}\n".encode("utf-8", "surrogatepass"))
    except (ConfigError, InputError) as error:
        return _TaskFiles(error=error)
    return _TaskFiles(digest.hexdigest())


def _recall_text(request: ExperimentRequest, scale: ExperimentScale) -> tuple[str, ...]:
    """Return the texts that the recall table can be generated from; empty if there is only a data directory."""
    if request.text:
        return request.text
    return () if request.data else scale.text


def _text_facts(sources: Sequence[str], request: ExperimentRequest) -> dict[str, object]:
    """Return the facts that identify the text of a stage: its sources, and the content of their local files."""
    return {"text": tuple(sources), "files": [request.text_hashes.get(source, []) for source in sources]}


def plan_vocabulary(request: ExperimentRequest, scale: ExperimentScale) -> Stage:
    """Return the stage that trains the vocabulary."""
    text = request.text or scale.text
    facts = {**_text_facts(text, request), "size": scale.vocabulary, "sample": scale.sample}
    options = ["--size", str(scale.vocabulary), "--sample-size", str(scale.sample), "--out", OUT]
    title = f"vocabulary of {scale.vocabulary:,} tokens"
    return create_stage(request, "vocabulary", title, facts, (), ["vocab", *text, *options])


def plan_data(request: ExperimentRequest, scale: ExperimentScale, text: Literal["usual", "extra"]) -> DataInput:
    """Return the training data of a variant: the directory of `--data`, or a stage that tokenizes text.

    text: as in `Variant.text`. Raises `ConfigError` if there is no additional text for "extra", or if a text is
    standard input, and `CheckpointError` if `--data` is no data directory.
    """
    if request.data is not None:
        if text == "extra":  # a data directory contains one corpus
            raise ConfigError("--data: this experiment compares two corpora", "use --text and --extra-text instead")
        require_data_directory(request.data)
        return DataInput(store.fingerprint(request.data), str(request.data))
    usual_text = request.text or scale.text
    extra_text = request.extra_text
    # The scale's `extra_text` supplements the scale's `text`, so it is not used if --text replaces that text.
    if not request.text and not extra_text:
        extra_text = scale.extra_text
    if text == "extra" and not extra_text:
        raise ConfigError("this experiment needs additional text", "use --extra-text to name some")
    if any(map(is_stdin, (*usual_text, *extra_text))):
        raise ConfigError("--text -: standard input can be read only once", "write it to a file and name the file")
    vocabulary = plan_vocabulary(request, scale)
    options = ["--vocab", str(request.directory(vocabulary)), "--holdout", str(scale.holdout), "--out", OUT]
    sources = usual_text
    title = "token shards"
    if text == "extra":
        sources = (*usual_text, *extra_text)
        title = "token shards with the additional text"
        options.append("--dedup")  # the two texts may overlap
    facts = {**_text_facts(sources, request), "holdout": scale.holdout}
    return _as_input(request, create_stage(request, "data", title, facts, [vocabulary], ["data", *sources, *options]))


def plan_probe_data(request: ExperimentRequest, scale: ExperimentScale) -> tuple[DataInput, dict[str, str]]:
    """Return the data that intrinsic scores are computed on, and the reason for each text that is skipped.

    The data are tokenized from the sources in the scale's `probe_text` whose files exist. If there are none, they are
    the training data, whose held-out text `albert probe` scores.
    """
    # By source of `probe_text`, the same source with the folder of --tasks in place of TASKS
    resolved_sources = {source: source for source in scale.probe_text}
    existing: list[str] = []
    if request.tasks is not None:
        for source in scale.probe_text:
            kind, separator, name = source.partition(":TASKS/")
            if separator:
                resolved_sources[source] = f"{kind}:{match_case(request.tasks, name)}"
        for source, resolved in resolved_sources.items():
            path = resolved.partition(":")[2]  # a source is `squad:FILE` or `race:FOLDER`
            if Path(path).exists():
                existing.append(source)
    elif request.dry_run:  # a dry run without --tasks shows the complete plan
        existing = list(resolved_sources)
    reason = "does not exist, so intrinsic scores do not include it"
    skipped = {resolved: reason for source, resolved in resolved_sources.items() if source not in existing}
    usual = plan_data(request, scale, "usual")
    if not existing:
        return usual, skipped
    needs: list[Stage] = []
    if request.data:
        vocabulary = str(TokenCorpus.open(request.data).vocabulary_dir)
    else:
        needs = [plan_vocabulary(request, scale)]
        vocabulary = str(request.directory(needs[0]))
    sources = [resolved_sources[source] for source in existing]
    argv = ["data", *sources, "--vocab", vocabulary, "--holdout", "0", "--out", OUT]
    # `usual.identity` stands for the vocabulary, which it determines. The hashes of the files identify the text, so the
    # same text below another --tasks folder gives the same stage.
    files = [_hash_text(source) for source in sources]
    facts = {"text": existing, "files": files, "vocab": usual.identity}
    stage = create_stage(request, "data", "token shards for intrinsic scores", facts, needs, argv)
    return _as_input(request, stage), skipped


def check_heldout_text(plan: ExperimentPlan) -> None:
    """Raise `InputError` if variants with additional text may be trained on the held-out text that scores them.

    Does nothing before the usual text is tokenized, and if no variant has additional text.
    """
    variants = {run.variant for run in (*plan.runs, *plan.unmeasured)}
    if all(plan.experiment.variants[name].text == "usual" for name in variants):
        return
    usual = plan_data(plan.request, plan.scale, "usual")
    scores = [stage for stage in plan.stages.values() if stage.kind in ("probe", "pairs")]
    is_scored = any(usual.identity in [need.id for need in stage.needs] for stage in scores)
    if is_scored and Path(usual.path, "data.json").is_file() and has_fallback_holdout(Path(usual.path)):
        raise InputError(
            f"{usual.path}: the variants with additional text may be trained on the document that is held out to score "
            f"them, because holdout {plan.scale.holdout:g} selects no document of the usual text",
            f"use --text with more documents, or a larger holdout in [scales.{plan.request.scale}] of your own recipe",
        )


def _as_input(request: ExperimentRequest, stage: Stage) -> DataInput:
    """Return the directory that a stage writes as the input of other stages."""
    return DataInput(stage.id, str(request.directory(stage)), (stage,))
