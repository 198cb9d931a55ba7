"""Find the tokens of a tokenizer that have one of five roles: pad, unk, cls, sep, mask.

The name of such a token comes from `tokenizer_config.json` or `special_tokens_map.json`; without an entry, the usual
names of the role are tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

USUAL_NAMES: Final = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}
REQUIRED_ROLES: Final = ("cls", "sep", "mask")
_MARKER_KEYS: Final = ("additional_special_tokens", "extra_special_tokens")  # until transformers 4, and since 5


def find_special_names(ids: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the special tokens by role, without roles that no token has.

    A name is the configured one if it has an id, else the first usual one that has an id. ids: by token; config: the
    content of `tokenizer_config.json`.
    """
    names_by_role: dict[str, str] = {}
    for role, usual_names in USUAL_NAMES.items():
        configured = config.get(f"{role}_token")
        if isinstance(configured, dict):
            configured = configured.get("content")
        existing = [name for name in (configured, *usual_names) if isinstance(name, str) and name in ids]
        if existing:
            names_by_role[role] = existing[0]
    return names_by_role


def find_marker_names(ids: Mapping[str, int], config: Mapping[str, Any]) -> list[str]:
    """Return the names of special tokens without a role that the configuration lists, such as markers of entities.

    ids, config: as in `find_special_names`. A name without an id is left out.
    """
    listed = [token for key in _MARKER_KEYS if isinstance(config.get(key), list) for token in config[key]]
    names = [token.get("content") if isinstance(token, dict) else token for token in listed]
    return [name for name in names if isinstance(name, str) and name in ids]
