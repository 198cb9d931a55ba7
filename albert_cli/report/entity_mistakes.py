"""The report's tables of mistakes on named entities: texts with marked entities, and the errors by type of entity.

"Gold" are the labeled entities of the data, "predicted" those of the model. Positions are characters of the text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from albert_cli.formatting import format_percent
from albert_cli.report.predictions import PredictionLine, prediction_kind
from albert_cli.report.render import Cell, MarkedText, Segment, Table

_ERRORS = ("missed", "wrong borders", "wrong type", "spurious")
_SHOWN_CHARACTERS = 400  # of a text
_CONTEXT_CHARACTERS = 100  # shown before the first mistake of a long text


class EntitySpan(NamedTuple):
    """An entity: its first character, the character after its last one, and its type."""

    start: int
    end: int
    label: str

    def overlaps(self, other: EntitySpan) -> bool:
        """Return True if the spans share a character."""
        return self.start < other.end and other.start < self.end


_Counts = Counter[str]  # of one type: its entities by "gold", "predicted" and "correct", and its errors by kind


def is_entity_line(line: PredictionLine) -> bool:
    """Return True for a line with labeled and predicted entities."""
    return prediction_kind(line) == "entities" and isinstance(line.get("label"), list)


def gold_entities(line: PredictionLine) -> list[EntitySpan]:
    """Return the labeled entities of a text in their order."""
    return _parse_entities(line.get("label"))


def predicted_entities(line: PredictionLine) -> list[EntitySpan]:
    """Return the predicted entities of a text in their order."""
    return _parse_entities(line["prediction"])


def _parse_entities(values: Any) -> list[EntitySpan]:
    if values is None:
        return []
    return sorted(EntitySpan(int(value["start"]), int(value["end"]), str(value["label"])) for value in values)


def measure_entity_error(line: PredictionLine) -> float:
    """Return 1 − F1 of a text's entities; 0 if none are labeled and none are predicted."""
    gold = set(gold_entities(line))
    predicted = set(predicted_entities(line))
    total = len(gold) + len(predicted)
    if total == 0:
        return 0.0
    return 1 - 2 * len(gold & predicted) / total


# ---------------------------------------------------------------- errors by type


def tabulate_entity_errors(lines: Iterable[PredictionLine]) -> Table:
    """Return precision, recall, F1 and the number of errors of each kind, a row for each type of entity.

    lines: the predictions of all runs for all examples.
    """
    counts: defaultdict[str, _Counts] = defaultdict(Counter)
    for line in lines:
        _count_line(counts, gold_entities(line), predicted_entities(line))
    rows = [_format_counts(label, counts[label]) for label in sorted(counts)]
    rows.append(_format_counts("all types", sum(counts.values(), Counter())))
    return Table(["type", "entities", "precision", "recall", "F1", *_ERRORS], rows)


def _count_line(counts: defaultdict[str, _Counts], gold: Sequence[EntitySpan], predicted: Sequence[EntitySpan]) -> None:
    """Add the entities and the errors of a text to the counts by type.

    Every gold entity is either correct or one error. A predicted entity that overlaps no gold entity is spurious.
    """
    for entity in gold:
        counts[entity.label].update(["gold", _judge(entity, predicted)])
    for entity in predicted:
        counts[entity.label]["predicted"] += 1
        if not any(entity.overlaps(other) for other in gold):
            counts[entity.label]["spurious"] += 1


def _judge(entity: EntitySpan, predicted: Sequence[EntitySpan]) -> str:
    """Return "correct" or the kind of the error on a gold entity."""
    if entity in predicted:
        return "correct"
    if any((other.start, other.end) == (entity.start, entity.end) for other in predicted):
        return "wrong type"
    if any(other.overlaps(entity) for other in predicted):
        return "wrong borders"
    return "missed"


def _format_counts(label: str, counts: _Counts) -> list[str]:
    """Return the row of a type of entity."""
    precision = counts["correct"] / max(1, counts["predicted"])
    recall = counts["correct"] / max(1, counts["gold"])
    f1 = 2 * counts["correct"] / max(1, counts["gold"] + counts["predicted"])
    scores = map(format_percent, (precision, recall, f1))
    return [label, f"{counts['gold']:,}", *scores, *(f"{counts[error]:,}" for error in _ERRORS)]


# ---------------------------------------------------------------- marked texts


def tabulate_entity_mistakes(examples: Sequence[Sequence[PredictionLine]]) -> Table:
    """Return a row for each example: its text with the gold entities marked, with the predicted ones, and the error.

    examples: for each example, the lines of all runs. The predicted entities are those that most runs predict.
    """
    rows: list[list[str | Cell | MarkedText]] = []
    for lines in examples:
        line, num_runs = _most_common_prediction(lines)
        gold = gold_entities(line)
        predicted = predicted_entities(line)
        text = line.get("text", "")
        start = _first_shown_character(text, gold, predicted)
        note = f"{num_runs} of {len(lines)} runs" if len(lines) > 1 else ""
        rows.append(
            [
                mark_entities(text, gold, predicted, start),
                mark_entities(text, predicted, gold, start, note),
                f"{fmean(map(measure_entity_error, lines)):.2f}",
            ]
        )
    return Table(["label", "predicted", "mean error"], rows)


def _most_common_prediction(lines: Sequence[PredictionLine]) -> tuple[PredictionLine, int]:
    """Return a line with the entities that most runs predict, and the number of these runs."""
    counts = Counter(tuple(predicted_entities(line)) for line in lines)
    entities, num_runs = counts.most_common(1)[0]
    line = next(line for line in lines if tuple(predicted_entities(line)) == entities)
    return line, num_runs


def _first_shown_character(text: str, gold: Sequence[EntitySpan], predicted: Sequence[EntitySpan]) -> int:
    """Return 0 for a text that is shown completely, else a position shortly before its first mistake."""
    if len(text) <= _SHOWN_CHARACTERS:
        return 0
    first_mistake = min((entity.start for entity in set(gold) ^ set(predicted)), default=0)
    return max(0, first_mistake - _CONTEXT_CHARACTERS)


def mark_entities(
    text: str, entities: Sequence[EntitySpan], reference: Sequence[EntitySpan], start: int = 0, note: str = ""
) -> MarkedText:
    """Return `_SHOWN_CHARACTERS` of a text from `start` with its entities marked.

    Entities that are not in `reference` are marked as wrong; entities that are shown in part are not marked.
    """
    stop = min(len(text), start + _SHOWN_CHARACTERS)
    shown = [entity for entity in entities if start <= entity.start and entity.end <= stop]
    segments = [Segment("…")] if start else []
    position = start
    for entity in shown:
        if position < entity.start:
            segments.append(Segment(text[position : entity.start]))
        is_wrong = entity not in reference
        segments.append(Segment(text[entity.start : entity.end], entity.label, is_wrong=is_wrong))
        position = entity.end
    if position < stop:
        segments.append(Segment(text[position:stop]))
    if stop < len(text):
        segments.append(Segment("…"))
    return MarkedText(segments, note)
