"""Read how another program's tokenizer joins two texts, which `albert` joins as `[CLS] A [SEP] B [SEP]`.

Text A has segment 0 and text B segment 1. transformers gives text B segment 0 if the tokenizer does not return segment
ids, and RoBERTa's tokenizers write two separators between the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from albert_cli import store
from albert_cli.text.vocabulary import CONFIG_FILE, TOKENIZER_FILE

# The classes of ALBERT's and BERT's possible tokenizers that return no segment ids in any version of transformers.
_CLASSES_WITHOUT_SEGMENTS: Final = ("Roberta", "XLMRoberta", "Camembert", "DistilBert")


@dataclass(frozen=True)
class PairTemplate:
    """The form of a pair of texts.

    `has_second_segment`: the second text has segment 1, not 0. `separators`: the number of special tokens between them.
    """

    has_second_segment: bool
    separators: int


def read_pair_template(directory: Path) -> PairTemplate:
    """Return the form that transformers gives to a pair with the tokenizer in a checkpoint directory."""
    config = store.read_json(directory / CONFIG_FILE) if store.exists_or_is_listed(directory / CONFIG_FILE) else {}
    separators = 1
    if store.exists_or_is_listed(directory / TOKENIZER_FILE):
        separators = _count_separators(store.read_json(directory / TOKENIZER_FILE).get("post_processor"))
    return PairTemplate(_returns_segments(config), separators)


def _returns_segments(config: Mapping[str, object]) -> bool:
    """Return True if a tokenizer returns segment ids; config: the content of its `tokenizer_config.json`."""
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    tokenizer_class = str(config.get("tokenizer_class"))
    if "backend" in config:  # written by transformers 5, in which of these classes only BERT's returns segment ids
        return tokenizer_class.startswith("Bert")
    return not tokenizer_class.startswith(_CLASSES_WITHOUT_SEGMENTS)


def _count_separators(processor: Mapping[str, Any] | None) -> int:
    """Return the number of special tokens between the texts of a pair; 1 without a step, and for other steps."""
    if processor is None:
        return 1
    if processor.get("type") == "RobertaProcessing":
        return 2
    if processor.get("type") == "TemplateProcessing":
        is_text = ["Sequence" in part for part in processor["pair"]]
        if is_text.count(True) == 2:
            first = is_text.index(True)
            return is_text.index(True, first + 1) - first - 1
    for step in processor.get("processors", []):
        if (separators := _count_separators(step)) != 1:
            return separators
    return 1
