"""What the stages of an experiment read: its texts' vocabulary and data, and the tasks whose files are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError, InputError
from albert_cli.evaluation.verify import find_task_data
from albert_cli.experiments.plan import OUT, ExperimentPlan
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.registry import find_task

RECALL_TASK = "table"  # the only table of an experiment: `recall_table` writes it
Data = tuple[str, tuple[str, ...], str]  # a stage or a fingerprint, the stages to wait for, and the directory


def available_tasks(plan: ExperimentPlan) -> list[str]:
    """Return the scale's tasks whose data can be read; note in the plan why others are left out.

    A dry run without a folder of tasks plans all of them.
    """
    folder = plan.request.tasks
    if folder is not None and not folder.is_dir():
        raise InputError(f"--tasks {folder}: no such folder", "name the one with the tasks' folders, such as RTE")
    tasks = []
    for name in plan.scale.tasks:
        task = None if name == RECALL_TASK else find_task(name)
        try:
            _check_task_data(plan, task)
            tasks.append(name)
        except (ConfigError, InputError) as error:
            plan.left_out[name] = error.message
    return tasks


def _check_task_data(plan: ExperimentPlan, task: AnyTask | None) -> None:
    """Read a task's training and dev data (None: the recall table's text); raises `ConfigError` or `InputError`."""
    if task is None:
        if not _recall_text(plan):
            raise InputError("--text names no text")
        return
    if plan.request.tasks is None:
        if plan.request.dry_run:
            return
        raise InputError("--tasks names no folder")
    for split in task.splits[: 1 + len(task.dev_splits)]:
        task.read(split, find_task_data(task.name, str(plan.request.tasks)))


def _recall_text(plan: ExperimentPlan) -> tuple[str, ...]:
    """Return the text that the recall table is generated from; empty if only finished data are named."""
    return plan.request.text or (() if plan.request.data else plan.scale.text)


def add_task_data(plan: ExperimentPlan, name: str) -> tuple[str, tuple[str, ...]]:
    """Return a task's data directory and the stages to wait for; a recall table is a stage of its own."""
    if name == RECALL_TASK:
        source = _recall_text(plan)[0]
        table = plan.stage("table", "table of key words to recall", {"text": (source,)}, (), [source, "--out", OUT])
        return str(plan.directory(table)), (table,)
    if plan.request.tasks is None:
        return "TASKS", ()
    folder = find_task_data(name, str(plan.request.tasks))
    return folder or str(plan.request.tasks), ()


def probed(plan: ExperimentPlan) -> Data:
    """The data of intrinsic scores: of the scale's own text for them where that is there, else the usual data."""
    tasks, usual = plan.request.tasks, data(plan, "usual")
    sources = [source.replace("TASKS", str(tasks or "TASKS")) for source in plan.scale.probe_text]
    there = [s for s in sources if tasks is None or Path(s.partition(":")[2]).exists()]
    there = there if tasks is not None or plan.request.dry_run else []
    plan.left_out |= {s: "is not there, and no intrinsic score is of it" for s in sources if s not in there}
    if not there:
        return usual[0], (), usual[2]
    where = str(TokenCorpus.open(plan.request.data).vocabulary_dir) if plan.request.data else vocabulary(plan)[1]
    argv = ["data", *there, "--vocab", where, "--holdout", "0", "--out", OUT]
    needs = () if plan.request.data else (vocabulary(plan)[0],)
    made = plan.stage("data", "token shards for intrinsic scores", {"text": there, "vocab": usual[0]}, needs, argv)
    return made, (made,), str(plan.directory(made))


def data(plan: ExperimentPlan, text: str) -> Data:
    """The data of a variant's text: a stage or a fingerprint, the stages to wait for, and the directory."""
    scale, request = plan.scale, plan.request
    if request.data is not None:
        if text == "extra":
            hint = "give --text and --extra-text instead"
            raise ConfigError("--data: this experiment compares two corpora", hint)
        return store.fingerprint(request.data), (), str(request.data)
    usual = plan.text
    extra = request.extra_text or (() if request.text else scale.extra_text)
    if text == "extra" and not extra:
        raise ConfigError("there is no additional text", "name some with --extra-text")
    if "-" in (*usual, *extra):
        raise ConfigError("--text -: standard input can be read only once", "write it to a file, and name that")
    made_of, where = vocabulary(plan)
    sources, title = usual, "token shards"
    options = ["--vocab", where, "--holdout", str(scale.holdout), "--out", OUT]
    if text == "extra":
        sources, title = (*usual, *extra), "token shards with the additional text"
        options.append("--dedup")  # the two may overlap
    facts: dict[str, Any] = {"text": sources, "holdout": scale.holdout}
    made = plan.stage("data", title, facts, (made_of,), ["data", *sources, *options])
    return made, (made,), str(plan.directory(made))


def vocabulary(plan: ExperimentPlan) -> tuple[str, str]:
    """The stage of the usual text's vocabulary, and its directory."""
    scale, text = plan.scale, plan.text
    facts: dict[str, Any] = {"text": text, "size": scale.vocabulary, "sample": scale.sample}
    options = ["--size", str(scale.vocabulary), "--sample-size", str(scale.sample), "--out", OUT]
    title = f"vocabulary of {scale.vocabulary:,} tokens"
    made = plan.stage("vocabulary", title, facts, (), ["vocab", *text, *options])
    return made, str(plan.directory(made))
