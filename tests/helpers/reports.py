"""Write runs and evaluations for a report without training, and parse the report's page."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.tasks.registry import TASKS
from tests.helpers.results import evaluation_result, run_result

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = "<script>alert('x')</script>\"&$x_1$"


class Page(HTMLParser):
    """The elements, attributes and text of an HTML page; asserts that every element is closed in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.svg = ""  # the source of all images
        self.rows: list[list[str]] = []  # the texts of the cells, by row of all tables
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes
        if name == "img":
            image = dict(attributes)["src"] or ""
            self.svg += base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")).decode()
        if name == "tr":
            self.rows.append([])
        if name in ("td", "th"):
            self.rows[-1].append("")
        if name not in VOID:
            self._open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data


def write_pretraining(directory: Path, *, steps: int = 40, entropy: float | None = 7.0) -> str:
    """Write a pretraining run with one checkpoint; return the checkpoint's fingerprint."""
    directory.mkdir(parents=True)
    recipe = "[model]\nhidden_size = 64\nnum_attention_heads = 4\nintermediate_size = 256\n"
    (directory / "recipe.toml").write_text(recipe + f"[schedule]\ntotal_steps = {steps}\n[train]\nbatch_size = 8\n")
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        loss = 8.0 - step / steps
        rows.append({"step": step, "loss": loss + 0.7, "mlm_loss": loss, "tokens_per_second": 900.0, "seconds": step})
        if step % 10 == 0:
            evaluation = {"mlm_loss": loss, "mlm_accuracy": step / steps / 3, "order_accuracy": 0.5}
            rows.append({"step": step, "eval": evaluation | ({"unigram_entropy": entropy} if entropy else {})})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4')
    checkpoint = directory / f"step-{steps:08d}"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    store.seal(checkpoint, "checkpoint")
    return store.fingerprint(checkpoint)


def write_eval(directory: Path, scores: list[float], **changes: Any) -> None:
    """Write an evaluation with these scores, and its runs; `changes` set keys of the result or of its protocol."""
    task = changes.get("task", "rte")
    title = changes.get("title", TASKS[task].title if task in TASKS else task)
    changes = {"majority": 0.527, **changes, "task": task, "title": title}
    evaluation = evaluation_result(scores, **changes)
    for seed, score in enumerate(scores):
        run = directory / f"run-{seed}"
        run.mkdir(parents=True)
        run_result(score, seed, task=task, title=title).write(run / "results.json")
        lines = [{"step": step, "eval": {"accuracy": score - 0.1 / step}} for step in (1, 2, 3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluation.write(directory / "results.json")
