"""Retrieval-augmented RL: look up earlier solutions of the task, and show them in the prompt (arXiv:2202.08417).

The paper's main contribution, a retrieval process that is trained with the agent, is left out: its losses are not
known, and it is a network in addition to the policy. Here a lookup by fixed rules replaces it.

Stored trajectories are indexed by task; the newest three that solved the task are inserted before the question.
Retrieved trajectories are context: their tokens are not trained. The loss is unchanged, here GRPO's.

    question = [solution, ..., solution, task],   A = (R - mean) / std of the group

If the task has not been solved yet, the prompt contains no solutions. For solutions of other tasks, use
`rollout.ExampleHint`.

Equations:
    Read: the abstract, and a summary by others. The paper's text was not read.

    - A1, learned retrieval: left out: see above.
    - N1, fixed retrieval: `Retrieved`, with the newest three successes of the same task; they are not trained.

Differs:
    - Similarity: not given; here only trajectories of the same task are retrieved.
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
    """Show trajectories that solved the same task in earlier iterations, if the run has kept them.

    Args:
        count: largest number of trajectories; the newest are shown.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.retrieval import Retrieved
        >>> Retrieved(count=1)
        Retrieved(count=1)
    """

    count: int = option(3, at_least=1)

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """Return the newest solutions, oldest first, or None if the task has none."""
        del of
        trajectories = group.library.solved(group.task.task_id)[-self.count :]
        texts = ("\n\n".join(group.library.actions(trajectory)) for trajectory in trajectories)
        return Hint(tuple(texts), ends=True) if trajectories else None


RETRIEVAL = Recipe(
    name="retrieval",
    source="arXiv:2202.08417",
    rollout=Rounds(members=RolloutSpec(hint=Retrieved(), fact="retrieved")),
    advantage=GroupRelative(),
    loss=Policy(),
)
