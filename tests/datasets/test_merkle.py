"""The Merkle tree, against vectors and against trees written out by hand."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2d1.datasets.merkle import MerkleRun, depth_of, merkle_root, root_of_hashes
from tests.datasets.naive import tree_root


def leaf(data):
    return sha256(b"\x00" + data).digest()


def node(left, right):
    return sha256(b"\x01" + left + right).digest()


A, B, C, D, E, F, G, H = (leaf(bytes([65 + n])) for n in range(8))
BY_HAND = {
    1: A,
    2: node(A, B),
    3: node(node(A, B), C),
    5: node(node(node(A, B), node(C, D)), E),
    8: node(node(node(A, B), node(C, D)), node(node(E, F), node(G, H))),
}


@pytest.mark.parametrize("leaves", BY_HAND)
def test_trees_written_out_by_hand(leaves):
    """One, two, three, five and eight leaves give the root that their tree has when written out."""
    assert merkle_root([bytes([65 + n]) for n in range(leaves)]) == BY_HAND[leaves]


def test_vectors_of_the_original(vectors):
    """Roots and depths equal those of the builder that defined the format."""
    for vector in vectors["merkle"]:
        leaves = [f"leaf {n}".encode() for n in range(vector["leaves"])]
        assert merkle_root(leaves).hex() == vector["root"]
        assert depth_of(len(leaves)) == vector["depth"]


def test_leaves_and_nodes_are_told_apart():
    """A leaf that holds two hashes is not the node over them."""
    assert merkle_root([A + B]) != node(A, B)


def test_roots_over_hashes_take_the_raw_bytes():
    """The leaves of the roots over shards and units are the 32 bytes of each hash."""
    hashes = [sha256(bytes([n])).hexdigest() for n in range(3)]
    raw = [leaf(bytes.fromhex(one)) for one in hashes]
    assert root_of_hashes(hashes) == node(node(raw[0], raw[1]), raw[2]).hex()


@settings(deadline=None)
@given(st.integers(1, 70), st.lists(st.integers(0, 70), max_size=6))
def test_runs_join_to_the_same_tree(count, cuts):
    """However the leaves are cut into runs that are hashed apart, the root is that of the whole."""
    leaves = [b"leaf %d" % n for n in range(count)]
    edges = [0, *sorted(cut for cut in cuts if cut < count), count]
    joined = MerkleRun()
    for begin, end in zip(edges, edges[1:], strict=False):
        run = MerkleRun(begin)
        for data in leaves[begin:end]:
            run.append(data)
        joined.extend(run.nodes)
    assert joined.root().hex() == tree_root(leaves)


def test_runs_that_do_not_meet_are_refused():
    """A gap between two runs is an error, as is a root over none or not all leaves."""
    run = MerkleRun(4)
    run.append(b"x")
    with pytest.raises(ValueError, match="ends at 0, the next begins at 4"):
        MerkleRun().extend(run.nodes)
    with pytest.raises(ValueError, match="no root over the leaves 4 to 5"):
        run.root()
    with pytest.raises(ValueError, match="no root"):
        merkle_root([])
