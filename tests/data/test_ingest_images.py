"""Turns with images, against contexts that are written down by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

import agentrl_core as arl
from agentrl_core.data.image_turns import ImageTurns
from agentrl_core.exceptions import InvalidInputError

IMAGE = 7


class Told:
    """A trajectory, and the hashes of four images."""

    def __init__(self) -> None:
        self.forest = arl.Forest()
        self.forest.add_group(0, "task")
        self.turns = ImageTurns(self.forest)
        self.hashes = [self.forest.add_blob(bytes([number])) for number in range(4)]
        self.trajectory = self.forest.start(0, 0)
        self.expected: list[tuple[list[int], list[int]]] = []

    def turn(self, context: list[int], images: list[int], output: int, **options: Any) -> int:
        self.expected.append((context, images))
        given = np.array(context, np.int32), [self.hashes[number] for number in images], np.array([output], np.int32)
        return self.turns.ingest(options.pop("trajectory", self.trajectory), *given, seed=output, **options)

    def batch(self) -> Any:
        for trajectory in self.forest.running().trajectory.tolist():
            self.forest.finish(trajectory, reward=0.0)
        return self.forest.freeze()

    def found(self, batch: Any) -> list[tuple[list[int], list[int]]]:
        """Tokens and images before each action, a node at a time."""
        nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).to_dicts()}
        contexts = []
        for row in nodes.values():
            tokens, images, above, end = list[int](), list[int](), row["parent_id"], row["parent_end"]
            while above is not None:
                used = nodes[above]["tokens"][:end]
                whole = len(used) == len(nodes[above]["tokens"])
                own = [self.hashes.index(digest) for digest in nodes[above]["blobs"] or ()] if whole else []
                tokens, images = [*used, *tokens], [*own, *images]
                above, end = nodes[above]["parent_id"], nodes[above]["parent_end"]
            if row["kind"] == 1:
                contexts.append((tokens, images))
        return contexts


def test_a_chat_that_grows_is_one_path() -> None:
    told = Told()
    told.turn([1, IMAGE, IMAGE, 2], [0, 1], 20)
    told.turn([1, IMAGE, IMAGE, 2, 20, 3, IMAGE], [0, 1, 0], 21)
    told.turn([1, IMAGE, IMAGE, 2, 20, 3, IMAGE, 21, 4], [0, 1, 0], 22)
    batch = told.batch()
    assert told.found(batch) == told.expected
    assert len(batch.contexts().draws) == 1
    assert pl.DataFrame(batch.nodes)["tokens"].list.len().sum() == 10
    assert batch.column("token", "token").tolist() == [20, 21, 22]


@pytest.mark.parametrize(
    ("context", "images", "added"),
    [
        ([1, IMAGE, IMAGE, 2, 20, 3, IMAGE, 5], [0, 1, 3], 3),  # the last image: what is before it is shared
        ([1, IMAGE, IMAGE, 2, 20, 3, IMAGE, 5], [0, 2, 0], 8),
        ([1, IMAGE, IMAGE, 2, 20, 3, IMAGE, 5], [1, 0, 0], 8),
        ([1, IMAGE, 2, 20, IMAGE, 5], [0, 1], 6),
        ([1, 2, 5], [], 3),
        ([9, IMAGE, 5], [0], 3),  # no token is shared
        ([1, IMAGE, IMAGE, 2, 20, 6], [0, 1], 1),
        ([1, IMAGE, IMAGE, 2], [0, 1], 0),
    ],
)
def test_what_differs_is_another_context(context: list[int], images: list[int], added: int) -> None:
    told = Told()
    told.turn([1, IMAGE, IMAGE, 2], [0, 1], 20)
    told.turn([1, IMAGE, IMAGE, 2, 20, 3, IMAGE], [0, 1, 0], 21)
    told.turn(context, images, 22)
    told.turn([*context, 22, 8, IMAGE], [*images, 3], 23)
    batch = told.batch()
    assert sorted(told.found(batch)) == sorted(told.expected)
    assert len(batch.contexts().draws) == 2
    assert pl.DataFrame(batch.nodes)["tokens"].list.len().sum() == 8 + added + 4


def test_forks_continue_from_an_action_or_before_it() -> None:
    told = Told()
    node = told.turn([1, IMAGE], [0], 20)
    told.turn([1, IMAGE, 20, IMAGE], [0, 1], 21)
    before, after = told.forest.fork(told.trajectory, node=node, end=0), told.forest.fork(told.trajectory, node=node)
    for fork in (before, after):
        told.turns.fork(fork, node)
    told.turn([1, IMAGE], [0], 22, trajectory=before)
    told.turn([1, IMAGE, 20, IMAGE], [0, 2], 23, trajectory=after)
    batch = told.batch()
    assert sorted(told.found(batch)) == sorted(told.expected)
    assert len(batch.contexts().draws) == 3


def test_images_need_tokens() -> None:
    told = Told()
    told.turn([1, IMAGE], [0], 20)
    with pytest.raises(InvalidInputError, match="has 2 images, and tokens of 1; give the tokens"):
        told.turn([1, IMAGE, 20], [0, 1], 21)
    with pytest.raises(InvalidInputError, match="prompts is empty"):
        told.turn([], [], 21)
