"""Wrapped policies in engine.Vllm.update_weights: their parameters have other names than the engine's."""

import contextlib
import copy
import itertools

import pytest
import torch
from episode_world import lcm_world

from agentrl_core import engine, warm_start
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import AgentRLError

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

VERSIONS = itertools.count(1)
PREFIXES = ["_orig_mod", "module"]  # of torch.compile, of DistributedDataParallel


class Wrapper(torch.nn.Module):
    """Hold a policy under the name that a wrapper of PyTorch gives it."""

    def __init__(self, policy, name):
        super().__init__()
        setattr(self, name, policy)


@pytest.fixture(scope="module")
def policy_and_engine(tmp_path_factory):
    policy, tokenizer = warm_start.build(lcm_world(), seed=0)
    folder = tmp_path_factory.mktemp("policy")
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    generate = engine.Vllm(str(folder), max_model_len=512)
    yield policy, generate
    generate.close()


@pytest.fixture
def policy(policy_and_engine):
    return policy_and_engine[0]


@pytest.fixture
def generate(policy_and_engine):
    """Return the engine with the plain policy's weights, whatever an earlier test left."""
    policy, generate = policy_and_engine
    generate.update_weights(policy, version=next(VERSIONS))
    assert count_sampled(generate) > 0
    return generate


def count_sampled(generate):
    request = engine.Request(generate.chat.prompt("2 + 2 ="), seed=1, sampling=engine.Sampling(max_tokens=4))
    return len(generate_all(generate, [request])[0].tokens)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_wrapped_policy_is_accepted_or_rejected_by_the_package(prefix, policy, generate):
    """trl#5975, trl#7017, verl#7904: names of a wrapped policy reached the engine unchanged."""
    before, after = generate.policy_version, next(VERSIONS)
    try:
        generate.update_weights(Wrapper(copy.deepcopy(policy), prefix), version=after)
    except AgentRLError:
        after = before
    assert generate.policy_version == after


@pytest.mark.parametrize("prefix", PREFIXES)
def test_engine_generates_after_the_update_with_a_wrapped_policy(prefix, policy, generate):
    """trl#5975, trl#7017, verl#7904: a rejected update must keep the engine's previous weights."""
    with contextlib.suppress(AgentRLError, ValueError):
        generate.update_weights(Wrapper(copy.deepcopy(policy), prefix), version=next(VERSIONS))
    assert count_sampled(generate) > 0
