"""Answers to questions about texts: `albert predict` with a checkpoint whose head finds spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from albert_cli.errors import InputError
from albert_cli.evaluation.inputs import Line
from albert_cli.model import hub
from albert_cli.tasks.squad import Question, Version
from albert_cli.tasks.squad_answers import answer_lines
from albert_cli.tasks.squad_features import encode_spans
from albert_cli.tasks.squad_settings import SpanSettings, recorded
from albert_cli.training import spans

_WANTED = '{"question": "…", "context": "…"}'


class SpanPredictor:
    """The answer to each question with its place in the context and its probability; "" where there is none.

    Only a model that was fine-tuned on unanswerable questions leaves any unanswered. `truncated` counts the questions
    that were cut; long contexts are read in windows.
    """

    def __init__(self, found: hub.Checkpoint, device: torch.device) -> None:
        self.model, self.device, self.truncated = spans.load(found).to(device).eval(), device, 0
        self.vocabulary = hub.vocabulary_of(found)
        made_for, length = found.finetuned_for, found.config.max_position_embeddings
        self.version: Version = "2.0" if made_for and made_for.task == "squad2" else "1.1"
        given: Mapping[str, Any] = made_for.settings if made_for else {"max_query_length": min(64, length // 4)}
        self.settings = SpanSettings(**recorded(given))
        self.length = min(length, made_for.max_seq_length) if made_for else length
        self.limit = self.settings.max_query_length

    def example(self, line: Line) -> Question:
        """A JSON object with `question` and `context` (or `text`), perhaps `id`; else the two with a tab between."""
        if line.file.endswith(".jsonl"):
            value = line.values()
            question, context = value.get("question"), value.get("context", value.get("text"))
            identifier = str(value.get("id", line.number))
        else:
            question, tab, rest = line.text.partition("\t")
            context, identifier = rest if tab else None, str(line.number)
        if not isinstance(question, str) or not isinstance(context, str):
            raise InputError(f"{line.where}: needs a question and its context", f"each line: {_WANTED}, or with a tab")
        return Question(identifier, question, context)

    def lines(self, examples: Sequence[Question]) -> list[str]:
        """`id`, `question`, `prediction` with `start`, `end` and `probability`, and `null_odds` where there are any."""
        features = encode_spans(examples, self.vocabulary, self.length, self.settings)
        self.truncated += features.cut_questions
        found = spans.predict_spans(self.model, features, self.device)
        return answer_lines(examples, found, self.version, self.settings.threshold, is_scored=False)
