"""The Merkle tree over rows and hashes: SHA-256, leaf ``H(0x00 | x)``, node ``H(0x01 | left | right)``.

An odd last node is promoted unchanged, which gives the tree of RFC 6962 §2.1. Nodes over aligned
runs of leaves never change, so a run of leaves can be hashed alone and joined to its neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


def leaf_hash(data: bytes | bytearray | memoryview) -> bytes:
    """``H(0x00 | data)``."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """``H(0x01 | left | right)``."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Node(NamedTuple):
    """The complete subtree over the leaves ``place * 2**level`` to ``(place + 1) * 2**level``, end excluded."""

    level: int
    place: int
    digest: bytes


class MerkleRun:
    """Consecutive leaves ``first`` to ``end``, kept as the few complete subtrees that cover them."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.end = first
        self.nodes: list[Node] = []

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next leaf, given its data."""
        self._push(Node(0, self.end, leaf_hash(data)))

    def extend(self, nodes: Iterable[Node]) -> None:
        """Add the run that begins where this one ends, given its nodes; ``ValueError`` when it begins elsewhere."""
        for node in nodes:
            if node.place << node.level != self.end:
                raise ValueError(f"a run of leaves ends at {self.end}, the next begins at {node.place << node.level}")
            self._push(Node(*node))

    def root(self) -> bytes:
        """The root over all leaves; the run must begin at leaf 0 and hold at least one."""
        if self.first or not self.nodes:
            raise ValueError(f"no root over the leaves {self.first} to {self.end}")
        digest = self.nodes[-1].digest
        for node in reversed(self.nodes[:-1]):
            digest = node_hash(node.digest, digest)
        return digest

    def _push(self, node: Node) -> None:
        nodes = self.nodes
        self.end = (node.place + 1) << node.level
        while nodes and nodes[-1].level == node.level and not nodes[-1].place & 1:
            left = nodes.pop()
            node = Node(node.level + 1, left.place >> 1, node_hash(left.digest, node.digest))
        nodes.append(node)


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """The root over the data of at least one leaf."""
    run = MerkleRun()
    for leaf in leaves:
        run.append(leaf)
    return run.root()


def root_of_hashes(hexes: Iterable[str]) -> str:
    """The root, in hexadecimal, over leaves that are raw 32-byte hashes given in hexadecimal."""
    return merkle_root(map(bytes.fromhex, hexes)).hex()


def depth_of(leaves: int) -> int:
    """Levels below the root: the bit length of ``leaves - 1``."""
    return (leaves - 1).bit_length()
