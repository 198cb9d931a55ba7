"""Change SentencePiece's compiled normalization rules, so that they leave a character unchanged.

`--keep-zwnj` needs such rules, and SentencePiece has no option for them. The rules (`precompiled_charsmap` of a model)
map byte sequences to their replacements. They consist of

1. the byte length of a trie, as a little-endian uint32;
2. the trie, a double array of Darts-clone (https://github.com/s-yata/darts-clone): units of 32 bits;
3. the replacements, each ended by a NUL.

A unit of the trie is either a leaf (bit 31 is set, the other bits are the offset of the replacement) or a node:

- bits 0 to 7: its label, which is the byte that leads to it;
- bit 8: the node has a leaf, which is its child with label 0;
- bits 10 to 30: the distance to the children, which is multiplied by 256 if bit 9 is set. The index of a child is the
  node's index XOR the distance XOR the child's label.
"""

from __future__ import annotations

import struct

_IS_LEAF = 1 << 31
_LABEL_MASK = _IS_LEAF | 0xFF  # with bit 31, so that a leaf, when masked, never equals the label of a node
_HAS_LEAF = 1 << 8
_DISTANCE_TIMES_256 = 1 << 9
_DISTANCE_SHIFT = 10
_BLOCK_UNITS = 256  # SentencePiece requires whole blocks


def keep_character(charsmap: bytes, character: str) -> bytes:
    """Return the rules of `charsmap`, changed so that they leave one character unchanged.

    Rules for longer sequences that begin with the character are lost, because its node gets a new distance, which no
    longer leads to its old children. The zero-width non-joiner has no such rules.
    """
    (trie_bytes,) = struct.unpack_from("<I", charsmap)
    units = list(struct.unpack_from(f"<{trie_bytes // 4}I", charsmap, 4))
    replacements = charsmap[4 + trie_bytes :]
    node = _find_node(units, character.encode())
    if node is None or not units[node] & _HAS_LEAF:
        return charsmap  # no rule changes the character
    # Darts-clone stores equal subtrees once, so another node with the same replacement may lead to the same leaf. The
    # old leaf therefore stays unchanged. A new block at the end contains only the new leaf, which maps the character to
    # itself.
    leaf = len(units)
    units += [_IS_LEAF | len(replacements), *[0] * (_BLOCK_UNITS - 1)]
    replacements += character.encode() + b"\0"
    distance = node ^ leaf  # from the node to the leaf, whose label is 0
    units[node] = (units[node] & _LABEL_MASK) | _HAS_LEAF | (distance << _DISTANCE_SHIFT)
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + replacements


def _find_node(units: list[int], key: bytes) -> int | None:
    """Return the index of the node to which the bytes of `key` lead from the root; None if there is no such path."""
    node = 0
    for label in key:
        distance = units[node] >> _DISTANCE_SHIFT
        if units[node] & _DISTANCE_TIMES_256:
            distance *= 256
        child = node ^ distance ^ label
        if child >= len(units) or units[child] & _LABEL_MASK != label:
            return None
        node = child
    return node
