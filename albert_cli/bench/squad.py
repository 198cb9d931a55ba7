"""How fast questions become windows on one core, and how many answers come back from them as they were written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert_cli import console
from albert_cli.tasks.squad.data import NOT_FOUND, Answer, read_file
from albert_cli.tasks.squad.windows import Contexts, encode_spans
from albert_cli.text.clean import Cleaning
from albert_cli.text.offsets import clean_with_places
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.task_recipe import FinetuneRecipe

AS_WRITTEN = "as written"
Placed = Sequence[tuple[int, Answer]]  # (number of the context, answer)


def measure(file: Path, vocabulary_dir: Path, recipe: FinetuneRecipe) -> dict[str, Any]:
    """Build the windows of a file in SQuAD's layout as `recipe` says, and map every answer there and back.

    An answer goes to the characters, or pieces, that hold any of it, and comes back as the text that those stand for:
    `through_cleaning` and `through_pieces` count how. The rate is that of the windows alone, the file being read
    before, by processor time.
    """
    vocabulary, questions = Vocabulary.load(vocabulary_dir), read_file(file)
    begin = time.process_time()
    features = encode_spans(questions, vocabulary, recipe.data.max_seq_length, recipe.span)
    spent = time.process_time() - begin
    texts = list(dict.fromkeys(question.context for question in questions))  # in the order of `features.contexts`
    answers = [(int(c), a) for c, q in zip(features.context, questions, strict=True) for a in q.answers]
    placed = [(context, answer) for context, answer in answers if answer.start != NOT_FOUND]
    return {
        "file": str(file),
        "pieces": vocabulary.size,
        "max_seq_length": recipe.data.max_seq_length,
        "questions": len(questions),
        "contexts": len(texts),
        "windows": len(features),
        "questions_cut": features.truncated,
        "with_answer": sum(bool(question.answers) for question in questions),
        "answer_in_a_window": len(np.unique(features.question[features.is_answered])),
        "answers": len(answers),
        "not_in_context": len(answers) - len(placed),
        "through_cleaning": _outcomes(placed, _letters(texts, vocabulary.cleaning), "letter"),
        "through_pieces": _outcomes(placed, features.contexts, "piece"),
        "questions_per_cpu_second": round(len(questions) / max(spent, 1e-9)),
    }


def _letters(texts: Sequence[str], cleaning: Cleaning) -> Contexts:
    """Cleaned contexts with each character as a piece, without ids."""
    placed = [clean_with_places(text, cleaning) for text in texts]
    starts, ends = (np.concatenate([np.array(p[i], np.int32) for p in placed]) for i in (1, 2))
    return Contexts(starts, starts, ends, np.cumsum([0, *(len(p.text) for p in placed)]))


def _outcomes(placed: Placed, contexts: Contexts, unit: str) -> dict[str, int]:
    """How many answers came back as written and how many in what other way, the most frequent first."""
    context = np.array([number for number, _ in placed], dtype=np.int64)
    start, stop = np.array([answer.place for _, answer in placed], dtype=np.int64).reshape(-1, 2).T
    first, last = contexts.tokens_at(context, start, stop)
    base = contexts.offsets[:-1][context]
    is_left = first <= last
    got_start = np.where(is_left, contexts.starts[np.where(is_left, base + first, 0)], 0)
    got_stop = np.where(is_left, contexts.ends[np.where(is_left, base + last, 0)], 0)
    ways = zip((got_start - start).tolist(), (got_stop - stop).tolist(), is_left.tolist(), strict=True)
    return dict(Counter(_outcome(*way, unit) for way in ways).most_common())


def _outcome(start: int, stop: int, is_left: bool, unit: str) -> str:
    """What shifts of an answer's first and last character mean."""
    if not is_left:
        return "nothing is left by cleaning"
    if start > 0 or stop < 0:
        return "cleaning drops its first or last character"
    shifted = [name for name, shift in (("begins", start), ("ends", stop)) if shift]
    return f"{' and '.join(shifted)} inside a {unit}" if shifted else AS_WRITTEN


def text(measured: Mapping[str, Any]) -> str:
    """The result of `measure` as a table of answers, and the rate."""
    m, placed = measured, max(1, measured["answers"] - measured["not_in_context"])
    counts = [(f"through {w}: {n}", c) for w in ("cleaning", "pieces") for n, c in m[f"through_{w}"].items()]
    rows = [(name, f"{count:,}", f"{count / placed:.2%}") for name, count in counts]
    if m["not_in_context"]:
        rows.append(("not in its context", f"{m['not_in_context']:,}", ""))
    notes = [
        f"{m['questions']:,} questions on {m['contexts']:,} contexts: {m['windows']:,} windows of at most "
        f"{m['max_seq_length']} pieces; {m['questions_cut']:,} questions are cut",
        f"{m['answer_in_a_window']:,} of {m['with_answer']:,} questions with an answer have it whole in a window",
        f"{m['questions_per_cpu_second']:,} questions a second of a core",
    ]
    return f"{console.table((m['file'], 'answers', 'share'), rows)}\n\n{console.wrapped(notes)}"
