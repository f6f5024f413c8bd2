"""Recomputed log-probs in training on stale tokens."""

import contextlib

from episode_world import lcm_world
from warning_recorder import recorded_warnings

import agentrl_core as arl
from agentrl_core import engine, recipes, warm_start
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.exceptions import AgentRLError


def test_recomputed_logprobs_of_stale_tokens_need_an_importance_weight():
    """miles#1829: asynchronous training without a correction has to be reported."""
    world = lcm_world()
    model, tokenizer = warm_start.build(world, seed=0)
    recipe = recipes.GRPO.replace(old_logprob="recomputed")
    policy = engine.Scripted(tokenizer, lambda _: ScriptedReply([5, 6, 7], logprobs=[-9.0, -9.0, -9.0]))
    with recorded_warnings() as caught:
        try:
            with contextlib.closing(arl.Collector(policy, world, recipe, staleness=1)) as collect:
                for iteration in range(2):
                    batch = arl.annotate(collect(tasks=1, group_size=2), "recomputed_logprob", model)
                    (update,) = recipe.updates(recipe.credit(batch))
                    for pack in update.pack(max_tokens=4096):
                        pack.run(model)
                    policy.update_weights(None, version=iteration + 1)
                    collect.end_iteration(batch, {})
        except AgentRLError:
            return
    assert caught
