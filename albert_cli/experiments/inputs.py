"""What the stages of an experiment read: its texts' vocabulary and data, and the tasks whose files are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError, InputError
from albert_cli.evaluation.verify import find_task_data
from albert_cli.experiments.plan import OUT, ExperimentPlan
from albert_cli.tasks.registry import find_task

Data = tuple[str, tuple[str, ...], str]  # a stage or a fingerprint, the stages to wait for, and the directory


def available_tasks(plan: ExperimentPlan) -> list[str]:
    """The scale's tasks whose files are there, in a dry run without a folder all; the others are noted, with why."""
    folder, found = plan.request.tasks, []
    if folder is not None and not folder.is_dir():
        raise InputError(f"--tasks {folder}: no such folder", "name the one with the tasks' folders, such as RTE")
    for name in plan.scale.tasks:
        task = find_task(name)
        if plan.request.dry_run and folder is None:
            found.append(name)  # what it would cost; the folder is named when it is run
            continue
        try:
            if (place := task_data(plan, name)) is None:
                raise InputError("--text names no text" if task.is_made_of_text else "--tasks names no folder")
            for split in task.splits[: 1 + len(task.dev_splits)]:
                task.read(split, place)
            found.append(name)
        except (ConfigError, InputError) as error:
            plan.left_out[name] = error.message
    return found


def task_data(plan: ExperimentPlan, name: str) -> str | None:
    """Where a task's data are: the folder of tasks, or the first source of text for one that is made of any text."""
    if not find_task(name).is_made_of_text:
        return None if plan.request.tasks is None else find_task_data(name, str(plan.request.tasks))
    text = plan.request.text or (() if plan.request.data else plan.scale.text)
    return text[0] if text else None


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
