"""What several areas share: a small world and a tiny model that speaks its language."""

import copy
import sys
from pathlib import Path

import pytest

# What tests of several folders import: with importlib mode pytest puts no folder on the path.
sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture(scope="session")
def world():
    from agentrl_core import env

    return env.ReasoningGym(["chain_sum", "lcm"], tools=[env.Calculator()], seed=0, held_out=32)


@pytest.fixture(scope="session")
def _warm_policy(world):
    from agentrl_core.train.warm_start import warm_start

    return warm_start(world, seed=0, steps=150)


@pytest.fixture
def warm_policy(_warm_policy):
    """A model after a few supervised steps, and its tokenizer. The model is the test's own."""
    policy, tokenizer = _warm_policy
    return copy.deepcopy(policy), tokenizer
