"""OTR, one-token rollouts: treat every token of a demonstration as a task with sampled one-token answers.

    K tokens a are sampled after each prefix of the demonstration, R = 1 if a is its next token, otherwise -0.1
    L = - mean over all R log p(a) = - mean over prefixes of 1/K sum over different a of count(a) R(a) log p(a)

So training on supervised data becomes on-policy: the loss does not force tokens on the policy that it would never
sample. K is 256, the sampling temperature 1.3, and the training temperature 1; there is no baseline. Equal candidates
are one draw, weighted by how often the token was sampled. If no candidate is right, the probabilities of all are
reduced, without a bound. K, temperature and -0.1 are not certain.

Equations:
    Read: the abstract, and notes and a review of others.

    - N1, reward of a candidate: `OutcomeScore(success=1.0, failure=-0.1)`.
    - N2, loss of a token: `Policy(surrogate=Reinforce())`, each candidate weighted by how often it was sampled.
    - N3, sampling of candidates: `OneToken(temperature=1.3)`; the loss has `UnitTemperature` and no ratio.
    - N4, loss of a batch: one mean over the candidates; each token of a demonstration has K of them.

Source: One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient (arXiv:2509.26313). Needs: tasks
with a demonstration (`Task.solution`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.reward import OutcomeScore, UnitTemperature
from agentrl_core.rollout import Branch, Group, Prefix, Rollout
from agentrl_core.weight import ColumnScaled


@dataclass(frozen=True)
class OneToken(Rollout):
    """Sample alternatives to each token of a demonstration (`Task.solution`).

    A draw is one token after a prefix of the demonstration; the prefix is not trained. The draw is a success if its
    token is the next one of the demonstration. Candidates with the same token are one draw; the draw column `count` has
    their number.

    Args:
        candidates: K, the number of tokens that are sampled after each prefix.
        temperature: sampling temperature, above 0.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: a task has no demonstration.

    Example:
        >>> from agentrl_core.recipes.otr import OneToken
        >>> OneToken(candidates=64).temperature
        1.3
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"count": ExtraColumn("trajectory")}

    candidates: int = option(256, at_least=1)
    temperature: float = option(1.3, above=0)

    async def group(self, group: Group) -> None:
        """Write the demonstration, then sample candidates in place of each of its tokens, in order."""
        if not group.task.solution:
            raise InvalidInputError(
                f"{self.title()}: task {group.task.task_id!r} has no demonstration; give its actions as "
                "Task(solution=...)"
            )
        sampling = group.sampling(temperature=self.temperature)
        demonstration = group.start(prefix=Prefix(group.task.solution, title="demonstration"), sampling=sampling)
        await demonstration.begin()
        for turn in demonstration.turns:
            for token in range(turn.begin.tokens, turn.begin.tokens + turn.length):
                candidates = demonstration.fork_many(self.candidates, at=demonstration.position(token))
                await group.advance(candidates, tokens=1)
                self.counted(candidates, int(demonstration.tokens[token]))
        demonstration.drop("a demonstration is not trained")

    def counted(self, candidates: Sequence[Branch], right: int) -> None:
        """Finish one candidate of each token, with the number of equal candidates, and stop its duplicates."""
        by_token: dict[int, list[Branch]] = {}
        for candidate in candidates:
            if not candidate.over:
                by_token.setdefault(int(candidate.tokens[-1]), []).append(candidate)
        for token, (first, *others) in by_token.items():
            first.finish(success=token == right, facts={"count": 1 + len(others)})
            for other in others:
                other.stop("another candidate is the same token")


OTR = Recipe(
    name="otr",
    source="arXiv:2509.26313",
    rollout=OneToken(),
    reward=(OutcomeScore(success=1.0, failure=-0.1), UnitTemperature()),
    advantage=GroupRelative(center="none", scale="none"),
    weight=ColumnScaled(column="count", mean_one=True),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
