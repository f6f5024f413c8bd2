"""Arms of `bench/evidence`: each named one takes an update, and differs from its baseline as announced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import arms
import numpy as np
import pytest
import records
import studies
import training
import warm_start
from arms import Arm, Negated
from worlds import WORLDS, World

from agentrl_core import recipes
from agentrl_core.component.component import PHASES
from agentrl_core.exceptions import AgentRLError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, warm_start.Start]:
    """Return a world whose runs take a second, and its warm start."""
    settings = {"steps": 2, "slip_steps": 1, "slips": 0.3, "budget": 20, "tasks": 64, "held_out": 2}
    world = World("tiny", WORLDS["chain"].make, turn_tokens=5, context_tokens=160, **settings)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_start, "CACHE", Path(tmp_path_factory.mktemp("cache")))
        return world, warm_start.load(world, 0)


# An untrained policy neither succeeds nor calls the calculator.
@pytest.mark.filterwarnings("ignore:.*DynamicSampling admitted none", "ignore:.*forks at tool results")
@pytest.mark.parametrize("name", sorted({*arms.ARMS, "on_policy_distillation", "grpo"}))
def test_every_named_arm_trains(name: str, tiny: tuple[World, warm_start.Start]) -> None:
    world, start = tiny
    arm = replace(arms.arm(name), rollouts=16)
    before = {key: weight.clone() for key, weight in start.model.state_dict().items()}
    training.check(world, arm)
    record = training.train(world, arm, 0, start)
    assert record["curve"][0][0] == 0
    assert record["curve"][-1][0] >= world.budget
    assert record["iterations"] >= 1
    assert all((weight == before[key]).all() for key, weight in start.model.state_dict().items()), "arms share it"


def test_names() -> None:
    assert arms.arm("gigpo") == Arm(recipes.GIGPO)
    assert arms.arm("grpo@short").tokens == arms.SHORT
    assert arms.arm("grpo@short+3") == Arm(recipes.GRPO, tokens=arms.SHORT, reseed=30_000)
    assert arms.arm("dpo").group_size == 2
    with pytest.raises(KeyError, match="neither"):
        arms.arm("nothing")


def test_an_arm_replaces_few_phases_of_grpo() -> None:
    for name in arms.ARMS:
        recipe = arms.arm(name).recipe
        others = [phase for phase in PHASES if getattr(recipe, phase) != getattr(recipes.GRPO, phase)]
        assert recipe.name == "grpo"
        assert len(others) <= 2, (name, others)


def test_negated_scores(tiny: tuple[World, warm_start.Start]) -> None:
    from agentrl_core import Forest

    del tiny
    forest = Forest()
    forest.add_group(0, "a")
    for member, reward in enumerate((1.0, 0.0, float("nan"))):
        one = forest.start(0, member)
        forest.append(one, [1], kind="prompt")
        forest.append(one, [2], kind="action", logprobs=[-0.1])
        forest.finish(one, reward=reward)
    batch = recipes.GRPO.score(forest.freeze())
    before, after = batch.column("score", "draw"), Negated()(batch).column("score", "draw")
    np.testing.assert_array_equal(after, -before)
    assert np.isnan(after[2])


@pytest.mark.full
@pytest.mark.parametrize("world", sorted(WORLDS.keys() - set(studies.SCREENED)))
def test_no_other_world_takes_a_recipe_that_the_screened_one_refuses(world: str) -> None:
    refused = {run["arm"] for run in records.study("screening") if run["status"] == "refused"}
    assert refused
    for name in sorted(refused):
        with pytest.raises(AgentRLError):
            training.check(WORLDS[world], arms.arm(name))
