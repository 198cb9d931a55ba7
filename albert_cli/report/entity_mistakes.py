"""The report's tables of mistakes on named entities: texts with marked entities, and the errors by type of entity.

The functions take lines of predictions. Gold entities are the labels of the data, predicted entities the model's.
Positions count characters of the text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from statistics import fmean
from typing import Any, NamedTuple

from albert_cli.formatting import format_percent
from albert_cli.report.render import Cell, MarkedText, Segment, Table
from albert_cli.tasks.predictions import PredictionLine, prediction_kind

_ERRORS = ("missed", "wrong borders", "wrong type", "spurious")
_SHOWN_CHARACTERS = 400  # of a text
_CONTEXT_CHARACTERS = 100  # of a long text, shown before its first mistake


class EntitySpan(NamedTuple):
    """An entity: its first character, the character after its last one, and its type."""

    start: int
    end: int
    entity_type: str

    def overlaps(self, other: EntitySpan) -> bool:
        """Return True if the spans share a character."""
        return self.start < other.end and other.start < self.end


_Counts = Counter[str]  # of a type's entities; the keys are "gold", "predicted", "correct" and `_ERRORS`


def is_entity_line(line: PredictionLine) -> bool:
    """Return True for a line with labeled and predicted entities."""
    return prediction_kind(line) == "entities" and isinstance(line.get("label"), list)


def parse_entities(line: PredictionLine) -> tuple[list[EntitySpan], list[EntitySpan]]:
    """Return the gold and the predicted entities of a text, both in the order of the text.

    A line without labels has no gold entities.
    """

    def parse(entities: Any) -> list[EntitySpan]:
        return sorted(EntitySpan(int(entity["start"]), int(entity["end"]), str(entity["label"])) for entity in entities)

    return parse(line.get("label", [])), parse(line["prediction"])


def measure_set_error(gold: Set[object], predicted: Set[object]) -> float:
    """Return 1 − F1 of a predicted set; 0 if both sets are empty."""
    total = len(gold) + len(predicted)
    if total == 0:
        return 0.0
    return 1 - 2 * len(gold & predicted) / total


def measure_entity_error(line: PredictionLine) -> float:
    """Return 1 − F1 of a text's entities; 0 if none are labeled and none are predicted."""
    gold, predicted = parse_entities(line)
    return measure_set_error(set(gold), set(predicted))


# ---------------------------------------------------------------- errors by type


def tabulate_entity_errors(lines: Iterable[PredictionLine]) -> Table:
    """Return precision, recall, F1 and the number of errors of each kind, with a row for each type of entity.

    A gold entity counts as correct or as one error. A predicted entity that overlaps no gold entity is spurious.
    lines: the predictions of all runs for all examples.
    """
    counts: defaultdict[str, _Counts] = defaultdict(Counter)  # by type
    for line in lines:
        gold, predicted = parse_entities(line)
        for entity in gold:
            counts[entity.entity_type].update(["gold", _judge(entity, predicted)])
        for entity in predicted:
            counts[entity.entity_type]["predicted"] += 1
            if not any(entity.overlaps(other) for other in gold):
                counts[entity.entity_type]["spurious"] += 1
    rows = [_format_counts(entity_type, counts[entity_type]) for entity_type in sorted(counts)]
    rows.append(_format_counts("all types", sum(counts.values(), Counter())))
    return Table(["type", "entities", "precision", "recall", "F1", *_ERRORS], rows)


def _judge(entity: EntitySpan, predicted: Sequence[EntitySpan]) -> str:
    """Return "correct" or the error on a gold entity.

    The errors are "wrong type" for a prediction of the same characters, "wrong borders" for one that shares some of
    them, and "missed".
    """
    if entity in predicted:
        return "correct"
    if any((other.start, other.end) == (entity.start, entity.end) for other in predicted):
        return "wrong type"
    if any(other.overlaps(entity) for other in predicted):
        return "wrong borders"
    return "missed"


def _format_counts(entity_type: str, counts: _Counts) -> list[str]:
    """Return a row of the table: the type, its number of gold entities, three scores in percent, and its errors."""
    precision = counts["correct"] / max(1, counts["predicted"])
    recall = counts["correct"] / max(1, counts["gold"])
    f1 = 2 * counts["correct"] / max(1, counts["gold"] + counts["predicted"])
    scores = map(format_percent, (precision, recall, f1))
    return [entity_type, f"{counts['gold']:,}", *scores, *(f"{counts[error]:,}" for error in _ERRORS)]


# ---------------------------------------------------------------- marked texts


def tabulate_entity_mistakes(examples: Sequence[Sequence[PredictionLine]]) -> Table:
    """Return a row for each example: the text with its gold entities, the text with its predicted ones, and the error.

    examples: for each example, the lines of all runs. If the runs predict different entities for a text, the table has
    the complete set of entities that the largest number of runs predicts. The error is the mean over runs.
    """
    rows: list[list[str | Cell | MarkedText]] = []
    for lines in examples:
        counts = Counter(tuple(parse_entities(line)[1]) for line in lines)
        predicted, num_runs = counts.most_common(1)[0]
        line = lines[0]  # the text and the labels are the same in all runs
        gold, _ = parse_entities(line)
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

    Entities that are not in `reference` are marked as wrong. Entities of which only a part is shown are not marked.
    note: a text to print below.
    """
    stop = min(len(text), start + _SHOWN_CHARACTERS)
    shown = [entity for entity in entities if start <= entity.start and entity.end <= stop]
    segments = [Segment("…")] if start else []
    position = start  # of the first character that is in no segment yet
    for entity in shown:
        if position < entity.start:
            segments.append(Segment(text[position : entity.start]))
        is_wrong = entity not in reference
        segments.append(Segment(text[entity.start : entity.end], entity.entity_type, is_wrong=is_wrong))
        position = entity.end
    if position < stop:
        segments.append(Segment(text[position:stop]))
    if stop < len(text):
        segments.append(Segment("…"))
    return MarkedText(segments, note)
