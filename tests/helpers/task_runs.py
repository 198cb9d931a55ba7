"""Write small files in GLUE's layout, and fine-tune a tiny model on them in a second."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from albert_cli import store
from albert_cli.evaluation import single, suite, tables
from albert_cli.model.config import ModelConfig
from albert_cli.results import EvaluationResult, RunResult, read_result
from albert_cli.tasks.registry import find_task
from albert_cli.training import finetune as finetuning
from albert_cli.training import task_model, task_setup
from albert_cli.training.finetune import FinetuneJob
from albert_cli.training.task_recipe import PAPER_RECIPES
from albert_cli.training.task_setup import PreparedTask, TaskRequest

SHAPE = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=48, initializer_range=0.1,
)  # fmt: skip
QUICK = (
    "schedule.total_steps=6", "schedule.warmup_steps=1", "train.eval_every=2", "train.save_every=0",
    "train.batch_size=4", "train.log_every=6", "optimizer.lr=5e-3", "data.max_seq_length=24",
    "train.precision=fp32",  # "auto" would measure in every run which precision is faster
)  # fmt: skip
WORDS = ("bade", "figo", "luma", "wi", "kra", "ne")
MNLI = "index\t" + "\t".join(map(str, range(1, 8))) + "\tsentence1\tsentence2"
PAIR = "index\tsentence1\tsentence2"


def sentence(number: int) -> str:
    """Return three to five words that depend only on the number."""
    return " ".join(WORDS[(number * k + k) % len(WORDS)] for k in range(1, 4 + number % 3))


def pairs(labels: tuple[str, ...], rows: range, between: str = "") -> str:
    """Return lines of the columns index, sentence1, sentence2 and label; `labels` is empty for a test set.

    between: columns between the index and the sentences, with a tab before each.
    """
    ends = [f"\t{labels[i % len(labels)]}\n" if labels else "\n" for i in rows]
    return "".join(f"{i}{between}\t{sentence(i)}\t{sentence(i + 5)}{end}" for i, end in zip(rows, ends, strict=True))


def mnli(rows: range) -> str:
    """Return the content of a labeled file of MNLI."""
    between = "\t" + "\t".join("1234567")
    return f"{MNLI}\tgold_label\n" + pairs(find_task("mnli").labels, rows, between)


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder and return the folder; `files` has the content of each `TASK/split`."""
    for name, text in files.items():
        path = folder / f"{name}.tsv"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return folder


def write_single_file(folder: Path, task: str) -> Path:
    """Write 30 labeled texts to one file of a table, of tagged words, or of questions."""
    if task == "ner":
        path = folder / "all.conll"
        path.write_text("".join(f"bade B-PER\n{sentence(i).split()[0]} O\n\n" for i in range(30)))
    elif task == "squad1":
        path = folder / "all.jsonl"
        answers = {"text": ["bade"], "answer_start": [0]}
        rows = [
            {"id": i, "title": f"t{i}", "context": f"bade {sentence(i)}", "question": "figo?", "answers": answers}
            for i in range(30)
        ]
        rows[0]["context"] = "without the answer"  # left out for training
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path = folder / "all.csv"
        path.write_text("text,label\n" + "".join(f"{sentence(i)},{'ab'[i % 2]}\n" for i in range(30)))
    return path


def write_foreign(directory: Path, out: Path, labels: tuple[str, ...], **changes: object) -> Path:
    """Copy a model as another program would write it: without a manifest, with other names of labels."""
    shutil.copytree(directory, out, ignore=shutil.ignore_patterns("manifest.json", "results.json", ".lock"))
    values = store.read_json(out / "config.json")
    del values["albert_task"], values["finetuning_task"]
    values["id2label"] = {str(i): label for i, label in enumerate(labels)}
    (out / "config.json").write_text(json.dumps(values | changes))
    return out


def prepare(
    task: str,
    checkpoint: str,
    data: str | None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    recipes: str = PAPER_RECIPES,
) -> PreparedTask:
    """Prepare a task as a command does."""
    return task_setup.prepare_task(task, TaskRequest(checkpoint, data, 1, tuple(overrides), device, recipes=recipes))


def build_model(prepared: PreparedTask, seed: int) -> Any:
    """Build the model that a run with this seed starts from."""
    inputs = prepared.load_inputs(seed)
    return task_model.build_model(prepared, inputs, seed, task_model.resolve_train_settings(prepared, inputs))


def evaluate(
    task: str,
    checkpoint: str,
    data: str | None,
    out: Path,
    runs: int,
    overrides: Sequence[str],
    device: str,
    *,
    nproc: int = 1,
    retrain: bool = False,
    submission_file: Path | None = None,
    controlled: Sequence[str] = (),
    recipes: str = PAPER_RECIPES,
) -> dict[str, Any]:
    """Run `albert eval` and return the JSON of its result."""
    request = TaskRequest(checkpoint, data, runs, tuple(overrides), device, nproc, retrain, tuple(controlled), recipes)
    if task == suite.GLUE_SUITE:
        return suite.evaluate_suite(request, out, submission_file).to_json()
    return suite.evaluate(task, request, out).to_json()


def finetune(
    prepared: PreparedTask, out: Path, seed: int | None = None, *, retry_diverged: bool = True
) -> dict[str, Any]:
    """Fine-tune one seed and return the JSON of its result."""
    inputs = prepared.load_inputs(seed)
    return finetuning.finetune(prepared, inputs, out, seed, retry_diverged=retry_diverged).to_json()


def summarize(runs: Sequence[Mapping[str, Any]]) -> EvaluationResult:
    """Summarize runs given as JSON."""
    return single.summarize_runs("T", [RunResult.model_validate(run) for run in runs])


def as_text(result: Mapping[str, Any]) -> str:
    """Format a result given as JSON as `albert eval` prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        store.write_json(path, result)
        return tables.format_result(read_result(path))


def diverge_runs(monkeypatch: pytest.MonkeyPatch, is_diverging: Callable[[FinetuneJob], bool]) -> None:
    """Let every fine-tuning run for which the condition is true diverge in its first step."""
    original = FinetuneJob.loss_sums

    def loss_sums(self: FinetuneJob, data: Any) -> dict[str, Tensor]:
        factor = float("nan") if is_diverging(self) else 1.0
        return {name: value * factor for name, value in original(self, data).items()}

    monkeypatch.setattr(FinetuneJob, "loss_sums", loss_sums)


def diverge_random_mnli(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every fine-tuning run on MNLI from random weights diverge in its first step."""
    diverge_runs(monkeypatch, lambda job: job.prepared.task.name == "mnli" and job.settings.model.weights == "random")
