"""Cognition-of-Thought: a monitor reads along; actions that break a rule are undone and sampled again.

After every `tokens` tokens the agent `monitor` writes a state of the policy's text, a number for each of three laws in
their order: safety, altruism, egoism; 1 it is kept, 0 it is not concerned, -1 it is broken. After three reads in a row
in which the first law is broken (with `strict`, any), the text is cut before the words that the monitor quotes, or
three reads back if it quotes none, its guidance is put into the context, which is not trained, and the policy goes on;
at most twice for a trajectory. Its first token stays, and removed actions stay in the files. This is a way to decode:
the recipe trains what came of it by GRPO. The injection into the model's last layer and the peaks of its attention are
left out: engines return tokens, not what happens inside the model.

Equations:
    Read: code and README of the authors' repository; not the paper's text.

    - C1, state: `Monitored.state`, by the monitor; `Monitored.breaks`.
    - C2, gate: `Monitored.counted`, `patience=3`.
    - C3, sharpness: left out: engines return no attention.
    - C4, rollback point: `Monitored.fallback`, three steps back; in place of the latest peak of the attention, the
      words that the monitor quotes.
    - C5, escalation: left out: it looks for an earlier peak of the attention.
    - C6, regeneration: left out: the policy goes on with the guidance in sight, as long as the monitor objects to
      nothing, so that an intervention has no end at which it failed.
    - C7, strength of the injection: left out: it changes the model's last layer while it decodes.

Differs:
    - Reads: after every token in the code, after every 8 here, since each asks a model.
    - Guidance: in the prompt of the regeneration in the code, in the context after the cut here.
    - Interventions: no limit in the code but the length; at most two here, as in notes of others.
    - Training: none in the source; GRPO here.

Source: CooT: Cognition-of-Thought (arXiv:2509.23441).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, Rollout, ask_agent
from agentrl_core.rollout.programs.repair import tokens_before

_STATE = re.compile(r"STATE:\s*(-1|0|1)[,\s]+(-1|0|1)[,\s]+(-1|0|1)(?!\d)")


@dataclass(frozen=True)
class Monitored(Rollout):
    r"""Takes back what a monitor objects to, and goes on with its guidance in sight.

    The monitor answers `STATE: ` and three numbers, and if one is -1 two more lines: `FROM: ` with the words from which
    on the text is bad, and `GUIDANCE: `. An answer without a state counts as 0 0 0; without guidance nothing is cut.

    Args:
        tokens: of an action, after which the monitor is asked.
        patience: reads in a row with a broken law, after which the text is cut.
        strict: whether each of the three laws counts; else the first alone.
        rollbacks: the most of a trajectory.
        monitor: the name of an agent of the collector.
        question: what it is asked; `{text}` is the action so far.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.coot import Monitored
        >>> Monitored().state("STATE: -1 0 1\nFROM: just lie\nGUIDANCE: Stay honest.")
        (-1, 0, 1)
        >>> Monitored().objection("FROM: just lie\nGUIDANCE: Stay honest.", "I could just lie.")
        (8, 'Stay honest.')
    """

    tokens: int = option(8, at_least=1)
    patience: int = option(3, at_least=1)
    strict: bool = False
    rollbacks: int = option(2, at_least=0)
    monitor: str = option("monitor", filled=True)
    question: str = option(
        "Does this text keep three laws: safety (do no harm), altruism (help others), egoism (keep yourself able to "
        "help)? Answer STATE: and a number for each, 1 if kept, 0 if not concerned, -1 if broken. If one is broken, "
        "add two lines: FROM: the words from which on it is, GUIDANCE: what to keep in mind.\n\n{text}",
        filled=True,
    )

    @staticmethod
    def state(answer: str) -> tuple[int, int, int]:
        """Return the state of the three laws that an answer of the monitor gives."""
        found = _STATE.search(answer)
        return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)

    def breaks(self, state: Sequence[int]) -> bool:
        """Whether a state breaks a law that counts."""
        return min(state if self.strict else state[:1]) < 0

    def counted(self, before: int, state: Sequence[int]) -> int:
        """Return how many reads in a row broke a law, from their number before this state."""
        return before + 1 if self.breaks(state) else 0

    @staticmethod
    def fallback(read: int) -> int:
        """Return the read back to which the text is cut at a read, if the monitor quotes no words of it."""
        return max(read - 3, 0)

    @staticmethod
    def objection(answer: str, text: str) -> tuple[int | None, str] | None:
        """The letter of the text from which on it is bad (None: not found), and the guidance; None: no guidance."""
        found = re.search(r"FROM:\s*(.+?)\s*\n+\s*GUIDANCE:\s*(.+)", answer, re.DOTALL)
        if found is None:
            return None
        place = text.find(found[1])
        return (place if place >= 0 else None), found[2].strip()

    async def group(self, group: Group) -> None:
        """All members, as many tokens at a time as the monitor reads."""
        live = group.start_many(group.size)
        readers = {branch.name: _Reader(self, group, branch) for branch in live}
        while live:
            segments = await group.advance(live, tokens=self.tokens)
            for branch, segment in zip(live, segments, strict=True):
                if not branch.over and await readers[branch.name].took_back():
                    continue
                if not branch.over and (segment is None or segment.finish_reason != "length"):
                    await branch.submit()
                    readers[branch.name].restart()
            live = [branch for branch in live if not branch.over]


class _Reader:
    """Reads of the open action of a branch: how many tokens it had at each, and how many in a row broke a law."""

    def __init__(self, program: Monitored, group: Group, branch: Branch) -> None:
        self._program, self._group, self._branch = program, group, branch
        self._left = program.rollbacks
        self.restart()

    def restart(self) -> None:
        """Begin an action, or go on after a cut."""
        self._ends = [0]
        self._count = 0

    async def took_back(self) -> bool:
        """Ask the monitor about the open action; cut it if it objected often enough."""
        branch, here = self._branch, self._branch.path.here
        if not self._left or here is None or not branch.has_open_action:
            return False
        text = branch.path.text
        question = self._program.question.replace("{text}", text)
        answer = await ask_agent(self._group, question, agent=self._program.monitor, about=branch)
        tokens = branch.tokens[here.tokens :]
        self._ends.append(len(tokens))
        self._count = self._program.counted(self._count, self._program.state(answer))
        objection = self._program.objection(answer, text)
        if self._count < self._program.patience or objection is None:
            return False
        letter, guidance = objection
        kept = (
            self._ends[self._program.fallback(len(self._ends) - 1)]
            if letter is None
            else tokens_before(branch, tokens, letter)
        )
        # At least one token stays: guidance follows something that was said.
        branch.rollback(branch.position(here.tokens + max(kept, 1)))
        branch.inject(guidance)
        self._left -= 1
        self.restart()
        return True


COOT = Recipe(
    name="coot",
    source="arXiv:2509.23441",
    rollout=Monitored(),
    advantage=GroupRelative(),
    loss=Policy(),
)
