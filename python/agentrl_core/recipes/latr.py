"""LATR: force rollouts to differ by branching at tokens with a nearly as likely alternative (arXiv:2510.24302).

A tree grows greedily, branches where another token is nearly as likely, and drops the branches that come to the same
(`LookaheadBranching`); then all are sampled to their ends. The tree makes all of the group at first, and three,
two and one quarter of it from iterations 100, 200 and 300 on, as a line here. Credit is that of GRPO; the loss has 0.01
of the KL to a reference.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, branching: `LookaheadBranching(least=0.25, within=0.15)`; not computed: it needs a model, as in the tests of
      rollout programs.
    - C2, capacity: `LookaheadBranching`, in the order of rank, then of branch; not computed: the same.
    - C3, pruning: `LookaheadBranching.alike`, by the edit distance of Countdown; for mathematics
      `LookaheadBranching(least=0.15, within=0.25, distance=0.0, suffix=0.2, rouge=0.5)`.
    - C4, end of the tree: left out: the code's share of full places falls with the length and counts all prompts
      together; here each group has its own tree, which is done at 0.98 of its places.
    - C5, hybrid: `Schedule(1.0, 0.25, iterations=300)` of the share; not computed: the same.
    - C6, update: `GroupRelative` and `Policy(kl=KL(0.01))`, clip range 0.2.

Differs:
    - Share of the tree: falls in steps in the scripts, in a line here.
    - Branches that start with a mathematical symbol: left out, the code does not compare them.

Needs: the model reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.engine import Segment
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.operators.sequences import likeness
from agentrl_core.rollout import Branch, Group, Rollout, gather_or_cancel

CHUNK = 10
"""Tokens between two looks."""


@dataclass(eq=False)
class _Twig:
    """A branch while its tree grows."""

    branch: Branch
    parent: _Twig | None
    birth: int
    """Token of the first action at which it left its parent; its own one is another than the parent's."""
    tokens: list[int]
    """Of the first action so far."""
    over: bool = False
    """Whether the action has ended."""
    children: list[_Twig] = field(default_factory=list)
    checked: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class LookaheadBranching(Rollout):
    """Branches where a second token is nearly as likely, and prunes similar ones (LATR, arXiv:2510.24302).

    A tree grows greedily from the prompt, in the first action. At a token whose likeliest candidates have the
    probabilities p_1 >= p_2 >= ..., a child leaves with candidate c = 2 .. `children` + 1 if

        p_c > least   and   p_1 - p_c < within

    as long as the tree has fewer than k branches; at each token first all second candidates, then all third ones, in
    the order of the branches. When a child is 20, 30 and 50 tokens old (`ages`), its tokens since its birth are
    compared with those of its parent at the same places: where

        edits / length < distance,   common end / length > suffix,   or   F1 of the longest common subsequence > rouge

    it is pruned, with all that came of it. Nothing is compared where the action has ended. The tree is done when it
    has `full` of its k branches and none is younger than the largest age, or after `tokens` tokens, or when all have
    ended. Places that are left are filled with forks of the branches, in order. Then all go on by ordinary sampling.

    Of the group `share` (eta, a `Schedule` in the paper: 1, 0.75, 0.5, 0.25) comes of the tree, k = round(share * size)
    branches; the others start at the prompt and are sampled plainly.

    The tokens that the tree chose were not sampled: train with log-probs that are recomputed
    (`Recipe(old_logprob="recomputed")`). A look is every ten tokens, so that what a child is compared by is complete up
    to nine tokens later; children are born where their tokens were, and those of the same ten tokens after those of
    branches that are older.

    Args:
        share: of the group.
        least: tau_abs.
        within: tau_rel.
        children: of one token, at most.
        ages: in tokens.
        distance: edits for each token; 0: not compared so.
        suffix: of the length; 1: not compared so.
        rouge: ROUGE-L; 1: not compared so.
        full: of k.
        tokens: after which the tree is done.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.latr import LookaheadBranching
        >>> LookaheadBranching(least=0.15, within=0.25).final_group_size(group_size=8)
        8
    """

    share: float = option(1.0, at_least=0, at_most=1)
    least: float = option(0.25, at_least=0, at_most=1)
    within: float = option(0.15, at_least=0, at_most=1)
    children: int = option(2, at_least=1)
    ages: tuple[int, ...] = option((20, 30, 50), at_least=1)
    distance: float = option(0.4, at_least=0, at_most=1)
    suffix: float = option(1.0, at_least=0, at_most=1)
    rouge: float = option(1.0, at_least=0, at_most=1)
    full: float = option(0.98, above=0, at_most=1)
    tokens: int = option(512, at_least=1)

    async def group(self, group: Group) -> None:
        """The tree, then all to their ends."""
        count = round(self.share * group.size)
        grown = await self._tree(group, count) if count else []
        await group.run([*grown, *group.start_many(group.size - count)], self._go_on)

    async def _go_on(self, branch: Branch) -> None:
        """From the first action to the end."""
        if branch.has_open_action and not branch.path.cut:
            await branch.submit()
        await self.branch(branch)

    async def _tree(self, group: Group, count: int) -> list[Branch]:
        """The branches of the tree, as many as asked for, each in its first action."""
        greedy = group.sampling(temperature=0.0, top=self.children + 1)
        twigs = [_Twig(group.start(), None, 0, [])]
        reached = 0
        while reached < self.tokens and any(not twig.over for twig in twigs):
            reached = min(reached + CHUNK, self.tokens)
            fresh = list(twigs)
            while fresh:
                behind = [twig for twig in fresh if not twig.over and len(twig.tokens) < reached]
                asked = [
                    twig.branch.generate(sampling=greedy, max_tokens=reached - len(twig.tokens)) for twig in behind
                ]
                segments = await gather_or_cancel(asked)
                fresh = self._born(twigs, list(zip(behind, segments, strict=True)), count)
                twigs += fresh
            self._prune(twigs)
            twigs = [twig for twig in twigs if not twig.branch.over]
            young = any(twig.parent and reached - twig.birth < max(self.ages) for twig in twigs if not twig.over)
            if len(twigs) >= self.full * count and not young:
                break
        live = [twig.branch for twig in twigs]
        going = [twig.branch for twig in twigs if not twig.over]
        for place in range(count - len(live)):
            if not going:
                live.append(group.start())
                continue
            branch = going[place % len(going)]
            live.append(branch.fork(branch.position(len(branch.tokens))))
        return live

    def _born(self, twigs: list[_Twig], said: list[tuple[_Twig, Segment | None]], count: int) -> list[_Twig]:
        """Take what was generated, and have children leave where others are likely."""
        born: list[_Twig] = []
        candidates: list[tuple[int, int, int, _Twig, int]] = []
        for order, (twig, segment) in enumerate(said):
            if segment is None:
                twig.over = True
                continue
            if segment.top is None:
                raise InvalidInputError(
                    f"{self.title()}: the engine does not report the likeliest tokens; use one with Sampling(top=)"
                )
            first = len(twig.tokens)
            twig.tokens += segment.tokens.tolist()
            twig.over = segment.finish_reason == "stop"
            probability = np.exp(segment.top.logprobs.astype(np.float64))
            near = (probability > self.least) & (probability[:, :1] - probability < self.within)
            for place, rank in np.argwhere(near[:, 1:]).tolist():
                token = int(segment.top.tokens[place, rank + 1])
                candidates.append((first + place, rank, order, twig, token))
        for place, _, _, twig, token in sorted(candidates, key=lambda candidate: candidate[:3]):
            if len(twigs) + len(born) >= count or token in twig.branch.path.stop_tokens:
                continue
            behind = twig.branch.turns[0].begin if twig.branch.turns else twig.branch.path.here
            at = twig.branch.position((0 if behind is None else behind.tokens) + place)
            branch = twig.branch.fork(at)
            branch.write(np.array([token], np.int32), ends=False)
            child = _Twig(branch, twig, place, [*twig.tokens[:place], token])
            twig.children.append(child)
            born.append(child)
        return born

    def _prune(self, twigs: list[_Twig]) -> None:
        """Stop the children that are too like their parents."""
        for twig in twigs:
            if twig.parent is None or twig.branch.over:
                continue
            for age in self.ages:
                own, other = (each.tokens[twig.birth : twig.birth + age] for each in (twig, twig.parent))
                if age in twig.checked or min(len(own), len(other)) < age:
                    continue
                twig.checked.add(age)
                ended = any(each.over and len(each.tokens) <= twig.birth + age for each in (twig, twig.parent))
                if not ended and self.alike(np.array(own, np.int32), np.array(other, np.int32)):
                    _stop(twig)
                    break

    def alike(self, own: NDArray[np.int32], other: NDArray[np.int32]) -> bool:
        """Return whether two runs of tokens of one length are too much the same."""
        edits, end, common = likeness(own, other)
        # Both have the same length: precision, recall and F1 of the subsequence are one number.
        length = len(own)
        return edits / length < self.distance or end / length > self.suffix or common / length > self.rouge


def _stop(twig: _Twig) -> None:
    """Prune a branch and all that came of it."""
    for child in twig.children:
        _stop(child)
    twig.branch.stop("lookahead")


LATR = Recipe(
    name="latr",
    source="arXiv:2510.24302",
    rollout=LookaheadBranching(share=Schedule(1.0, 0.25, iterations=300)),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2), kl=KL(0.01)),
    old_logprob="recomputed",
)
