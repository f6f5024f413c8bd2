"""Ingested turns with images, against contexts and classes written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

import agentrl_core as arl
from agentrl_core.data.forest_ingest import DRIFT
from agentrl_core.exceptions import InvalidInputError, NotFoundError

IMAGE = 7
SECOND = ([1, IMAGE, IMAGE, 2, 20, 3, IMAGE], [0, 1, 0])


class RecordedTurns:
    """Return a trajectory, and the hashes of four images."""

    def __init__(self) -> None:
        self.forest = arl.Forest()
        self.forest.add_group(0, "task")
        self.hashes = [self.forest.add_blob(bytes([number])) for number in range(4)]
        self.trajectory = self.forest.start(0, 0)
        self.expected: list[tuple[list[int], list[int]]] = []
        self.classes: list[tuple[str, int]] = []

    def turn(self, context: list[int], images: list[int], output: int, trajectory: int | None = None) -> int:
        self.expected.append((context, images))
        ingested = self.forest.ingest(
            [self.trajectory if trajectory is None else trajectory],
            [context],
            [[output]],
            images=[[self.hashes[number] for number in images]],
            seed=output,
        )
        self.classes.append((DRIFT[int(ingested.drift[0])], int(ingested.drift_at[0])))
        return int(ingested.nodes[0])

    def batch(self) -> Any:
        for trajectory in self.forest.running().trajectory.tolist():
            self.forest.finish(trajectory, reward=0.0)
        return self.forest.freeze()

    def found(self, batch: Any) -> list[tuple[list[int], list[int]]]:
        """Return tokens and images before each action, node by node."""
        nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).to_dicts()}
        contexts = []
        for row in nodes.values():
            tokens, images, above, end = list[int](), list[int](), row["parent_id"], row["parent_end"]
            while above is not None:
                used = nodes[above]["tokens"][:end]
                is_whole_node = len(used) == len(nodes[above]["tokens"])
                node_images = (
                    [self.hashes.index(digest) for digest in nodes[above]["blobs"] or ()] if is_whole_node else []
                )
                tokens, images = [*used, *tokens], [*node_images, *images]
                above, end = nodes[above]["parent_id"], nodes[above]["parent_end"]
            if row["kind"] == 1:
                contexts.append((tokens, images))
        return contexts


def test_a_chat_that_grows_is_one_path() -> None:
    recorded = RecordedTurns()
    recorded.turn([1, IMAGE, IMAGE, 2], [0, 1], 20)
    recorded.turn(*SECOND, 21)
    recorded.turn([1, IMAGE, IMAGE, 2, 20, 3, IMAGE, 21, 4], [0, 1, 0], 22)
    batch = recorded.batch()
    assert recorded.found(batch) == recorded.expected
    assert recorded.classes == [("clean", -1)] * 3
    assert len(batch.contexts().draws) == 1
    assert pl.DataFrame(batch.nodes)["tokens"].list.len().sum() == 10
    assert batch.column("token", "token").tolist() == [20, 21, 22]
    assert pl.DataFrame(batch.steps)["drift"].to_list() == [0, 0, 0]


@pytest.mark.parametrize(
    ("context", "images", "added", "drift"),
    [
        ([*SECOND[0], 5], [0, 1, 3], 3, ("rewritten", 5)),  # the last image: the part before it is shared
        ([*SECOND[0], 5], [0, 2, 0], 8, ("rewritten", 0)),
        ([*SECOND[0], 5], [1, 0, 0], 8, ("rewritten", 0)),
        ([*SECOND[0], 21, 5], [0, 1, 3], 4, ("rewritten", 5)),  # equal tokens, but another image
        ([*SECOND[0], 21], [0, 1], 8 - 5, ("rewritten", 5)),
        ([*SECOND[0], 5, IMAGE], [0, 1, 0, 3], 2, ("realigned", 7)),  # the template strips the end of the output
        ([*SECOND[0], 5], [0, 1, 0], 1, ("realigned", 7)),
        ([1, IMAGE, 2, 20, IMAGE, 5], [0, 1], 6, ("rewritten", 2)),
        ([1, 2, 5], [], 3, ("rewritten", 1)),
        ([9, IMAGE, 5], [0], 3, ("rewritten", 0)),  # no token is shared
        ([1, IMAGE, IMAGE, 2, 20, 6], [0, 1], 1, ("rewritten", 5)),
        ([1, IMAGE, IMAGE, 2], [0, 1], 0, ("truncated", 4)),
        ([1, IMAGE, IMAGE, 2, 20, 3], [0, 1], 1, ("truncated", 6)),  # the image of a part belongs to none of its tokens
        ([1, IMAGE, IMAGE, 2, 20, 3], [0, 1, 0], 1, ("truncated", 6)),  # or to an existing one
        ([1, IMAGE, IMAGE, 2, 21, 5], [0, 1], 2, ("truncated", 4)),  # a middle part is left out
        ([1, IMAGE, IMAGE, 2, 21, 5, IMAGE], [0, 1, 3], 3, ("truncated", 4)),
    ],
)
def test_a_prompt_that_differs_starts_a_new_context(
    context: list[int], images: list[int], added: int, drift: tuple[str, int]
) -> None:
    recorded = RecordedTurns()
    recorded.turn([1, IMAGE, IMAGE, 2], [0, 1], 20)
    recorded.turn(*SECOND, 21)
    recorded.turn(context, images, 22)
    assert recorded.classes[-1] == drift
    recorded.turn([*context, 22, 8, IMAGE], [*images, 3], 23)
    assert recorded.classes[-1] == ("clean", -1)
    batch = recorded.batch()
    assert sorted(recorded.found(batch)) == sorted(recorded.expected)
    assert len(batch.contexts().draws) == 2
    assert pl.DataFrame(batch.nodes)["tokens"].list.len().sum() == 8 + added + 4
    assert pl.DataFrame(batch.steps)["drift"].to_list() == [0, 0, DRIFT.index(drift[0]), 0]
    assert pl.DataFrame(batch.steps)["drift_at"].to_list() == [None, None, drift[1], None]


@pytest.mark.parametrize(("images", "drift"), [([0, 0], ("truncated", 2)), ([0, 2], ("rewritten", 2))])
def test_a_window_that_slides_keeps_its_images(images: list[int], drift: tuple[str, int]) -> None:
    """A middle turn is left out; the rest is repeated, with the same image or with another one."""
    recorded = RecordedTurns()
    recorded.turn([1, IMAGE], [0], 20)
    recorded.turn([1, IMAGE, 20, 3, IMAGE], [0, 1], 21)
    recorded.turn([1, IMAGE, 20, 3, IMAGE, 21, 4, IMAGE], [0, 1, 0], 22)
    recorded.turn([1, IMAGE, 4, IMAGE, 22, 5], images, 23)
    assert recorded.classes[-1] == drift
    assert sorted(recorded.found(recorded.batch())) == sorted(recorded.expected)


def test_a_turn_may_go_on_from_an_earlier_context() -> None:
    recorded = RecordedTurns()
    recorded.turn([1, IMAGE], [0], 20)
    recorded.turn([1, IMAGE], [1], 21)
    recorded.turn([1, IMAGE, 20, 4], [0], 22)
    recorded.turn([1, IMAGE, 21, 4], [1], 23)
    assert recorded.classes == [("clean", -1), ("rewritten", 0), ("clean", -1), ("clean", -1)]
    batch = recorded.batch()
    assert sorted(recorded.found(batch)) == sorted(recorded.expected)
    assert pl.DataFrame(batch.nodes)["tokens"].list.len().sum() == 2 * (2 + 1 + 1 + 1)


def test_forks_continue_from_an_action_or_before_it() -> None:
    recorded = RecordedTurns()
    node = recorded.turn([1, IMAGE], [0], 20)
    recorded.turn([1, IMAGE, 20, IMAGE], [0, 1], 21)
    before, after = (
        recorded.forest.fork(recorded.trajectory, node=node, end=0),
        recorded.forest.fork(recorded.trajectory, node=node),
    )
    recorded.turn([1, IMAGE], [0], 22, trajectory=before)
    recorded.turn([1, IMAGE, 20, IMAGE], [0, 2], 23, trajectory=after)
    batch = recorded.batch()
    assert sorted(recorded.found(batch)) == sorted(recorded.expected)
    assert recorded.classes == [("clean", -1)] * 4
    assert len(batch.contexts().draws) == 3


def test_states_with_other_images_differ() -> None:
    recorded = RecordedTurns()
    for number, trajectory in enumerate((recorded.trajectory, recorded.forest.start(0, 1))):
        recorded.turn([1, IMAGE], [number], 20 + number, trajectory=trajectory)
    keys = pl.DataFrame(recorded.batch().steps)["state_key"].to_list()
    assert len(keys) == len(set(keys)) == 2


def test_without_images_texts_are_as_before() -> None:
    """An empty row of images for each turn has no effect."""
    rng, rows = np.random.default_rng(0), list[list[int]]()
    for _ in range(40):
        context = rng.integers(1, 4, rng.integers(1, 9)).tolist()
        rows.append(context + rows[-1][: rng.integers(0, 9)] if rows and rng.integers(2) else context)
    results = []
    empty: list[list[bytes]] = [[] for _ in rows]
    for images in (None, empty):
        forest = arl.Forest()
        forest.add_group(0, "task")
        agent = forest.start(0, 0)
        ingested = forest.ingest([agent] * len(rows), rows, [[5]] * len(rows), images=images, seed=range(len(rows)))
        forest.finish(agent, reward=0.0)
        results.append(
            (ingested.drift.tolist(), ingested.drift_at.tolist(), pl.DataFrame(forest.freeze().steps)["state_key"])
        )
    assert results[0][:2] == results[1][:2]
    assert len(set(results[0][0])) > 2


def test_invalid_turns_with_images_are_refused() -> None:
    recorded = RecordedTurns()
    recorded.turn([1, IMAGE], [0], 20)
    with pytest.raises(InvalidInputError, match="prompts has placeholders for 1 images, but images has 2; give one"):
        recorded.turn([1, IMAGE, 20], [0, 1], 21)
    with pytest.raises(InvalidInputError, match="prompts is empty"):
        recorded.turn([], [], 21)
    with pytest.raises(InvalidInputError, match="equal context, output and sampling"):
        recorded.turn([1, IMAGE], [0], 20)
    turn: Any = ([recorded.trajectory], [[1, IMAGE, 20, IMAGE]], [[21]])
    with pytest.raises(NotFoundError, match=r"blob 0{64} is not in the forest"):
        recorded.forest.ingest(*turn, images=[[bytes(32)]])
    with pytest.raises(InvalidInputError, match="sha256 has 3 bytes; give the 32"):
        recorded.forest.ingest(*turn, images=[[b"abc"]])
    wrongs: list[Any] = [[7], "text", [["text"]], 7]
    for wrong in wrongs:
        with pytest.raises(InvalidInputError, match=r"images is .*; give a list for each turn"):
            recorded.forest.ingest(*turn, images=wrong)
    with pytest.raises(InvalidInputError, match="images has 2 rows"):
        recorded.forest.ingest(*turn, images=[[recorded.hashes[0]], []])
    assert recorded.forest.tokens(recorded.trajectory).tolist() == [1, IMAGE, 20]
