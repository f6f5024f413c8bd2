"""Bugs found with odd values: each value is rejected by name, or kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_forest import grown
from odd_inputs import deep
from odd_rollouts import WORK, Program, World

from agentrl_core import Batch, Collector, Forest, Store, group, recipes
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.engine.base import checked_segment
from agentrl_core.env import StepResult
from agentrl_core.exceptions import AgentRLError, InvalidInputError, RecipeError
from agentrl_core.integrations.trajectories import from_verifiers
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Prefix
from agentrl_core.rollout.branch_record import BranchRecord

HALF = "\ud800"


def on(call: Callable[[Forest, int, int], object]) -> Callable[[], object]:
    """Return a call of a forest with a trajectory and its action."""

    def run() -> object:
        forest, (path, _), (node, _) = grown()
        return call(forest, path, node)

    return run


def frozen() -> Batch:
    forest, paths, _ = grown()
    for path in paths:
        forest.finish(path, reward=1.0)
    return forest.freeze()


def rows(**options: Any) -> Callable[[], object]:
    return on(lambda forest, path, _: forest.append_many([path], [[1]], kind="action", **options))


def trace(*, logprobs: list[float] | None = None, score: float = 1.0) -> dict[str, Any]:
    """Return a trace of one sampled token."""
    user: dict[str, Any] = {"parent": None, "message": {"role": "user", "content": "hi"}, "token_ids": [1, 2]}
    answer = {"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "yo"}, "token_ids": [3, 4]}
    answer |= {"mask": [False, True], "logprobs": logprobs or [-0.5]}
    rewards = {"right": {"score": score, "weight": 1.0}}
    nodes = [user | {"mask": [False, False]}, answer]
    return {"version": 1, "task": {"type": "T", "data": {}, "key": "t"}, "nodes": nodes, "rewards": rewards}


GRPO = recipes.GRPO.to_dict()
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "kind": (on(lambda forest, path, _: forest.append(path, [1], kind=HALF)), "kind"),  # type: ignore[arg-type]
    "finish_reason": (
        on(lambda forest, path, _: forest.append(path, [1], kind="action", finish_reason=HALF)),  # type: ignore[arg-type]
        "finish_reason",
    ),
    "status": (on(lambda forest, path, _: forest.finish(path, status=HALF)), "status"),  # type: ignore[arg-type]
    "operation": (on(lambda forest, path, _: forest.log_decision(HALF, path, in_round=0)), "operation"),  # type: ignore[arg-type]
    "level": (lambda: frozen().column("reward", HALF), "level"),  # type: ignore[arg-type]
    "layout": (lambda: frozen().plan([0], 100, layout=HALF), "layout"),  # type: ignore[arg-type]
    "interpolation": (lambda: group.quantile([1.0], [0], 0.5, interpolation=HALF), "interpolation"),  # type: ignore[arg-type]
    "reward": (on(lambda forest, path, _: forest.step(path, reward=10**400)), "reward is inf"),
    "temperature": (
        on(lambda forest, path, _: forest.append(path, [1], kind="action", logprobs=[-1.0], temperature=-(10**400))),
        "temperature",
    ),
    "top_k": (rows(temperature=1.0, top_k=2**31), "top_k is 2147483648"),
    "rewards of rows": (rows(reward=[1e39]), "reward"),
    "facts of rows": (rows(facts={"n": [1e39]}), "facts"),
    "count": (on(lambda forest, path, _: forest.fork(path, count=2**31)), "count is 2147483648"),
    "group_ids": (lambda: frozen().with_draws([0], group_ids=[2**63 - 1]), "group_ids[0] is"),
    "iteration": (lambda: frozen().with_draws([0], iteration=2**63 - 1), "iteration is 9223372036854775807"),
    "state": (lambda: frozen().with_state({"a": np.int64(1)}), "state cannot be saved as JSON"),
    "deep state": (lambda: frozen().with_state(deep(5000)), "state cannot be saved as JSON"),
    "deep recipe": (lambda: Recipe.from_dict({**GRPO, "rollout": deep(5000)}), "nested more than 64 deep"),
    "deep document": (lambda: Recipe.from_toml(f"a = {'[' * 5000}{']' * 5000}"), "not valid TOML"),
    "empty key": (lambda: Recipe.from_dict({**GRPO, "": 1}), "'' is unknown"),
    "recipe": (lambda: recipes.GRPO.replace(name=HALF), "name="),
    "empty hook": (
        lambda: Recipe.from_dict({**GRPO, "hooks": [{}, {}]}),
        "hooks: schedule: the table has no component",
    ),
    "round": (on(lambda forest, path, _: forest.log_decision("stop", path, in_round=2**31)), "in_round is 2147483648"),
    "title": (lambda: Prefix(["go"], title=HALF), "title"),
    "probability": (lambda: frozen().with_draws([0], probability=[10**400], iteration=0), "probability[0] is 1"),
    "values": (
        lambda: frozen().with_columns("draw", **{"\0": [10**400, 1]}),
        "entry 0 of the column of name '\\x00' is 1",
    ),
    "log-probs of traces": (lambda: from_verifiers([trace(logprobs=[-(10**400)])]), "turn 0: logprobs[0] is -1"),
    "score of traces": (
        lambda: from_verifiers([trace(score=10**400)]),
        "reward 'right' is beyond the range of a float",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_its_name(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(AgentRLError) as raised:
        call()
    assert message in str(raised.value)


def test_no_option_of_a_recipe_is_nan() -> None:
    tried = 0
    for name in recipes.names():
        table = recipes.get(name).to_dict()
        for phase, link in table.items():
            for option, value in link.items() if isinstance(link, dict) else ():
                if isinstance(value, float):
                    tried += 1
                    with pytest.raises(RecipeError, match=option):
                        Recipe.from_dict({**table, phase: {**link, option: math.nan}})
    assert tried > 20


def test_an_iteration_that_cannot_be_counted_on_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, pytest.raises(InvalidInputError, match="iteration is 9223372036854775807"):
        store.append(Forest(iteration=2**63 - 1).freeze(), iteration=2**63 - 1)


def test_info_keys_that_collide_with_reserved_names_are_kept() -> None:
    def notes(reason: str | None, *infos: dict[str, Any]) -> object:
        record = BranchRecord({})
        for info in infos:
            record.add(StepResult("go on", info=info))
        return record.ended("truncated", reason)["info"]

    assert notes("late", {"a": 1}, {"b": 2}) == {"b": 2, "earlier_steps": [{"a": 1}], "truncated": "late"}
    assert notes(None, {"earlier_steps": 1}) == {"earlier_steps": 1}
    extra = {"earlier_steps": 1}
    assert notes(None, {"a": 1}, extra) == {"earlier_steps": [{"a": 1}], "info": extra}
    assert notes("late", {"truncated": "mine"}) == {"truncated": "late", "info": {"truncated": "mine"}}
    assert notes("late", {"info": "mine"}) == {"truncated": "late", "info": {"info": "mine"}}


async def _side_effect(branches: Any) -> None:
    await branches.side_effect(HALF, lambda: 1)


async def _write(branches: Any, content: Any = (2,), **options: Any) -> None:
    branch = branches.start()
    await branch.begin()
    branch.write(np.array(content), **options)


async def _inject(branches: Any) -> None:
    branch = branches.start()
    await branch.turn()
    branch.inject([{"role": "user"}])


PROGRAMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "side effect": (_side_effect, "name"),
    "share": (lambda branches: _write(branches, ends=False, share=math.nan), "share is nan"),
    "large share": (lambda branches: _write(branches, ends=False, share=1.5), "share is 1.5"),
    "floats": (lambda branches: _write(branches, [1.5]), "content"),
    "unknown token": (lambda branches: _write(branches, [10]), r"content\[0\] is 10; give token ids from 0 to 9"),
    "huge token": (lambda branches: _write(branches, [2**40]), r"content\[0\] is 1099511627776"),
    "no content": (_inject, "content"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_invalid_arguments_from_a_program_are_reported_by_name(name: str) -> None:
    work, message = PROGRAMS[name]
    WORK[:] = [work]
    world = World()
    with pytest.raises(InvalidInputError, match=message):
        Collector(world, world, recipes.GRPO.replace(rollout=Program()), task_pool=2)(tasks=2, group_size=2)


def test_a_phase_without_components_is_kept() -> None:
    recipe = Recipe.from_dict({**GRPO, "reward": []})
    assert recipe.reward is None
    assert recipe.to_dict()["reward"] == []
    assert Recipe.from_toml(recipe.to_toml()) == recipe != recipes.GRPO


def test_counts_of_a_segment_are_whole_numbers() -> None:
    request = Request(np.array([1, 2], np.int32), 0, Sampling(max_tokens=4))
    counts = {"policy_version": np.int32(2), "seed": np.uint64(0), "cached_tokens": np.int32(1)}
    segment = Segment(np.array([3], np.int32), np.array([-0.5], np.float32), None, "stop", **counts)
    checked = checked_segment(segment, request, 10)
    assert {type(getattr(checked, name)) for name in counts} == {int}
