"""Contexts that a trajectory does not carry along: old observations give way while it goes on."""

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
    """The newest observations are shown whole; of those before, a placeholder is left, or nothing at all.

    The context of an action is the prompt, then turn by turn what was said and what was answered. Sampled turns keep
    their tokens, so masks never shift. A step is trained behind the context that it was sampled in; the trajectory
    trains as one sequence for each context. Sources: WebAgent-R1 (arXiv:2505.16421): a placeholder for each page but
    the newest; DART (arXiv:2509.23866) and UI-S1 (arXiv:2509.11543): a window of the newest turns.

    Args:
        observations: how many of the newest observations are shown.
        placeholder: what stands for an older one.
        turns: how many of the newest turns are shown at all; 0: all of them.

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
        """Turns until it is over, each in a context that was made for it."""
        while not branch.over:
            turn = await branch.turn()
            if not turn.over and self.changes(len(branch.turns)):
                await branch.rewrite(self.context(branch.prompt_messages, branch.turns))

    def changes(self, turns: int) -> bool:
        """Whether the context behind so many turns is another than what was said."""
        return turns > min(self.observations, self.turns or turns)

    def context(self, asked: Sequence[Message], turns: Sequence[Turn]) -> list[Content | Turn]:
        """Prompt, turns and observations."""
        first = max(len(turns) - self.turns, 0) if self.turns else 0
        context: list[Content | Turn] = list(asked)
        for turn in turns[first:]:
            recent = turn.index >= len(turns) - self.observations
            context += [turn, (turn.observation or "") if recent else self.placeholder]
        return context
