"""Environments of other packages: their answers, scorers and missing packages."""

import importlib.util

import pytest

from agentrl_core import env
from agentrl_core.exceptions import AgentRLError

WITHOUT_JAX = pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="jax is installed")


def test_answers_of_reasoning_gym_may_have_angle_brackets():
    """All answers of `jugs` ("pour A->B") and most of `futoshiki` have them."""
    world = env.ReasoningGym(["jugs"], held_out=0)
    outcomes = [
        world.reset(task, 0).step(f"<answer>{task.payload.entry['answer']}</answer>") for task in world.tasks(5)
    ]
    assert [outcome.success for outcome in outcomes] == [True] * 5


def test_family_whose_scorer_accepts_any_text_is_rejected():
    """reasoning-gym 0.1.25: `game_of_life_halting`."""
    try:
        world = env.ReasoningGym(["game_of_life_halting"], held_out=0)
    except AgentRLError:
        return
    outcomes = [world.reset(task, 0).step("<answer>no idea</answer>") for task in world.tasks(5)]
    assert not any(outcome.success for outcome in outcomes)


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("name", ["Ant-v3", pytest.param("phys2d/CartPole-v1", marks=WITHOUT_JAX)])
def test_environment_of_gymnasium_whose_package_is_missing_is_rejected(name):
    with pytest.raises(AgentRLError):
        env.Gymnasium(name)
