"""Retrieval-augmented RL: what solved the task before is looked up and shown, and read rather than trained.

Stored trajectories are indexed by their task; the newest three that solved it stand in front of the question. What is
retrieved is context: no token of it is trained, and the loss is as it was, here GRPO's.

    question = [solution, ..., solution, task],   A = (R - mean) / std of the group

A task that nobody solved yet is asked alone. Source: Retrieval-Augmented Reinforcement Learning (arXiv:2202.08417),
which learns what to attend to, by a network that is trained with the policy. Here the key of the index is the task,
three are shown, and successes alone are kept: all ours. Solutions of other tasks: `rollout.ExampleHint`.
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
    """What solved the same task in earlier iterations, as far as the run has kept it; nothing where nobody has.

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
