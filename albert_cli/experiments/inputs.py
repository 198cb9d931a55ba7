"""Plan the inputs of an experiment: the stages that build vocabulary, token shards and generated tasks.

Tasks with published files need no stage; `find_available_tasks` checks that their files can be read.
"""

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

RECALL_TASK: Final = "table"  # in an experiment, always the table that `recall_table` writes
WORD_ORDER_TASK: Final = "word-order"  # minimal pairs that `word_order_pairs` writes


@dataclass(frozen=True)
class DataInput:
    """A data directory that stages read: its identity for their facts, its path, and the stages that write it."""

    identity: str  # a stage's id, the fingerprint of a finished directory, or the path of a task's files
    directory: str
    needs: tuple[Stage, ...] = ()


def find_available_tasks(request: ExperimentRequest, scale: ExperimentScale) -> tuple[list[str], dict[str, str]]:
    """Return the scale's tasks whose data can be read, and the other tasks with the reasons why they are skipped.

    Raises `InputError` if `--tasks` is no folder, and `ConfigError` if a task does not exist.
    """
    if request.tasks is not None and not request.tasks.is_dir():
        hint = "name the folder that contains the tasks, such as RTE"
        raise InputError(f"--tasks {request.tasks}: no such folder", hint)
    tasks = []
    skipped = {}
    for name in scale.tasks:
        reason = ""
        if name == RECALL_TASK:
            if not _recall_text(request, scale):
                reason = "--text is missing"
        elif name != WORD_ORDER_TASK:  # its pairs are generated from any data
            reason = _find_unreadable_files(find_task(name), request)
        if reason:
            skipped[name] = reason
        else:
            tasks.append(name)
    return tasks, skipped


def plan_task_data(name: str, request: ExperimentRequest, scale: ExperimentScale) -> DataInput:
    """Return a task's data: files below the folder of tasks, or a stage that generates them."""
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


def _find_unreadable_files(task: AnyTask, request: ExperimentRequest) -> str:
    """Return the reason why a task's training and dev files cannot be read; "" if they can.

    A dry run does not need the folder of the tasks.
    """
    if request.tasks is None:
        return "" if request.dry_run else "--tasks is missing"
    train_and_dev = task.splits[: 1 + len(task.dev_splits)]  # `splits` begins with the training split
    try:
        for split in train_and_dev:
            task.read(split, find_task_data(task.name, str(request.tasks)))
    except (ConfigError, InputError) as error:
        return error.message
    return ""


def _recall_text(request: ExperimentRequest, scale: ExperimentScale) -> tuple[str, ...]:
    """Return the text that the recall table is generated from; empty if only a data directory is available."""
    if request.text:
        return request.text
    return () if request.data else scale.text


def vocabulary_size(request: ExperimentRequest, scale: ExperimentScale) -> int:
    """Return the vocabulary size of `--data`, or of the vocabulary that the experiment trains."""
    return read_data_facts(request.data).vocab_size if request.data else scale.vocabulary


def plan_vocabulary(request: ExperimentRequest, scale: ExperimentScale) -> Stage:
    """Return the stage that trains the vocabulary."""
    text = request.text or scale.text
    facts = {"text": text, "size": scale.vocabulary, "sample": scale.sample}
    options = ["--size", str(scale.vocabulary), "--sample-size", str(scale.sample), "--out", OUT]
    title = f"vocabulary of {scale.vocabulary:,} tokens"
    return create_stage(request, "vocabulary", title, facts, (), ["vocab", *text, *options])


def plan_data(request: ExperimentRequest, scale: ExperimentScale, text: Literal["usual", "extra"]) -> DataInput:
    """Return the training data of a variant: the directory of `--data`, or a stage that tokenizes text.

    Raises `ConfigError` if the request has no text for this variant, or has standard input as text.
    """
    if request.data is not None:
        if text == "extra":
            raise ConfigError("--data: this experiment compares two corpora", "use --text and --extra-text instead")
        return DataInput(store.fingerprint(request.data), str(request.data))
    usual_text = request.text or scale.text
    extra_text = request.extra_text
    if not request.text and not extra_text:
        extra_text = scale.extra_text  # it belongs to the scale's text, not to the text of --text
    if text == "extra" and not extra_text:
        raise ConfigError("this experiment needs additional text", "use --extra-text to name some")
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
    """Return the data that intrinsic scores are computed on, and the skipped texts with the reasons.

    The data are the scale's `probe_text`, as far as its files exist. Without any they are the training data, whose
    held-out text `albert probe` scores.
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
