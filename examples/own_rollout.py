"""Write a rollout program: if no branch of a group succeeds, retry from the middle of the best one.

    python examples/own_rollout.py

A script plays the model, so that the example needs no weights. docs/rollouts.md explains the methods.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start
from agentrl_core.component import option
from agentrl_core.rollout import Group, Rollout


@dataclass(frozen=True)
class SecondChance(Rollout):
    """Fork the best of the failed branches before its last turn."""

    repairs: int = option(2, at_least=0)

    async def group(self, group: Group) -> None:
        """Run the members, then the repairs."""
        branches = await group.run(group.start_many(group.size))
        scores = await group.score()
        if scores.max(initial=0.0) <= 0.0:
            best = branches[int(scores.argmax())]
            await group.run(best.fork_many(self.repairs, at=best.turns[-1].begin))


def main() -> None:
    world = env.ReasoningGym(["lcm"], tools=[env.Calculator()], seed=0, held_out=0)
    _, tokenizer = warm_start.build(world, seed=0)

    def reply(request: engine.Request) -> str:
        has_result = "<result>" in script.chat.decode(request.tokens)
        return "<answer>1</answer>" if has_result else "<call>lcm(6,4)</call>"

    script = engine.Scripted(tokenizer, reply)
    collector = arl.Collector(script, world, recipes.GRPO.replace(rollout=SecondChance()))
    batch = collector(tasks=2, group_size=4)
    print(pl.DataFrame(batch.draws).group_by("group_id").len("rollouts").sort("group_id"))
    print(f"{len(batch.column('token', 'node_token'))} tokens are stored for {batch.num_draws} rollouts")
    collector.close()


if __name__ == "__main__":
    main()
