"""Fission-GRPO: a call that failed begins a new group, which learns to recover from it.

After a group has been rolled out, each member without success that failed a call gives a context, four of a group at
most: its text up to and with the first such call, what the environment answered, and a diagnosis of the agent
`simulator`. The policy goes on from there G' = 4 times, in a group of its own: it is compared with itself alone, and
nothing of the context is trained. Here that is done at once, under the weights that failed; the paper keeps contexts in
a queue, the newest first, until there are enough. G' and the number of contexts of a group are proposals.

Equations:
    Read: the abstract, and summaries and notes of others; the paper's formulas were not read.

    - N1 and N2, reward: left out: the environment pays it; the schedules of its weights are not stated; one is
      `reward.CombineReward(column="reward.format", coefficient=Schedule(2.0, 1.0, iterations=100))`.
    - N3, corrective context: `Fission`: prompt, failed attempt and diagnosis, untrained.
    - N4, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it; a recovery group has its own statistics.
    - N5, objective: `Policy`, `aggregate="sequence_mean"`.
    - N6, buffer: left out: contexts are used at once, so that all of them come from the current policy, which is what
      the order of the buffer is for.

Differs:
    - Clip range: not stated; 0.2 here.
    - Optimizer steps: not stated; recoveries have updates of their own in the paper, here they are in the batch of
      the groups that failed.
    - Trigger: a call that failed in a trajectory that does not succeed. The notes have every execution error; the
      project page has failed trajectories, those of low quality too.
    - Error simulator: a model trained for it in the paper; any agent `simulator` here.

Source: Robust Tool Use via Fission-GRPO: Learning to Recover from Execution Errors (arXiv:2601.15625).
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, ErrorLocation, Group, Prefix, Repair, Rollout, ask_agent, fill_template


@dataclass(frozen=True)
class Fission(Repair):
    """Members that failed a call each become a group that begins after that call.

    Args:
        size: G'.
        simulator: who names the fault: the name of an agent of the collector.
        question: what it is asked; `{task}` as in `recipes.agent_rlvr.AgentHint`, `{attempt}` is the attempt's text.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.fission import Fission
        >>> Fission().size
        4
    """

    at_most: int = option(4, at_least=1)
    size: int = option(4, at_least=1)
    simulator: str = option("simulator", filled=True)
    question: str = option(
        "Say what is wrong with the last call, without the answer.\n\nTask:\n{task}\n\nCalls:\n{attempt}", filled=True
    )

    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """A new group after the call and its diagnosis."""
        question = fill_template(self.question, group, [branch])
        diagnosis = await ask_agent(group, question, agent=self.simulator, about=branch)
        turns = fault.step.turn + 1
        await group.spawn(
            group.task, size=self.size, program=_behind(Prefix.of(branch, turns), diagnosis), parent=branch
        )
        return True


def _behind(prefix: Prefix, diagnosis: str) -> Rollout:
    """A program whose members begin with a prefix and a diagnosis of it."""

    class Recover(Rollout):
        async def branch(self, branch: Branch) -> None:
            await branch.generate(max_tokens=0)
            if diagnosis and not branch.over:
                branch.inject(diagnosis)
            await super().branch(branch)

        async def group(self, group: Group) -> None:
            await group.run(group.start_many(group.size, prefix=prefix))

    return Recover()


FISSION = Recipe(
    name="fission",
    source="arXiv:2601.15625",
    rollout=Fission(column="success"),
    advantage=GroupRelative(),
    loss=Policy(aggregate="sequence_mean"),
)
