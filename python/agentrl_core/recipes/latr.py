"""LATR: force rollouts to differ by branching at tokens with a nearly as likely alternative (arXiv:2510.24302).

Grow a tree greedily: branch at tokens with a nearly as likely alternative, and prune branches with similar texts
(`LookaheadBranching`). Then sample all branches to their ends. At first the whole group comes from the tree. In the
scripts this share falls to three, two and one quarter from iterations 100, 200 and 300 on; here it falls linearly.
Advantages are GRPO's; the loss adds 0.01 times the KL to a reference.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, branching: `LookaheadBranching(least=0.25, within=0.15)`; not computed: it needs a model; the tests of rollout
      programs cover it.
    - C2, capacity: `LookaheadBranching`, ordered by rank, then by branch; not computed: for the same reason as C1.
    - C3, pruning: `LookaheadBranching.are_similar`, with the edit distance for Countdown; for mathematics
      `LookaheadBranching(least=0.15, within=0.25, distance=0.0, suffix=0.2, rouge=0.5)`.
    - C4, end of the tree: left out: the public code lowers the required share of complete branches with the length,
      over all prompts together; here each group has its own tree, which ends when it has 0.98 of its branches.
    - C5, hybrid: `Schedule(1.0, 0.25, iterations=300)` for the share; not computed: for the same reason as C1.
    - C6, update: `GroupRelative` and `Policy(kl=KL(0.01))`, clip range 0.2.

Differs:
    - Share of the tree: falls in steps in the scripts, linearly here.
    - Branches that start with a mathematical symbol: left out, the code exempts them from the comparison with their
      parent.

Needs: the reference model.
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
"""Number of tokens that each branch grows between two branching and pruning steps."""


@dataclass(eq=False)
class _Twig:
    """A branch of a growing tree, with its parent, its children and its tokens so far."""

    branch: Branch
    parent: _Twig | None
    birth: int
    """Index of the token, in the first action, at which it left its parent; the two branches differ in this token."""
    tokens: list[int]
    """Tokens of the first action so far."""
    over: bool = False
    """Whether the action has ended."""
    children: list[_Twig] = field(default_factory=list)
    checked: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class LookaheadBranching(Rollout):
    """Branch at tokens with a nearly as likely alternative, and prune similar branches (LATR, arXiv:2510.24302).

    A tree grows greedily from the prompt, during the first action. At a token whose likeliest candidates have the
    probabilities p_1 >= p_2 >= ..., a child branch starts with candidate c = 2 .. `children` + 1 if

        p_c > least   and   p_1 - p_c < within

    and the tree has fewer than k branches (see below). At each token all second candidates are used first, then all
    third ones, in the order of the branches. When a child is 20, 30 and 50 tokens old (`ages`), its tokens since its
    birth are compared with the tokens of its parent at the same positions. If

        edits / length < distance,   common end / length > suffix,   or   F1 of the longest common subsequence > rouge

    the child is pruned, with all its descendants. There is no comparison if one of the two actions has ended by then.
    The tree is done when it has the share `full` of its k branches and none is younger than the largest age, or after
    `tokens` tokens, or when all branches have ended. Missing branches are then forked from the branches that have not
    ended, in order, or started at the prompt if all have ended. Finally all branches continue by ordinary sampling.

    The tree provides the part `share` of the group (eta, a `Schedule` in the paper: 1, 0.75, 0.5, 0.25), which is k =
    round(share * size) branches. The rest of the group starts at the prompt and is sampled as usual.

    The tree selects tokens without sampling: train with recomputed log-probs (`Recipe(old_logprob="recomputed")`).
    Branching and pruning run every ten tokens, so a comparison may come up to nine tokens after the child reached its
    age. Children still start at the exact token of their candidate. Within the same ten tokens, children of older
    branches come first.

    Args:
        share: share of the group that comes from the tree.
        least: tau_abs, lower bound of a candidate's probability.
        within: tau_rel, upper bound of its distance to the largest probability.
        children: largest number of children that start at one token.
        ages: ages, in tokens, at which a child is compared.
        distance: edits per token below which a child is pruned; 0: off.
        suffix: common end per length above which a child is pruned; 1: off.
        rouge: ROUGE-L above which a child is pruned; 1: off.
        full: share of k at which the tree may be done.
        tokens: number of tokens after which the tree is done.

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
        """Grow the tree, then run all branches to their ends."""
        count = round(self.share * group.size)
        grown = await self._tree(group, count) if count else []
        await group.run([*grown, *group.start_many(group.size - count)], self._go_on)

    async def _go_on(self, branch: Branch) -> None:
        """Run a branch from its first action to its end."""
        if branch.has_open_action and not branch.path.cut:
            await branch.submit()
        await self.branch(branch)

    async def _tree(self, group: Group, count: int) -> list[Branch]:
        """Grow a tree and return its `count` branches, each in its first action."""
        greedy = group.sampling(temperature=0.0, top=self.children + 1)
        twigs = [_Twig(group.start(), None, 0, [])]
        reached = 0
        while reached < self.tokens and any(not twig.over for twig in twigs):
            reached = min(reached + CHUNK, self.tokens)
            fresh = list(twigs)
            while fresh:
                behind = [twig for twig in fresh if not twig.over and len(twig.tokens) < reached]
                requests = [
                    twig.branch.generate(sampling=greedy, max_tokens=reached - len(twig.tokens)) for twig in behind
                ]
                segments = await gather_or_cancel(requests)
                fresh = self._born(twigs, list(zip(behind, segments, strict=True)), count)
                twigs += fresh
            self._prune(twigs)
            twigs = [twig for twig in twigs if not twig.branch.over]
            young = any(twig.parent and reached - twig.birth < max(self.ages) for twig in twigs if not twig.over)
            if len(twigs) >= self.full * count and not young:
                break
        branches = [twig.branch for twig in twigs]
        running = [twig.branch for twig in twigs if not twig.over]
        for place in range(count - len(branches)):
            if not running:
                branches.append(group.start())
                continue
            branch = running[place % len(running)]
            branches.append(branch.fork(branch.position(len(branch.tokens))))
        return branches

    def _born(self, twigs: list[_Twig], segments: list[tuple[_Twig, Segment | None]], count: int) -> list[_Twig]:
        """Add the generated tokens to the branches, and return new children that start at likely alternatives."""
        born: list[_Twig] = []
        candidates: list[tuple[int, int, int, _Twig, int]] = []
        for order, (twig, segment) in enumerate(segments):
            if segment is None:
                twig.over = True
                continue
            if segment.top is None:
                raise InvalidInputError(
                    f"{self.title()}: the engine does not report the likeliest tokens; use one that supports "
                    "Sampling(top=)"
                )
            first = len(twig.tokens)
            twig.tokens += segment.tokens.tolist()
            twig.over = segment.finish_reason == "stop"
            probability = np.exp(segment.top.logprobs.astype(np.float64))
            likely = (probability > self.least) & (probability[:, :1] - probability < self.within)
            for place, rank in np.argwhere(likely[:, 1:]).tolist():
                token = int(segment.top.tokens[place, rank + 1])
                candidates.append((first + place, rank, order, twig, token))
        for place, _, _, twig, token in sorted(candidates, key=lambda candidate: candidate[:3]):
            if len(twigs) + len(born) >= count or token in twig.branch.path.stop_tokens:
                continue
            start = twig.branch.turns[0].begin if twig.branch.turns else twig.branch.path.here
            position = twig.branch.position((0 if start is None else start.tokens) + place)
            branch = twig.branch.fork(position)
            branch.write(np.array([token], np.int32), ends=False)
            child = _Twig(branch, twig, place, [*twig.tokens[:place], token])
            twig.children.append(child)
            born.append(child)
        return born

    def _prune(self, twigs: list[_Twig]) -> None:
        """Stop children that are too similar to their parents."""
        for twig in twigs:
            if twig.parent is None or twig.branch.over:
                continue
            for age in self.ages:
                child_tokens, parent_tokens = (
                    each.tokens[twig.birth : twig.birth + age] for each in (twig, twig.parent)
                )
                if age in twig.checked or min(len(child_tokens), len(parent_tokens)) < age:
                    continue
                twig.checked.add(age)
                ended = any(each.over and len(each.tokens) <= twig.birth + age for each in (twig, twig.parent))
                if not ended and self.are_similar(np.array(child_tokens, np.int32), np.array(parent_tokens, np.int32)):
                    _stop(twig)
                    break

    def are_similar(self, own: NDArray[np.int32], other: NDArray[np.int32]) -> bool:
        """Return whether two token sequences of equal length are too similar."""
        edits, end, common = likeness(own, other)
        # The lengths are equal, so precision, recall and F1 of the subsequence are equal too.
        length = len(own)
        return edits / length < self.distance or end / length > self.suffix or common / length > self.rouge


def _stop(twig: _Twig) -> None:
    """Prune a branch and all its descendants."""
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
