"""CLEANER: replace a failed tool call by the policy's own correction of it (arXiv:2601.15141).

After a failed call the policy reads the error and tries again, at most three times. Then the turns with errors are
removed from the record, and one turn replaces them. If the failed and the new call are similar (`difflib` ratio of at
least 0.5), this turn is the reasoning of the failed turn with the new call; otherwise it is the whole new turn. If no
try succeeds, the last try and its error stay, and later errors of this rollout are not repaired. A turn has no
log-probs in a context in which it was not sampled: they are recomputed in the clean context. The environment is rolled
back to the position of the repair and executes the clean turn, so its next observation follows from the record. As in
DAPO, a record of more than 16384 tokens, including tool tokens, gets a penalty of (length - 16384) / 4096, at most 1.

Equations:
    Read: the public code and its README; the paper's text was not read.

    - C1, retry: `Purify(retries=3)`.
    - C2, similarity-aware rewrite: `Purify.merged`, after each try.
    - C3, record: `Branch.rollback`, then the clean turn, which is trained.
    - C4, share of samples: `Purify(probability=1.0)`, as for the 4B model; 0.7 for the 7B model; not computed: the
      random number of a rollout follows from its seed.
    - C5, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10; old log-probs are recomputed on the record.
    - C6, reward: `OutcomeScore`, the environment's reward, and `LengthPenalty`; the code has rewards 1 and -1.

Differs:
    - Environment: the code leaves it in its state after the errors; here it is replayed to the position of the repair.
    - Calls of a rollout: at most 30 tries in the code; here the collector's `turn_limit` bounds them.
    - An answer that ends the episode: it is not a call, so the turns before it stay; the episode is over.
    - A group of one: its advantage is its reward in verl, 0 here.
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
    """Replace a failed call by the policy's own later call; the module docstring has the rule.

    Args:
        retries: largest number of further tries after a failed call.
        similarity_at_least: smallest `difflib` ratio at which two calls are similar.
        probability: share of the rollouts that are repaired.
        call: text that starts a call in an action; its last occurrence counts. In an action without it, the whole
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
    similarity_at_least: float = option(0.5, at_least=0, at_most=1)
    probability: float = option(1.0, at_least=0, at_most=1)
    call: str = option("<call>", filled=True)

    async def branch(self, branch: Branch) -> None:
        """Run turns to the end; one turn replaces a failed turn and its retries, unless a retry ended the episode."""
        repairs = branch.uniform("purify") < self.probability
        while not branch.over:
            bad = turn = await branch.turn()
            text, tries = bad.text, 0
            while repairs and self._failed(turn) and tries < self.retries and not branch.over:
                turn, tries = await branch.turn(), tries + 1
                text = self.merged(text, turn.text)
            # An answer that ends the episode is not a call, and no later turn could be misled by the errors.
            if tries and not (turn.over or turn.failed):
                repairs = not self._failed(turn)
                branch.rollback(bad.begin)
                branch.write(text)
                await branch.submit()

    @staticmethod
    def _failed(turn: Turn) -> bool:
        return bool(turn.flags & StepFlag.TOOL_ERROR)

    def merged(self, bad: str, good: str) -> str:
        """Return the text of the corrected turn, from a failed turn and a later try."""
        reasoning, old = self._parts(bad)
        _, new = self._parts(good)
        return reasoning + new if SequenceMatcher(None, old, new).ratio() >= self.similarity_at_least else good

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
