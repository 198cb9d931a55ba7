"""Mistakes on named entities: texts with marked entities, and the errors of each type of entity."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from albert_cli.formatting import format_percent
from albert_cli.report.predictions import PredictionLine, prediction_kind
from albert_cli.report.render import Cell, MarkedText, Segment, Table

_ERRORS = ("missed", "wrong borders", "wrong type", "spurious")
_SHOWN_CHARACTERS = 400
_CONTEXT_CHARACTERS = 100  # shown before the first mistake of a long text


class EntitySpan(NamedTuple):
    """The first character of an entity, the end of its last one, and its type."""

    start: int
    end: int
    label: str

    def overlaps(self, other: EntitySpan) -> bool:
        """Return True if both contain a character."""
        return self.start < other.end and other.start < self.end


_Counts = Counter[str]  # gold, predicted and correct entities of one type, and its errors by kind


def is_entity_line(line: PredictionLine) -> bool:
    """Return True for a line with labeled and predicted entities."""
    return prediction_kind(line) == "entities" and isinstance(line.get("label"), list)


def gold_entities(line: PredictionLine) -> list[EntitySpan]:
    """Return the entities of the data."""
    return _parse_entities(line.get("label"))


def predicted_entities(line: PredictionLine) -> list[EntitySpan]:
    """Return the entities of the model."""
    return _parse_entities(line["prediction"])


def _parse_entities(values: Any) -> list[EntitySpan]:
    entities = [EntitySpan(int(value["start"]), int(value["end"]), str(value["label"])) for value in values or ()]
    return sorted(entities)


def measure_entity_error(line: PredictionLine) -> float:
    """Return 1 − F1 of a text's entities; 0 if there are none and none was predicted."""
    gold = set(gold_entities(line))
    predicted = set(predicted_entities(line))
    total = len(gold) + len(predicted)
    return 1 - 2 * len(gold & predicted) / total if total else 0.0


# ---------------------------------------------------------------- errors by type


def tabulate_entity_errors(lines: Iterable[PredictionLine]) -> Table:
    """Return precision, recall, F1 and the kinds of errors of each type, over all lines of all runs."""
    counts: defaultdict[str, _Counts] = defaultdict(Counter)
    for line in lines:
        _count_line(counts, gold_entities(line), predicted_entities(line))
    rows = [_format_counts(label, counts[label]) for label in sorted(counts)]
    headers = ["type", "entities", "precision", "recall", "F1", *_ERRORS]
    return Table(headers, [*rows, _format_counts("all types", sum(counts.values(), Counter()))])


def _count_line(counts: defaultdict[str, _Counts], gold: Sequence[EntitySpan], predicted: Sequence[EntitySpan]) -> None:
    """Count each entity of the data once, and each predicted entity that overlaps none of the data as spurious."""
    for entity in gold:
        counts[entity.label].update(["gold", _judge(entity, predicted)])
    for entity in predicted:
        counts[entity.label]["predicted"] += 1
        if not any(entity.overlaps(other) for other in gold):
            counts[entity.label]["spurious"] += 1


def _judge(entity: EntitySpan, predicted: Sequence[EntitySpan]) -> str:
    """Return "correct" or the kind of the error on an entity of the data."""
    if entity in predicted:
        return "correct"
    if any(other[:2] == entity[:2] for other in predicted):
        return "wrong type"
    return "wrong borders" if any(other.overlaps(entity) for other in predicted) else "missed"


def _format_counts(label: str, counts: _Counts) -> list[str]:
    precision = counts["correct"] / max(1, counts["predicted"])
    recall = counts["correct"] / max(1, counts["gold"])
    f1 = 2 * counts["correct"] / max(1, counts["gold"] + counts["predicted"])
    scores = map(format_percent, (precision, recall, f1))
    return [label, f"{counts['gold']:,}", *scores, *(f"{counts[error]:,}" for error in _ERRORS)]


# ---------------------------------------------------------------- marked texts


def tabulate_entity_mistakes(examples: Sequence[Sequence[PredictionLine]]) -> Table:
    """Return a row for each example: its text with the entities of the data, with the predicted ones, and the error."""
    rows: list[list[str | Cell | MarkedText]] = []
    for lines in examples:
        line, runs = _most_common_prediction(lines)
        gold = gold_entities(line)
        predicted = predicted_entities(line)
        text = line.get("text", "")
        start = _first_shown_character(text, gold, predicted)
        note = f"{runs} of {len(lines)} runs" if len(lines) > 1 else ""
        rows.append(
            [
                mark_entities(text, gold, predicted, start),
                mark_entities(text, predicted, gold, start, note),
                f"{fmean(map(measure_entity_error, lines)):.2f}",
            ]
        )
    return Table(["label", "predicted", "mean error"], rows)


def _most_common_prediction(lines: Sequence[PredictionLine]) -> tuple[PredictionLine, int]:
    """Return a line with the entities that most runs predicted, and the number of these runs."""
    counts = Counter(tuple(predicted_entities(line)) for line in lines)
    entities, runs = counts.most_common(1)[0]
    return next(line for line in lines if tuple(predicted_entities(line)) == entities), runs


def _first_shown_character(text: str, gold: Sequence[EntitySpan], predicted: Sequence[EntitySpan]) -> int:
    """Return 0 for a short text, else a position shortly before its first mistake."""
    if len(text) <= _SHOWN_CHARACTERS:
        return 0
    first_mistake = min((entity.start for entity in set(gold) ^ set(predicted)), default=0)
    return max(0, first_mistake - _CONTEXT_CHARACTERS)


def mark_entities(
    text: str, entities: Sequence[EntitySpan], reference: Sequence[EntitySpan], start: int = 0, note: str = ""
) -> MarkedText:
    """Return a part of a text with its entities marked; those that are not in `reference` are marked as wrong."""
    stop = min(len(text), start + _SHOWN_CHARACTERS)
    shown = [entity for entity in entities if start <= entity.start and entity.end <= stop]
    segments = [Segment("…")] if start else []
    edges = [EntitySpan(start, start, ""), *shown, EntitySpan(stop, stop, "")]
    for before, entity in pairwise(edges):
        if between := text[before.end : entity.start]:
            segments.append(Segment(between))
        if entity.label:
            is_wrong = entity not in reference
            segments.append(Segment(text[entity.start : entity.end], entity.label, is_wrong=is_wrong))
    if stop < len(text):
        segments.append(Segment("…"))
    return MarkedText(segments, note)
