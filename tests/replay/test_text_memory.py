"""The library of texts: edits against a plain dictionary, values by hand, and the order of reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import SmallWorld

from agentrl_core import Collector, Forest, Store
from agentrl_core.component import IterationRecord
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.recipes import GRPO
from agentrl_core.replay.text_library import TextLibrary
from agentrl_core.rollout import Group, Rollout

EDIT = st.one_of(
    st.fixed_dictionaries({"edit": st.just("add"), "text": st.sampled_from(["a", "b", "c", "d"])}),
    st.fixed_dictionaries(
        {"edit": st.just("update"), "id": st.integers(0, 5), "text": st.sampled_from(["a", "e", "f"])}
    ),
    st.fixed_dictionaries({"edit": st.just("delete"), "id": st.integers(0, 5)}),
    st.sampled_from(
        ["add", 3, None, {}, {"edit": "add"}, {"edit": "add", "text": " "}, {"edit": "other", "text": "x"}]
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.lists(EDIT, max_size=4), max_size=3), max_size=4))
def test_edits_are_those_of_a_dictionary(iterations: list[list[list[Any]]]) -> None:
    library, plain, following = TextLibrary(), dict[int, str](), 0
    state = library.initial_state()
    for iteration, proposals in enumerate(iterations):
        state = library.edited(state, proposals, iteration)
        edits = [edit for proposal in proposals for edit in proposal if isinstance(edit, dict) and "edit" in edit]
        deleted = {edit["id"] for edit in edits if edit["edit"] == "delete"}
        texts = set(plain.values())
        for edit in edits:
            if edit["edit"] not in ("add", "update") or not edit.get("text", "").strip():
                continue
            number = edit.get("id")
            if edit["edit"] == "update" and number in plain:
                plain[number] = edit["text"]
            elif edit["text"] not in texts and (number is None or number not in deleted):
                plain[following] = edit["text"]
                following += 1
            texts.add(edit["text"])
        plain = {number: text for number, text in plain.items() if number not in deleted}
        assert {entry["text_id"]: entry["text"] for entry in state["entries"]} == plain
        assert json.loads(json.dumps(state)) == state, "plain JSON"


def test_a_deletion_takes_precedence_over_an_update() -> None:
    library = TextLibrary()
    state = library.edited(library.initial_state(), [[{"edit": "add", "text": "first"}]], 0)
    update, delete = {"edit": "update", "id": 0, "text": "second"}, {"edit": "delete", "id": 0}
    for proposals in ([[update], [delete]], [[delete], [update]]):
        assert library.edited(state, proposals, 1)["entries"] == []
    unknown = library.edited(state, [[{"edit": "update", "id": 7, "text": "third"}]], 1)
    assert [(entry["text_id"], entry["text"]) for entry in unknown["entries"]] == [(0, "first"), (1, "third")]


def entries(*values: float | None) -> dict[str, Any]:
    rows = [
        {"text_id": row, "text": f"word{row} common", "born": 0, "value": value, "uses": 0, "used_last": row % 2}
        for row, value in enumerate(values)
    ]
    return {"entries": rows, "next": len(rows)}


def test_orders_by_hand() -> None:
    state, library = entries(0.5, None, 0.9), TextLibrary()

    def read(order: Any, count: int = 3, **options: Any) -> list[int]:
        return [entry.text_id for entry in library.read(state, count, order=order, **options)]

    assert read("newest") == [2, 1, 0]
    assert read("best") == [2, 0, 1]
    assert read("best", 1) == [2]
    assert read("similar", query="Word1, please") == [1, 0, 2], "one word of three, then none"
    orders = {(a, b, c) for a in range(3) for b in range(3) for c in range(3) if len({a, b, c}) == 3}
    assert {tuple(read("uniform", key=key)) for key in range(80)} == orders
    assert read("uniform", key=3) == read("uniform", key=3)
    assert library.read(None, 3) == []


@pytest.mark.parametrize(("keeps", "stay"), [("newest", [2, 3]), ("best", [1, 3]), ("used", [1, 3])])
def test_beyond_the_capacity(keeps: Any, stay: list[int]) -> None:
    """Values 0.5, never used, 0.1, 0.9; texts with odd numbers were used last."""
    state = TextLibrary(capacity=2, keeps=keeps).edited(entries(0.5, None, 0.1, 0.9), [], 1)
    assert [entry["text_id"] for entry in state["entries"]] == stay


def test_values_by_hand() -> None:
    """Scores 1 and 0 of the users of text 0: 1/2 at first; then 3/4 1/2 + 1/4 1 = 5/8. Text 1: 0."""
    library = TextLibrary(used="used", decay=0.75)
    state = entries(None, None)
    for iteration, uses in enumerate([["0", "0, 1", ""], ["0,0", "9", "x"]]):
        forest = Forest(iteration=iteration, facts={"trajectory": {"used": "key"}})
        forest.add_group(0, "task")
        for member, used in enumerate(uses):
            path = forest.start(0, member)
            forest.append(path, [1], kind="prompt")
            forest.append(path, [2 + member], kind="action", logprobs=[-1.0])
            forest.finish(path, reward=float(member == 0), facts={"used": used})
        batch = GRPO.score(forest.freeze())
        state = library.next(state, IterationRecord.of(batch))
    result = [(entry["value"], entry["uses"], entry["used_last"]) for entry in state["entries"]]
    assert result == [(0.625, 3, 1), (0.0, 1, 0)]


class Insights(Rollout):
    """Reports the texts that it has read."""

    async def group(self, group: Group) -> None:
        """Use all existing texts in every branch."""
        texts = TextLibrary().read(group.state.get("replay[0].TextLibrary"), 9)
        used = ",".join(str(entry.text_id) for entry in texts)
        for branch in group.start_many(2, facts={"used": used}):
            await branch.turn()


class Proposes(SmallWorld):
    facts = {"edits": ExtraColumn("trajectory", "key"), "used": ExtraColumn("trajectory", "key")}  # noqa: RUF012 - as an author does

    def __init__(self) -> None:
        super().__init__(self.answered)

    def answered(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        del actions
        edits = json.dumps([{"edit": "add", "text": f"{task.task_id}: {seed % 3}"}])
        return StepResult(reward=float(seed % 2), terminated=True, facts={"edits": edits})


def test_a_library_grows_while_it_is_collected(tmp_path: Path) -> None:
    world, library = Proposes(), TextLibrary(used="used")
    recipe = GRPO.replace(rollout=Insights(), replay=library)
    counts, state = [], library.initial_state()
    with Store.open(tmp_path / "run") as store:
        for _ in range(3):
            collect = Collector(world, world, recipe, store=store, task_pool=4)  # a new process each time
            batch = recipe.credit(collect(tasks=2, group_size=2))
            counts.append({len(used.split(",")) if used else 0 for used in batch.texts("used", "draw")})
            state = library.next(state, IterationRecord.of(batch))
            collect.end_iteration(batch, {})
            assert collect._now().components["replay[0].TextLibrary"] == state, "what the store has"
        assert store.verify() == []
    assert counts[0] == {0}
    assert min(counts[1]) >= 1
    assert any(entry["uses"] for entry in state["entries"])
