"""Cognition-of-Thought: a monitor checks unfinished actions; text that breaks a law is removed and sampled again.

After every `tokens` tokens the agent `monitor` reads the policy's text and writes a state: one number for each of three
laws, in the order safety, altruism, egoism. 1 means that the law is kept, 0 that it is not concerned, -1 that it is
broken. If the first law (with `strict`, any law) is broken in three reads in a row, the text is cut before the words
that the monitor quotes, or three reads back if it quotes none. The monitor's guidance is added to the context,
untrained, and the policy continues. This happens at most twice per trajectory. The first token of an action always
stays, and removed text stays in the files. CooT is a decoding method; the recipe trains the resulting trajectories by
GRPO. The injection into the model's last layer and the peaks of its attention are left out: engines return tokens, not
the model's internal values.

Equations:
    Read: code and README of the authors' repository; not the paper's text.

    - C1, state: `Monitored.state`, from the monitor's response; `Monitored.breaks`.
    - C2, gate: `Monitored.counted`, `patience=3`.
    - C3, sharpness: left out: engines return no attention.
    - C4, rollback point: `Monitored.fallback`, three steps back; the words that the monitor quotes replace the latest
      peak of the attention.
    - C5, escalation: left out: it searches for an earlier peak of the attention.
    - C6, regeneration: left out: the policy continues with the guidance in its context until the monitor objects again,
      so an intervention has no end at which it could fail.
    - C7, strength of the injection: left out: it changes the model's last layer during decoding.

Differs:
    - Reads: after every token in the code, after every 8 here, since each read queries a model.
    - Guidance: in the prompt of the regeneration in the code, in the context after the cut here.
    - Interventions: limited only by the length in the code; at most two here, as in notes of others.
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

_STATE = re.compile(r"STATE:\s*(-1|0|1)[,\s]+(-1|0|1)[,\s]+(-1|0|1)(?!\d)")


@dataclass(frozen=True)
class Monitored(Rollout):
    r"""Remove text that a monitor objects to, and continue with the monitor's guidance in the context.

    The monitor writes `STATE: ` and three numbers. If one of them is -1, it adds two lines: `FROM: ` with the words at
    which the bad text starts, and `GUIDANCE: `. A response without a state counts as 0 0 0; without guidance nothing is
    cut.

    Args:
        tokens: number of tokens of an action between two reads of the monitor.
        patience: number of consecutive reads with a broken law, after which the text is cut.
        strict: True: each of the three laws counts; False: only the first.
        rollbacks: largest number of cuts per trajectory.
        monitor: name of an agent of the collector.
        question: prompt template of the monitor; `{text}` is the action so far.

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
        """Return the state of the three laws in a response of the monitor; three zeros if the response has none."""
        found = _STATE.search(answer)
        return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)

    def breaks(self, state: Sequence[int]) -> bool:
        """Return whether a state breaks a law that counts."""
        return min(state if self.strict else state[:1]) < 0

    def counted(self, before: int, state: Sequence[int]) -> int:
        """Return the number of consecutive reads with a broken law, given the number before this state."""
        return before + 1 if self.breaks(state) else 0

    @staticmethod
    def fallback(read: int) -> int:
        """Return the index of the read to which the text is cut if the monitor quotes no words of the text."""
        return max(read - 3, 0)

    @staticmethod
    def objection(answer: str, text: str) -> tuple[int | None, str] | None:
        """Return the index of the first bad character (None: not found) and the guidance, or None without guidance."""
        found = re.search(r"FROM:\s*(.+?)\s*\n+\s*GUIDANCE:\s*(.+)", answer, re.DOTALL)
        if found is None:
            return None
        place = text.find(found[1])
        return (place if place >= 0 else None), found[2].strip()

    async def group(self, group: Group) -> None:
        """Roll out all members, `tokens` tokens at a time."""
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
    """Track a branch's open action: its length at each read, and the number of consecutive reads with a broken law."""

    def __init__(self, program: Monitored, group: Group, branch: Branch) -> None:
        self._program, self._group, self._branch = program, group, branch
        self._left = program.rollbacks
        self.restart()

    def restart(self) -> None:
        """Reset the reads, for a new action or after a cut."""
        self._ends = [0]
        self._count = 0

    async def took_back(self) -> bool:
        """Query the monitor; after enough objections in a row, cut the open action, add guidance and return True."""
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
        num_kept = (
            self._ends[self._program.fallback(len(self._ends) - 1)]
            if letter is None
            else branch.tokens_before(tokens, letter)
        )
        # Keep at least one token: the guidance must follow generated text.
        branch.rollback(branch.position(here.tokens + max(num_kept, 1)))
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
