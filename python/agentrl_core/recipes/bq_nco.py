"""BQ-NCO: treat the rest of a problem as a smaller problem, and imitate optimal solutions.

    L = - mean of log p(a_k | remaining problem after a_1, ..., a_(k-1)),   k uniform over the actions of the solution

Past actions matter only through the remaining problem (a bisimulation quotient): partial solutions that leave the
same problem are one state, regardless of the order of their actions. So a rollout plays the first k - 1 actions of
the reference solution (`Task.solution`), shows the policy only the last observation, as a new prompt, and trains the
next action in that context. The environment computes the quotient: its observation is the remaining problem, without
the history. In reinforcement learning, `GroupRelative(level="step", group_by="state_key")` compares the steps that
act on the same remaining problem, if `state_key` is canonical.

Equations:
    Read: the authors' code and the abstract; the paper's text was not read.

    - C1, C2 and C3, residual problems: the environment shows them; `ResidualSteps` makes them the whole context.
    - C4, imitation loss: `Imitation("token_mean")`.
    - C5, loss without an order: left out: it spreads the target over all correct actions; here an action is one text,
      and `Task.solution` is ordered.
    - C6, decoding: left out: beam search belongs to the evaluation; greedy decoding is `Sampling(temperature=0)`.

Differs:
    - Length of a residual problem: one for a whole batch in the code, one for each rollout here.
    - Batch: 512 rows in the code; here the number of collected rows.

Source: arXiv:2301.03313. Needs: `Task.solution` as actions, and an environment that shows the remaining problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Imitation
from agentrl_core.rollout import Branch, Rollout


@dataclass(frozen=True)
class ResidualSteps(Rollout):
    """Train one action of the task's solution, with the remaining problem as its only context.

    Raises:
        InvalidInputError: a task has no solution.

    Example:
        >>> from agentrl_core.recipes.bq_nco import ResidualSteps
        >>> ResidualSteps().facts
        {}
    """

    async def branch(self, branch: Branch) -> None:
        """Play a random number of solution actions, keep only the last observation, and write the next action."""
        await branch.begin()
        task = branch.group.task
        solution = task.solution
        if not solution:
            raise InvalidInputError(
                f"{self.title()}: task {task.task_id!r} has no solution; give its actions as Task(solution=...)"
            )
        observation = None
        for action in solution[: int(branch.uniform("left") * len(solution))]:
            branch.write(action, trained=False)
            observation = (await branch.submit()).observation
            if branch.over:  # the episode ended before the solution was complete
                return
        if observation is not None:
            await branch.rewrite([observation])
        branch.write(solution[len(branch.turns)])
        branch.finish(reward=1.0, success=True)


BQ_NCO = Recipe(
    name="bq_nco",
    source="arXiv:2301.03313",
    rollout=ResidualSteps(),
    advantage=GroupRelative(),
    loss=Imitation("token_mean"),
)
