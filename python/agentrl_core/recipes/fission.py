"""Fission-GRPO: start a new group after a failed call, to train the recovery from it.

After a group has been rolled out, each unsuccessful member with a failed call gives a context, at most four per group.
The context is the member's text up to and including the first failed call, the environment's response, and a diagnosis
by the agent `simulator`. The policy continues from it G' = 4 times. These continuations are a separate group: they are
compared only with each other, and the context is not trained. Here this happens at once, with the weights that produced
the failure; the paper stores contexts in a queue, newest first, until there are enough. G' and the number of contexts
per group are chosen here.

Equations:
    Read: the abstract, and summaries and notes of others; the paper's formulas were not read.

    - N1 and N2, reward: left out: the environment computes it. The schedules of its weights are not stated; an example
      is `reward.CombineReward(column="reward.format", coefficient=Schedule(2.0, 1.0, iterations=100))`.
    - N3, corrective context: `Fission`: prompt, failed attempt and diagnosis, untrained.
    - N4, advantage: `GroupRelative`, std with divisor n - 1, plus 1e-6; a recovery group has its own statistics.
    - N5, objective: `Policy`, `aggregate="sequence_mean"`.
    - N6, buffer: left out: contexts are used at once, so all of them come from the current policy. The order of the
      paper's buffer has the same purpose.

Differs:
    - Clip range: not stated; 0.2 here.
    - Optimizer steps: not stated; in the paper recoveries have their own updates, here they are in the batch of the
      groups that failed.
    - Trigger: a failed call in an unsuccessful trajectory. The notes use every execution error; the project page uses
      failed trajectories, including those of low quality.
    - Error simulator: a model trained for this purpose in the paper; any agent `simulator` here.

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
    """Start a new group after the first failed call of each of up to `at_most` unsuccessful members.

    Args:
        size: G', the number of members of the new group.
        simulator: name of the collector's agent that writes the diagnosis.
        question: prompt template of the diagnosis; `{task}` as in `recipes.agent_rlvr.AgentHint`, `{attempt}` is the
            text of the attempt.

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
        """Run a new group that starts after the failed call and its diagnosis."""
        question = fill_template(self.question, group, [branch])
        diagnosis = await ask_agent(group, question, agent=self.simulator, about=branch)
        turns = fault.step.turn + 1
        await group.spawn(
            group.task, size=self.size, program=_behind(Prefix.of(branch, turns), diagnosis), parent=branch
        )
        return True


def _behind(prefix: Prefix, diagnosis: str) -> Rollout:
    """Return a program whose members start with a prefix and the diagnosis of its failed call."""

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
