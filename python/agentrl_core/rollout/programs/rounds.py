"""Rounds: start members, read their scores, and start more if a rule requests it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Component
from agentrl_core.component.options import option
from agentrl_core.env.base import Content, ExtraColumn
from agentrl_core.rollout.branch import Branch, Prompt
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.programs.hints import Hint, HintSource, insert_text


@dataclass(frozen=True)
class RolloutSpec(Component):
    """Specification of rollouts that share prompt, sampling and role; several can be chained.

    `RolloutSpec(7) + RolloutSpec(1, ...)` chains two kinds.

    Args:
        count: number of rollouts; None: the group size.
        fact: draw column that marks these rollouts: `value`; 0 for other rollouts, and if there was no hint or prefill.
            Empty: no column.
        value: value of the fact.
        hint: source of a hint in the prompt.
        template: template of the prompt: `{prompt}` is that of the environment, `{text}` the hint.
        train_without_hint: whether to train the rollouts as if the prompt had no hint (`Branch.with_prompt`): the
            sampled branches stay in the files without draws, and log-probs must be recomputed.
        prefill: source of the start of the first action, which the policy continues; a whole solution is used to its
            end.
        prefill_trained: whether the prefill is trained.
        temperature: sampling temperature; 0 is greedy. None: the collector's.
        role: `member`; `baseline`: scored, never trained; `helper`: stored, never drawn.
        others: further specifications.

    Raises:
        RecipeError: an option is out of range, or `train_without_hint` without `hint`.

    Example:
        >>> from agentrl_core.rollout import RolloutSpec
        >>> kinds = RolloutSpec(1) + RolloutSpec(1, temperature=0.0, role="baseline", fact="greedy")
        >>> [(kind.count, kind.fact) for kind in kinds], kinds.total(group_size=8)
        ([(1, ''), (1, 'greedy')], 2)
    """

    phase: ClassVar[str] = "rollout"

    count: int | None = option(None, at_least=1)
    fact: str = ""
    value: float = 1.0
    hint: HintSource | None = None
    template: str = option("{text}\n\n{prompt}", filled=True)
    train_without_hint: bool = False
    prefill: HintSource | None = None
    prefill_trained: bool = False
    temperature: float | None = option(None, at_least=0)
    role: Literal["member", "baseline", "helper"] = "member"
    others: RolloutSpec | None = None

    def check_options(self) -> None:
        """Require a hint for `train_without_hint`."""
        self.require(
            self.hint is not None or not self.train_without_hint,
            "train_without_hint",
            "give a hint, or leave train_without_hint False",
        )

    def __add__(self, other: RolloutSpec) -> RolloutSpec:
        """Chain these rollouts with others."""
        return replace(self, others=other if self.others is None else self.others + other)

    def __iter__(self) -> Iterator[RolloutSpec]:
        """Iterate over this specification and those chained to it."""
        yield self
        if self.others is not None:
            yield from self.others

    @property
    def facts(self) -> dict[str, ExtraColumn]:
        """Facts that mark these rollouts, in the form in which a program declares facts."""
        return {kind.fact: ExtraColumn("trajectory") for kind in self if kind.fact}

    def total(self, group_size: int) -> int:
        """Return the number of rollouts, without helpers."""
        return sum(group_size if kind.count is None else kind.count for kind in self if kind.role != "helper")

    async def run(self, group: Group, program: Rollout, of: Sequence[Branch] = ()) -> list[Branch]:
        """Run all rollouts of the specification concurrently, each to its end, and return their branches.

        Args:
            group: the group in which they run.
            program: the program whose `branch` drives them, and which declares their facts.
            of: the branches that hints are about.
        """
        branches: list[Branch] = []
        helped: dict[str, tuple[RolloutSpec, Hint | None, Hint | None]] = {}
        for kind in self:
            hint = None if kind.hint is None else await kind.hint.hint(group, of)
            prefill = None if kind.prefill is None else await kind.prefill.hint(group, of)
            started = kind.start(group, program, hint, prefill)
            branches += started
            helped |= {branch.name: (kind, hint, prefill) for branch in started}

        async def drive(branch: Branch) -> None:
            kind, _, prefill = helped[branch.name]
            if prefill is not None:
                await write_prefill(branch, prefill, trained=kind.prefill_trained)
            if not branch.over:
                await program.branch(branch)

        await group.run(branches, drive)
        return [
            branch.with_prompt(None) if _train_without_hint(branch, *helped[branch.name]) else branch
            for branch in branches
        ]

    def start(self, group: Group, program: Rollout, shown: Hint | None, begin: Hint | None) -> list[Branch]:
        """Start the rollouts of this specification with their hint in the prompt; `run` writes the prefill `begin`."""
        facts = {name: 0.0 for name, fact in program.facts.items() if fact.kind == "number"}
        if self.fact and (self.hint is None) == (shown is None) and (self.prefill is None) == (begin is None):
            facts[self.fact] = self.value
        return group.start_many(
            group.size if self.count is None else self.count,
            None if shown is None else self._prompt(shown),
            sampling=None if self.temperature is None else group.sampling(temperature=self.temperature),
            role=self.role,
            facts=facts,
        )

    def _prompt(self, hint: Hint) -> Prompt:
        def prompt(content: Content) -> Content:
            return insert_text(content, self.template, hint.text)

        return prompt


class RoundResult(NamedTuple):
    """Result of a round: its branches and their scores.

    Attributes:
        branches: branches in order.
        scores: score of each after the round; NaN: none.
    """

    branches: list[Branch]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Rounds(Rollout):
    """Run rounds of rollouts; after each, a rule may start more, based on the scores.

    Subclasses that allocate by results override `next_round`, which returns the next members and drops others. By
    default there is one round.

    Args:
        members: rollouts of the first round.
        column: draw column of the scores, made by phase reward, or a fact.
        solved_above: a member has solved the task if its value is larger.

    Raises:
        RecipeError: an option is out of range.

    Example:
        Repeat the round once if no member solved the task:

        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds
        >>> @dataclass(frozen=True)
        ... class Twice(Rounds):
        ...     async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        ...         again = len(rounds) == 1 and not self.solved(rounds[0]).any()
        ...         return self.members if again else await super().next_round(group, rounds)
        >>> Twice(RolloutSpec(4)).final_group_size(group_size=8)
        4
    """

    members: RolloutSpec = RolloutSpec()
    column: str = option("score", filled=True)
    solved_above: float = 0.0

    def __post_init__(self) -> None:
        """Declare the facts of the members of the first round."""
        super().__post_init__()
        object.__setattr__(self, "facts", {**type(self).facts, **self.members.facts})

    def final_group_size(self, group_size: int) -> int:
        """Return the number of members of the first round."""
        return self.members.total(group_size)

    async def group(self, group: Group) -> None:
        """Run rounds until `next_round` returns None."""
        rounds: list[RoundResult] = []
        while (members := await self.next_round(group, rounds)) is not None:
            last = rounds[-1].branches if rounds else []
            branches = await members.run(group, self, last)
            rounds.append(RoundResult(branches, await group.score(self.column, branches)))

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the members of the next round of a group, or None to end it. By default: `members`, once.

        Args:
            group: the group, from which members may be dropped.
            rounds: results so far; empty before the first round.
        """
        del group
        return None if rounds else self.members

    def solved(self, tried: RoundResult) -> NDArray[np.bool_]:
        """Return, for each branch of a round, whether it solved the task."""
        return np.asarray(tried.scores > self.solved_above)


async def write_prefill(branch: Branch, begin: Hint, *, trained: bool) -> None:
    """Write the actions of a hint into a branch; an unfinished last one stays open, and `Branch.turn` continues it."""
    complete_actions = begin.actions if begin.ends else begin.actions[:-1]
    for action in complete_actions:
        if branch.over:
            return
        await branch.generate(max_tokens=0)
        if not branch.over:
            branch.write(action, trained=trained)
            await branch.submit()
    if len(complete_actions) < len(begin.actions) and not branch.over:
        await branch.generate(max_tokens=0)
        if not branch.over:
            branch.write(begin.actions[-1], trained=trained, ends=False, share=begin.share)


def _train_without_hint(branch: Branch, kind: RolloutSpec, hint: Hint | None, _begin: Hint | None) -> bool:
    return kind.train_without_hint and hint is not None and branch.status in ("finished", "truncated")
