"""ETTRL: train at test time without labels, with forks at the policy's most uncertain tokens (arXiv:2508.11356).

    A = Y (r - mean) / std of the group,   Y = 1 + (mean H - H) / mean H,   H = mean entropy of the draw's tokens

M whole rollouts; each is left before its 2 most uncertain tokens by 2 forks: M (1 + 4) answers, of which the most
common is taken for the right one. Certain answers count more than uncertain ones, whether they are right or wrong; a
draw of more than twice the group's mean entropy has its advantage reversed, by the formula. M is as many as fit into
the group size: 12 for 64. A batch has 8 optimizer steps, as in the script of TTRL.

Equations:
    Read: notes on the paper, and the code of TTRL, the method that it changes.

    - C1, majority reward: `AnswerAgreement(kind="majority")`.
    - N1, entropy-fork tree: `TokenForks`; M = 12, N = 2 and B = 2 in the experiments, by one of the notes.
    - N2, advantage of the group: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - N3, clipped advantage: left out: the other variant; `GroupRelative(at_most=2.0)`, a bound of the same note.
    - N4, advantage by relative entropy: `EntropyScaled(kind="relative")`; `at_least=0.0` bounds the factor at 0, as the
      notes do.

Differs:
    - Minibatches: of one prompt each in TTRL's script; random draws here.
    - Clip range: not stated; 0.2 here.
    - KL: a penalty of 0.001 k3 in TTRL's code; not stated for ETTRL; none here.
    - Unreadable answer: an answer of its own among the votes in TTRL's code; no vote here.
    - Votes: 64 in TTRL, of which 32 are trained; all leaves vote and are trained here.

Needs: the facts `answer_cluster` and `answer_parsed`; entropies of the sampled tokens.
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
    """Cheaper exploration: whole trajectories first, then more that leave them at their most uncertain tokens.

    M roots are rolled out to their ends. Of each the N sampled tokens with the largest entropy are chosen (the earlier
    of equals), and B forks leave before each of them: M (1 + B N) trajectories in the end. With `width` above 1 a token
    has the mean entropy of the `width` tokens from it on (fewer at the end), as in ARES. Sources: ETTRL,
    arXiv:2508.11356 (B = 2; N = 3 or 2); ARES, arXiv:2510.08457 (`width=4`), which gives no number.

    Args:
        roots: M; None: as many as fit into the size that the group was asked for, at least one.
        positions: N.
        copies: B.
        width: of the windows, in tokens.

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
        """M (1 + B N)."""
        return self._roots(group_size) * (1 + self.copies * self.positions)

    async def group(self, group: Group) -> None:
        """The roots, then all forks side by side."""
        roots = await group.run(group.start_many(self._roots(group.size)))
        forks: list[Branch] = []
        for root in roots:
            if root.status in ("finished", "truncated"):
                for place, entropy in self.places(root):
                    forks += root.fork_many(self.copies, at=place, score=entropy)
        await group.run(forks)

    def places(self, root: Branch) -> list[tuple[Position, float]]:
        """Where forks leave a root, with the entropy there, in the order of the path.

        Raises:
            InvalidInputError: the entropy of a sampled token is not known.
        """
        tokens: list[np.ndarray] = []
        entropies: list[np.ndarray] = []
        for turn in root.turns:
            begin = turn.begin.tokens + turn.length - sum(len(segment.tokens) for segment in turn.segments)
            for segment in turn.segments:
                if segment.entropies is None:
                    raise InvalidInputError(
                        f"{self.title()}: the entropies of branch {root.name} are not known; use an engine that "
                        "reports entropies"
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
