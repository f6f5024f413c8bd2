"""Drop old observations from the context while a trajectory runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.env.base import Content, Message
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.turn import Turn


@dataclass(frozen=True)
class ObservationWindow(Rollout):
    """Keep only the newest observations in the context; older ones become a placeholder, or are removed.

    The context of an action is the prompt, then actions and observations turn by turn. Sampled turns keep their tokens,
    so masks never shift. A step is trained in the context in which it was sampled; the trajectory trains as one
    sequence per context. Sources: WebAgent-R1 (arXiv:2505.16421): a placeholder for each page but the newest; DART
    (arXiv:2509.23866) and UI-S1 (arXiv:2509.11543): a window of the newest turns.

    Args:
        observations: number of the newest observations to show.
        placeholder: replacement of older ones.
        turns: number of the newest turns to show; 0: all.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import ObservationWindow
        >>> ObservationWindow(observations=2, turns=5)
        ObservationWindow(observations=2, turns=5)
    """

    observations: int = option(1, at_least=1)
    placeholder: str = option("(an earlier page)", filled=True)
    turns: int = option(0, at_least=0)

    async def branch(self, branch: Branch) -> None:
        """Run turns until the end, and rewrite the context once an observation or a turn leaves the window."""
        while not branch.over:
            turn = await branch.turn()
            if not turn.over and self.changes(len(branch.turns)):
                await branch.rewrite(self.context(branch.prompt_messages, branch.turns))

    def changes(self, turns: int) -> bool:
        """Return whether the context changes after `turns` turns."""
        return turns > min(self.observations, self.turns or turns)

    def context(self, asked: Sequence[Message], turns: Sequence[Turn]) -> list[Content | Turn]:
        """Return the next context: the prompt, the turns that stay, and their observations or placeholders."""
        first = max(len(turns) - self.turns, 0) if self.turns else 0
        context: list[Content | Turn] = list(asked)
        for turn in turns[first:]:
            recent = turn.index >= len(turns) - self.observations
            context += [turn, (turn.observation or "") if recent else self.placeholder]
        return context
