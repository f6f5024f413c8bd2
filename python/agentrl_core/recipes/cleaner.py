"""CLEANER: a call that failed is replaced by the policy's own correction of it (arXiv:2601.15141).

If a call fails the policy tries again behind the error, at most three times. If a later call succeeds, the turns
with the errors leave the record: if the two calls are alike (`difflib` ratio of at least 0.5) the reasoning of the
failed turn stays with the new call, else the whole turn is the new one. If none succeeds the errors stay. A turn in a
place where it was not sampled has no log-probs: they are recomputed in the clean context. The environment is brought
back to the place of the repair and gets the clean turn, so that its next observation follows from the record (the
public code leaves the environment as it is). p is 1 for the paper's small model, 0.7 for its large one; clip 0.2 and
0.28, dual clip 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import StepFlag
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import Branch, Rollout


@dataclass(frozen=True)
class Purify(Rollout):
    """Replaces a call that failed by the policy's own later one; the rule is that of the file.

    Args:
        retries: how often a call is tried again.
        alike: the similarity from which two calls count as alike.
        probability: with which an error that was corrected leaves the record.
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
        """Turns; if one fails and a later one does not, the record is that of a branch that never failed."""
        while not branch.over:
            bad = turn = await branch.turn()
            for _ in range(self.retries):
                if not turn.flags & StepFlag.TOOL_ERROR or branch.over:
                    break
                turn = await branch.turn()
            corrected = turn is not bad and not (turn.flags & StepFlag.TOOL_ERROR or turn.failed)
            # An answer that ends the episode is no call, and nothing is behind it that errors could mislead.
            if corrected and not turn.over and branch.uniform("purify", bad.index) < self.probability:
                branch.rollback(bad.begin)
                branch.write(self.merged(bad.text, turn.text))
                await branch.submit()

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
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, 10.0)),
    old_logprob="recomputed",
)
