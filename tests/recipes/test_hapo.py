"""Compare temperature, clip range and advantage by entropy with the published formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cases import Case, agree, ppo, transcribed
from riddles import RIGHT, WRONG, Riddles, check_resumes, script, solve, step
from sampled import RecordingEngine, check_sampled
from torch import Tensor

import agentrl_core as arl
from agentrl_core import loss, recipes
from agentrl_core.engine import EntropyTemperature, Request, Sampling
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.hapo import EntropyAdvantage, EntropyScaledClip, SampledByEntropy, normalised_entropy
from agentrl_core.rollout import Independent


def test_hapo() -> None:
    case = Case.random(8)
    e = case.entropy.clamp(min=1e-8).log()
    h = e - torch.quantile(e, 0.8, interpolation="nearest")
    h = h / h.square().mean().sqrt()
    h = torch.where(h > 0, h / h.max(), h / h.min().abs())
    torch.testing.assert_close(normalised_entropy(case.tokens(), 0.8, "all"), h)
    assert h.min() == -1
    assert h.max() == 1

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        r, a = ratio[t], case.advantage[t]
        outside = not 0.9 < r < 1.1
        if (h[t] > 0) == outside:
            a = a * (1 + 0.5 * h[t])
        low = 0.2 * (1 - h[t]) if h[t] <= 0 else 0.2
        high = 0.2 * (1 + h[t]) if h[t] > 0 else 0.2
        return ppo(r, a, 1 - low, 1 + high)

    policy = loss.Policy(clip=EntropyScaledClip(scope="all"), mask=EntropyAdvantage(0.5, scope="all"))
    agree(policy, case, transcribed(case, objective))


def unsure(context: str, request: Request) -> ScriptedReply:
    """Return the log-probs of a policy that is certain of its first letter, and uncertain before the last."""
    del context
    text = RIGHT if request.seed % 2 else WRONG
    heights = [-3.0, *[-1.0] * (len(text) - 1), 1.5]  # one token per letter, and the stop token
    return ScriptedReply(text, [-1.0] * len(heights), np.exp(heights).tolist())


def test_the_temperature_follows_the_last_iteration(tmp_path: Path) -> None:
    # ln H of each answer: -3, -1 (all others), 1.5. The nearest value to the 0.8 quantile is -1: the widths are
    # 1.5 - (-1) = 2.5 and -1 - (-3) = 2.
    rule = EntropyTemperature(zero=-1.0, above=2.5, below=2.0, change=0.05)
    with arl.Store.open(tmp_path, sync="never") as store:
        recorder = RecordingEngine(script(unsure))
        collect = arl.Collector(recorder, Riddles(), recipes.HAPO, store=store, task_pool=64)
        samplings = []
        for _ in range(2):
            batch = collect(tasks=2, group_size=4)
            assert check_sampled(batch, recorder) > 0
            samplings.append({request.sampling.by_entropy for request, _ in recorder.exchanges.values()})
            recorder.exchanges.clear()
            assert step(recipes.HAPO, batch) > 0
            collect.end_iteration(batch, {})
    assert samplings[0] == {None}
    [sampled_rule] = samplings[1]
    assert sampled_rule is not None
    np.testing.assert_allclose(
        [sampled_rule.zero, sampled_rule.above, sampled_rule.below, sampled_rule.change],
        [rule.zero, rule.above, rule.below, rule.change],
        atol=1e-6,
    )


def test_an_iteration_of_which_no_entropy_is_known_changes_nothing() -> None:
    batch = solve(recipes.HAPO, unsure).batch
    state = {"zero": 1.0, "above": 2.0, "below": 3.0}
    program = SampledByEntropy()
    assert program.next(state, arl.component.IterationRecord(0, batch)) != state
    assert program.next(state, arl.component.IterationRecord(0, arl.Forest().freeze())) == state


def test_the_recipe_resumes_after_interrupts() -> None:
    assert check_resumes(recipes.HAPO, unsure) > 1


def test_behaviour_log_probs_are_refused_with_entropy_temperature() -> None:
    sampling = Sampling(by_entropy=EntropyTemperature(0.0, 1.0, 1.0))
    recipe = recipes.HAPO.replace(rollout=Independent())
    assert solve(recipe, unsure, sampling=sampling).sampled > 0
    with pytest.raises(InvalidInputError, match=r'use recomputed log-probs: .*old_logprob="recomputed"'):
        solve(recipe.replace(old_logprob="behaviour"), unsure, sampling=sampling)
