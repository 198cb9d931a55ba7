"""`--nproc`: the seeds (and tasks) of an evaluation over processes, one per GPU, or N that share the cores of a CPU.

Each run is one that would have been made without: the same directory, resumed the same way. When all are there, the
evaluation goes over them as if it had made them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from albert_cli import console, pool
from albert_cli.evaluation.single import prepare_task, run_directory, run_seed, seeds
from albert_cli.results import percent
from albert_cli.training.intermediate import from_intermediate
from albert_cli.training.task_recipe import PRETRAINED
from albert_cli.training.task_setup import Prepared, Request


@dataclass(frozen=True)
class TaskRuns:
    """A task to be fine-tuned with every seed: as the user names it, made ready, and where its runs go."""

    task: str
    prepared: Prepared
    out: Path


def train(jobs: Sequence[TaskRuns], nproc: int) -> None:
    """Fine-tune every seed of every job, `nproc` at a time; one at a time is left to the evaluation itself.

    Tasks that are only scored are left alone. A run that fails does not stop the others; at the end the first error
    is raised (divergence does not count as one). Asked to stop, every process saves its run, and the same command goes
    on.
    """
    runs = [run for job in jobs if not job.prepared.for_scoring for run in _runs(job)]
    if nproc == 1 or not runs:
        return
    errors: dict[str, BaseException] = {}

    def keep(job: pool.Job[float | None], score: float | BaseException | None) -> None:
        if isinstance(score, BaseException):
            errors[job.name] = score
        else:
            console.note(f"{job.name} {percent(score) or 'diverged'}")

    count = min(nproc, len(runs))
    threads, gpus = max(1, torch.get_num_threads() // count), torch.cuda.device_count()
    pool.run(runs, pool.Places(count, threads, gpus, quiet=True), keep)
    for run in runs:
        if run.name in errors:
            raise errors[run.name]


def _runs(job: TaskRuns) -> list[pool.Job[float | None]]:
    prepared, request = job.prepared, job.prepared.request
    found = prepared.intermediate.directory if prepared.intermediate else None
    if prepared.intermediate_note:
        request = replace(request, overrides=(*request.overrides, f"start_from={PRETRAINED}"))
    return [
        pool.Job(
            f"{run_directory(job.out, seed)}: {job.task} seed {seed}", _fine_tuned,
            (request, job.task, found, prepared.intermediate_note, run_directory(job.out, seed), seed),
        )
        for seed in seeds(prepared)
    ]  # fmt: skip


def _fine_tuned(
    request: Request, task: str, intermediate: Path | None, note: str | None, out: Path, seed: int
) -> float | None:
    return run_seed(_prepared(request, task, intermediate, note), out, seed).score


@lru_cache(maxsize=1)
def _prepared(request: Request, task: str, intermediate: Path | None, note: str | None) -> Prepared:
    """The task read and encoded once for all seeds that this process runs after each other."""
    prepared = replace(prepare_task(request, task), intermediate_note=note)
    return from_intermediate(prepared, intermediate) if intermediate else prepared
