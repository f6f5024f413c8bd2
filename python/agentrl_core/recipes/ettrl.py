"""ETTRL: train at test time without labels, with forks at the policy's most uncertain tokens (arXiv:2508.11356).

    A = Y (r - mean) / std of the group,   Y = 1 + (mean H - H) / mean H,   H = mean entropy of the draw's tokens

First M whole trajectories are rolled out. Each is forked 2 times before each of its 2 most uncertain tokens, which
gives M (1 + 4) answers. The most common answer is taken as the right one. Certain answers count more than uncertain
ones, whether they are right or wrong. By the formula, the advantage of a draw with more than twice the group's mean
entropy changes its sign. M is the largest number that fits into the group size: 12 for 64. A batch has 8 optimizer
steps, as in TTRL's script.

Equations:
    Read: notes on the paper, and the code of TTRL, the method that ETTRL changes.

    - C1, majority reward: `AnswerAgreement(kind="majority")`.
    - N1, entropy-fork tree: `TokenForks`; the experiments use M = 12, N = 2 and B = 2, according to one of the notes.
    - N2, advantage of the group: `GroupRelative`; its std divides by n - 1, and 1e-6 is added to it.
    - N3, clipped advantage: left out: it is the paper's other variant, `GroupRelative(at_most=2.0)`, with a bound from
      the same note.
    - N4, advantage by relative entropy: `EntropyScaled(kind="relative")`; the option `at_least=0.0` would bound the
      factor at 0, as in the notes.

Differs:
    - Minibatches: of one prompt each in TTRL's script; of random draws here.
    - Clip range: not stated; 0.2 here.
    - KL: a penalty of 0.001 k3 in TTRL's code; not stated for ETTRL; none here.
    - Unreadable answer: in TTRL's code it votes as a separate answer; here it does not vote.
    - Votes: 64 in TTRL, of which 32 are trained; here all leaves vote and are trained.

Needs: the facts `answer_cluster` and `answer_parsed`; the entropies of the sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy
from agentrl_core.operators.sequences import window_means
from agentrl_core.reward import AnswerAgreement
from agentrl_core.rollout import Branch, Group, Position, Rollout
from agentrl_core.weight import EntropyScaled


@dataclass(frozen=True)
class TokenForks(Rollout):
    """Explore at lower cost: roll out whole trajectories, then fork them before their most uncertain tokens.

    M roots are rolled out to their ends. In each root, the N sampled tokens with the largest entropy are chosen (on
    ties, the earlier token), and B forks start before each of them: M (1 + B N) trajectories in total. If `width` is
    above 1, the entropy of a token is the mean over the `width` tokens that begin with it (fewer at the end), as in
    ARES. Sources: ETTRL, arXiv:2508.11356 (B = 2; N = 3 or 2); ARES, arXiv:2510.08457 (`width=4`; the paper does not
    give the width).

    Args:
        roots: M; None: the largest number that fits into the requested group size, at least one.
        positions: N.
        copies: B.
        width: length of the windows, in tokens.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ettrl import TokenForks
        >>> TokenForks().final_group_size(group_size=64)  # 9 roots with 6 forks each
        63
    """

    roots: int | None = option(None, at_least=1)
    positions: int = option(3, at_least=1)
    copies: int = option(2, at_least=1)
    width: int = option(1, at_least=1)

    def final_group_size(self, group_size: int) -> int:
        """Return the largest number of trajectories: roots * (1 + copies * positions)."""
        return self._roots(group_size) * (1 + self.copies * self.positions)

    async def group(self, group: Group) -> None:
        """Run the roots, then all forks concurrently."""
        roots = await group.run(group.start_many(self._roots(group.size)))
        forks: list[Branch] = []
        for root in roots:
            if root.status in ("finished", "truncated"):
                for place, entropy in self.places(root):
                    forks += root.fork_many(self.copies, at=place, score=entropy)
        await group.run(forks)

    def places(self, root: Branch) -> list[tuple[Position, float]]:
        """Return the positions at which a root is forked, with their entropies, in the order of the tokens.

        Raises:
            InvalidInputError: the entropy of a sampled token is unknown.
        """
        tokens: list[np.ndarray] = []
        entropies: list[np.ndarray] = []
        for turn in root.turns:
            begin = turn.begin.tokens + turn.length - sum(len(segment.tokens) for segment in turn.segments)
            for segment in turn.segments:
                if segment.entropies is None:
                    raise InvalidInputError(
                        f"{self.title()}: the entropies of branch {root.name} are not known; use an engine that "
                        "reports entropies (for VllmServer, entropies=True)"
                    )
                tokens.append(begin + np.arange(len(segment.tokens)))
                entropies.append(np.asarray(segment.entropies, np.float64))
                begin += len(segment.tokens)
        if not tokens:
            return []
        places, values = np.concatenate(tokens), np.concatenate(entropies)
        if self.width > 1:
            offsets = np.cumsum([0, *map(len, entropies)], dtype=np.int64)
            values = window_means(values, offsets, self.width)
        chosen = np.sort(np.argsort(-values, kind="stable")[: self.positions])
        return [(root.position(int(places[row])), float(values[row])) for row in chosen]

    def _roots(self, group_size: int) -> int:
        return max(1, group_size // (1 + self.copies * self.positions)) if self.roots is None else self.roots


ETTRL = Recipe(
    name="ettrl",
    source="arXiv:2508.11356",
    rollout=TokenForks(positions=2, copies=2),
    reward=AnswerAgreement(kind="majority"),
    advantage=GroupRelative(),
    weight=EntropyScaled(level="draw", kind="relative", group_by="group_id", coefficient=1.0, at_least=None),
    loss=Policy(),
    minibatches=8,
)
