"""Retrieval-augmented RL: look up what solved the task before, and show it in the prompt (arXiv:2202.08417).

The paper's main contribution, a retrieval process that is trained with the agent, is left out: its losses are not
known, and it is a network beside the policy. Here a lookup by fixed rules takes its place.

Stored trajectories are indexed by their task; the newest three that solved it stand in front of the question. Retrieved
trajectories are context: no token of them is trained, and the loss is as it was, here GRPO's.

    question = [solution, ..., solution, task],   A = (R - mean) / std of the group

A task that was not solved yet is asked alone. Solutions of other tasks: `rollout.ExampleHint`.

Equations:
    Read: the abstract, and a summary by others. The paper's text was not read.

    - A1, learned retrieval: left out: see above.
    - N1, fixed retrieval: `Retrieved`, of successes of the same task, the newest three; what is shown is not trained.

Differs:
    - Similarity: not given; the same task here.
    - Agent: a Q-network in the paper, a language model with GRPO here.

Source: Retrieval-Augmented Reinforcement Learning (arXiv:2202.08417).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, Hint, HintSource, RolloutSpec, Rounds


@dataclass(frozen=True)
class Retrieved(HintSource):
    """Trajectories that solved the same task in earlier iterations, as far as the run has kept them.

    Args:
        count: at most so many, the newest.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.retrieval import Retrieved
        >>> Retrieved(count=1)
        Retrieved(count=1)
    """

    count: int = option(3, at_least=1)

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """The solutions, the oldest of them first."""
        del of
        found = group.library.solved(group.task.task_id)[-self.count :]
        texts = ("\n\n".join(group.library.actions(trajectory)) for trajectory in found)
        return Hint(tuple(texts), ends=True) if found else None


RETRIEVAL = Recipe(
    name="retrieval",
    source="arXiv:2202.08417",
    rollout=Rounds(members=RolloutSpec(hint=Retrieved(), fact="retrieved")),
    advantage=GroupRelative(),
    loss=Policy(),
)
