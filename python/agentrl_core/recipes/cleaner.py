"""CLEANER: a call that failed is replaced by the policy's own correction of it (arXiv:2601.15141).

If a call fails the policy tries again after the error, at most three times. Then the turns with the errors leave the
record, and one turn takes their place: if two calls are alike (`difflib` ratio of at least 0.5) the reasoning of the
failed turn stays with the new call, else the whole turn is the new one. If no try succeeds, the last one and its error
stay, and later errors of this rollout are not repaired. A turn in a place where it was not sampled has no log-probs:
they are recomputed in the clean context. The environment is brought back to the place of the repair and gets the clean
turn, so that its next observation follows from the record. As in DAPO, a record of more than 16384 tokens, those of
tools included, is charged (length - 16384) / 4096, 1 at most.

Equations:
    Read: the public code and its README; the paper's text was not read.

    - C1, retry: `Purify(retries=3)`.
    - C2, similarity-aware rewrite: `Purify.merged`, try after try.
    - C3, record: `Branch.rollback`, then the clean turn, which is trained.
    - C4, share of samples: `Purify(probability=1.0)`, as for the 4B model; 0.7 for the 7B model; not computed: the
      number of a rollout follows from its seed.
    - C5, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10, old log-probs recomputed on the record.
    - C6, reward: `OutcomeScore`, the environment's, and `LengthPenalty`; the code pays 1 and -1.

Differs:
    - Environment: the code leaves it as it is after the errors; here it is replayed to the place of the repair.
    - Calls of a rollout: at most 30 tries in the code; here the collector's `turn_limit` bounds them.
    - An answer that ends the episode: it is no call, so the turns before it stay, as the episode is over.
    - A group of one: verl keeps its reward; here its advantage is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import StepFlag
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.rollout import Branch, Rollout, Turn


@dataclass(frozen=True)
class Purify(Rollout):
    """Replaces a call that failed by the policy's own later one; the rule is that of the file.

    Args:
        retries: how often a call is tried again.
        alike: the similarity from which two calls count as alike.
        probability: share of the rollouts that are repaired.
        call: what a call begins with, in the text of an action; the last such place counts. Without one the whole
            action is the call.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.cleaner import Purify
        >>> Purify().merged("Let me add. <call>1+", "I see. <call>1+2</call>")
        'Let me add. <call>1+2</call>'
        >>> Purify().merged("Let me add. <call>1+", "I see. <call>lcm(80, 90)</call>")
        'I see. <call>lcm(80, 90)</call>'
    """

    retries: int = option(3, at_least=0)
    alike: float = option(0.5, at_least=0, at_most=1)
    probability: float = option(1.0, at_least=0, at_most=1)
    call: str = option("<call>", filled=True)

    async def branch(self, branch: Branch) -> None:
        """Turns; those that failed leave the record with the tries to correct them, but for what the last try made."""
        repairs = branch.uniform("purify") < self.probability
        while not branch.over:
            bad = turn = await branch.turn()
            text, tries = bad.text, 0
            while repairs and self._failed(turn) and tries < self.retries and not branch.over:
                turn, tries = await branch.turn(), tries + 1
                text = self.merged(text, turn.text)
            # An answer that ends the episode is no call, and nothing is after it that errors could mislead.
            if tries and not (turn.over or turn.failed):
                repairs = not self._failed(turn)
                branch.rollback(bad.begin)
                branch.write(text)
                await branch.submit()

    @staticmethod
    def _failed(turn: Turn) -> bool:
        return bool(turn.flags & StepFlag.TOOL_ERROR)

    def merged(self, bad: str, good: str) -> str:
        """Text of the corrected turn, made of a failed turn and a correct one."""
        reasoning, old = self._parts(bad)
        _, new = self._parts(good)
        return reasoning + new if SequenceMatcher(None, old, new).ratio() >= self.alike else good

    def _parts(self, text: str) -> tuple[str, str]:
        begin = max(text.rfind(self.call), 0)
        return text[:begin], text[begin:]


CLEANER = Recipe(
    name="cleaner",
    source="arXiv:2601.15141",
    rollout=Purify(),
    reward=(OutcomeScore(), LengthPenalty(free=16384, full_at=20480, at_most=1.0)),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, 10.0)),
    minibatches=4,
    old_logprob="recomputed",
)
