"""Cognition-of-Thought: a monitor reads along; actions that break a rule are undone and sampled again.

The agent `monitor` reads the policy's output every `tokens` tokens. If it finds that a rule is broken it
quotes the words from which on; the text is cut there (its first token stays), its guidance is put into the context,
which is not trained, and the policy goes on; at most twice for a trajectory. Removed actions stay in the files.
The number of rollbacks and the stride are proposals. This is a way to decode: the recipe trains what came of it by
GRPO. Source: CooT: Cognition-of-Thought (arXiv:2509.23441).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, Rollout, ask_agent
from agentrl_core.rollout.programs.repair import tokens_before


@dataclass(frozen=True)
class Monitored(Rollout):
    r"""Takes back what a monitor objects to, and goes on with its guidance in sight.

    The monitor answers `OK`, or two lines: `FROM: ` with the words from which on the text is bad, and `GUIDANCE: `.

    Args:
        tokens: of an action, after which the monitor is asked.
        rollbacks: the most of a trajectory.
        monitor: the name of an agent of the collector.
        question: what it is asked; `{text}` is the action so far.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.coot import Monitored
        >>> Monitored().objection("FROM: just lie\nGUIDANCE: Stay honest.", "I could just lie.")
        (8, 'Stay honest.')
        >>> Monitored().objection("OK", "I could ask.")
    """

    tokens: int = option(64, at_least=1)
    rollbacks: int = option(2, at_least=0)
    monitor: str = option("monitor", filled=True)
    question: str = option(
        "Does this text break a rule: do no harm, be honest, help? Answer OK, or two lines: FROM: the words from which "
        "on it does, GUIDANCE: what to keep in mind.\n\n{text}",
        filled=True,
    )

    def objection(self, answer: str, text: str) -> tuple[int, str] | None:
        """The letter of the text from which on it is bad, and the guidance; None: no objection, or no such words."""
        found = re.search(r"FROM:\s*(.+?)\s*\n+\s*GUIDANCE:\s*(.+)", answer, re.DOTALL)
        place = text.find(found.group(1)) if found else -1
        return (place, found.group(2).strip()) if found and place >= 0 else None

    async def group(self, group: Group) -> None:
        """All members, as many tokens at a time as the monitor reads."""
        live = group.start_many(group.size)
        left = {branch.name: self.rollbacks for branch in live}
        while live:
            segments = await group.advance(live, tokens=self.tokens)
            for branch, segment in zip(live, segments, strict=True):
                if left[branch.name] and not branch.over and await self._took_back(group, branch):
                    left[branch.name] -= 1
                elif not branch.over and (segment is None or segment.finish_reason != "length"):
                    await branch.submit()
            live = [branch for branch in live if not branch.over]

    async def _took_back(self, group: Group, branch: Branch) -> bool:
        """Ask the monitor about the open action; cut it where it objects."""
        here = branch.path.here
        if here is None or not branch.has_open_action:
            return False
        text = branch.path.text
        answer = await ask_agent(group, self.question.replace("{text}", text), agent=self.monitor, about=branch)
        objection = self.objection(answer, text)
        if objection is None:
            return False
        letter, guidance = objection
        # At least one token stays: guidance follows something that was said.
        kept = max(tokens_before(branch, branch.tokens[here.tokens :], letter), 1)
        branch.rollback(branch.position(here.tokens + kept))
        branch.inject(guidance)
        return True


COOT = Recipe(
    name="coot",
    source="arXiv:2509.23441",
    rollout=Monitored(),
    advantage=GroupRelative(),
    loss=Policy(),
)
