"""Change SentencePiece's compiled normalization rules, so that a character is preserved.

The rules (`precompiled_charsmap`) are the byte length of a trie as uint32, the trie, and the results, each ended by a
NUL. The trie is a double array of Darts-clone: a unit of 32 bits is either a leaf (bit 31, then the result's offset) or
a node with a label (bits 0 to 7), a flag that a leaf is attached (bit 8), and the XOR distance to its children (bits 10
to 30, times 256 if bit 9 is set). The attached leaf is the child with label 0.
"""

from __future__ import annotations

import struct

_IS_LEAF = 1 << 31
_LABEL = _IS_LEAF | 0xFF
_HAS_LEAF = 1 << 8
_BLOCK_UNITS = 256  # SentencePiece requires whole blocks


def keep_character(charsmap: bytes, character: str) -> bytes:
    """Return rules that leave a character unchanged, whatever they made of it before."""
    (trie_bytes,) = struct.unpack_from("<I", charsmap)
    units = list(struct.unpack_from(f"<{trie_bytes // 4}I", charsmap, 4))
    results = charsmap[4 + trie_bytes :]
    node = _find_node(units, character.encode())
    if node is None or not units[node] & _HAS_LEAF:
        return charsmap  # there is no rule for it
    # A new leaf at the end, because nodes with equal results share theirs.
    leaf = len(units)
    units += [_IS_LEAF | len(results), *[0] * (_BLOCK_UNITS - 1)]
    units[node] = (units[node] & _LABEL) | _HAS_LEAF | (node ^ leaf) << 10
    results += character.encode() + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + results


def _find_node(units: list[int], key: bytes) -> int | None:
    """Return the index of the key's last node, or None if the trie does not contain it."""
    node = 0
    for label in key:
        child = node ^ _child_distance(units[node]) ^ label
        if child >= len(units) or units[child] & _LABEL != label:
            return None
        node = child
    return node


def _child_distance(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
