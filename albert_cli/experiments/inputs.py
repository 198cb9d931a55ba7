"""The inputs of an experiment's stages: vocabulary, data, and the tasks whose files exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from albert_cli import store
from albert_cli.data.records import read_data_facts
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError, InputError
from albert_cli.evaluation.verify import find_task_data
from albert_cli.experiments.plan import OUT, ExperimentRequest, Stage, create_stage
from albert_cli.experiments.recipe import ExperimentScale
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.registry import find_task

RECALL_TASK: Final = "table"  # the only table of an experiment, written by `recall_table`
WORD_ORDER_TASK: Final = "word-order"  # minimal pairs, written by `word_order_pairs`


@dataclass(frozen=True)
class DataInput:
    """A data directory that stages read: its identity, its path, and the stages that make it."""

    identity: str  # a stage's id, the fingerprint of a finished directory, or the path of a task's files
    directory: str
    needs: tuple[Stage, ...] = ()


def find_available_tasks(request: ExperimentRequest, scale: ExperimentScale) -> tuple[list[str], dict[str, str]]:
    """Return the scale's tasks whose files can be read, and for each other task the reason.

    A dry run without a folder includes all tasks.
    """
    if request.tasks is not None and not request.tasks.is_dir():
        hint = "name the folder that contains the tasks, such as RTE"
        raise InputError(f"--tasks {request.tasks}: no such folder", hint)
    tasks = []
    skipped = {}
    for name in scale.tasks:
        if name == WORD_ORDER_TASK:
            tasks.append(name)
            continue
        task = None if name == RECALL_TASK else find_task(name)
        try:
            if task is not None:
                _check_task_files(task, request)
            elif not _recall_text(request, scale):
                raise InputError("--text is missing")
            tasks.append(name)
        except (ConfigError, InputError) as error:
            skipped[name] = error.message
    return tasks, skipped


def plan_task_data(name: str, request: ExperimentRequest, scale: ExperimentScale) -> DataInput:
    """Return a task's data: its files below the folder of tasks, or a stage that generates them."""
    if name == WORD_ORDER_TASK:
        data = plan_data(request, scale, "usual")
        argv = [data.directory, "--out", OUT]
        stage = create_stage(request, "pairs", "minimal pairs of word order", {"data": data.identity}, data.needs, argv)
        return DataInput(stage.id, _directory(request, stage), (stage,))
    if name == RECALL_TASK:
        source = _recall_text(request, scale)[0]
        argv = [source, "--out", OUT]
        stage = create_stage(request, "table", "table of key words to recall", {"text": (source,)}, (), argv)
        return DataInput(stage.id, _directory(request, stage), (stage,))
    if request.tasks is None:
        return DataInput("TASKS", "TASKS")
    directory = find_task_data(name, str(request.tasks)) or str(request.tasks)
    return DataInput(directory, directory)


def _check_task_files(task: AnyTask, request: ExperimentRequest) -> None:
    if request.tasks is None:
        if request.dry_run:
            return
        raise InputError("--tasks is missing")
    for split in task.splits[: 1 + len(task.dev_splits)]:
        task.read(split, find_task_data(task.name, str(request.tasks)))


def _recall_text(request: ExperimentRequest, scale: ExperimentScale) -> tuple[str, ...]:
    """Return the text that the recall table is generated from; empty if there is only finished data."""
    return request.text or (() if request.data else scale.text)


def vocabulary_size(request: ExperimentRequest, scale: ExperimentScale) -> int:
    """Return the size of the finished data's vocabulary, or of the one that will be trained."""
    return read_data_facts(request.data).vocab_size if request.data else scale.vocabulary


def plan_vocabulary(request: ExperimentRequest, scale: ExperimentScale) -> Stage:
    """Return the stage that trains the vocabulary."""
    text = request.text or scale.text
    facts = {"text": text, "size": scale.vocabulary, "sample": scale.sample}
    options = ["--size", str(scale.vocabulary), "--sample-size", str(scale.sample), "--out", OUT]
    title = f"vocabulary of {scale.vocabulary:,} tokens"
    return create_stage(request, "vocabulary", title, facts, (), ["vocab", *text, *options])


def plan_data(request: ExperimentRequest, scale: ExperimentScale, text: Literal["usual", "extra"]) -> DataInput:
    """Return the training data of a variant: the finished directory, or a stage that tokenizes the text."""
    if request.data is not None:
        if text == "extra":
            raise ConfigError("--data: this experiment compares two corpora", "use --text and --extra-text instead")
        return DataInput(store.fingerprint(request.data), str(request.data))
    usual_text = request.text or scale.text
    extra_text = request.extra_text or (() if request.text else scale.extra_text)
    if text == "extra" and not extra_text:
        raise ConfigError("there is no additional text", "use --extra-text to name some")
    if "-" in (*usual_text, *extra_text):
        raise ConfigError("--text -: standard input can be read only once", "write it to a file and name the file")
    vocabulary = plan_vocabulary(request, scale)
    options = ["--vocab", _directory(request, vocabulary), "--holdout", str(scale.holdout), "--out", OUT]
    sources = usual_text
    title = "token shards"
    if text == "extra":
        sources = (*usual_text, *extra_text)
        title = "token shards with the additional text"
        options.append("--dedup")  # the two texts may overlap
    facts = {"text": sources, "holdout": scale.holdout}
    stage = create_stage(request, "data", title, facts, [vocabulary], ["data", *sources, *options])
    return DataInput(stage.id, _directory(request, stage), (stage,))


def plan_probe_data(request: ExperimentRequest, scale: ExperimentScale) -> tuple[DataInput, dict[str, str]]:
    """Return the data of intrinsic scores, and the reasons for texts that are skipped.

    These are the scale's own texts for them where they exist, else the training data.
    """
    tasks = request.tasks
    sources = [source.replace("TASKS", str(tasks or "TASKS")) for source in scale.probe_text]
    existing = []
    if tasks is not None:
        existing = [source for source in sources if Path(source.partition(":")[2]).exists()]
    elif request.dry_run:
        existing = sources
    reason = "does not exist, so intrinsic scores do not include it"
    skipped = {source: reason for source in sources if source not in existing}
    usual = plan_data(request, scale, "usual")
    if not existing:
        return usual, skipped
    needs: list[Stage] = []
    if request.data:
        vocabulary = str(TokenCorpus.open(request.data).vocabulary_dir)
    else:
        needs = [plan_vocabulary(request, scale)]
        vocabulary = _directory(request, needs[0])
    argv = ["data", *existing, "--vocab", vocabulary, "--holdout", "0", "--out", OUT]
    facts = {"text": existing, "vocab": usual.identity}
    stage = create_stage(request, "data", "token shards for intrinsic scores", facts, needs, argv)
    return DataInput(stage.id, _directory(request, stage), (stage,)), skipped


def _directory(request: ExperimentRequest, stage: Stage) -> str:
    return str(request.stage_folder / stage.id)
