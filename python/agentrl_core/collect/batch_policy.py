"""When the batch of an iteration is cut, and what becomes of what is in flight then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from agentrl_core.collect.recorded_episode import EnvironmentHandle
from agentrl_core.component.schedule import Schedule
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class BatchPolicy:
    """When the batch of an iteration is cut, and what becomes of the groups that are in flight then.

    Of N groups that are wanted, `oversample` N are in flight: those that were carried over, and new ones for the rest.
    As soon as N of them have ended, the batch is cut. What is being said ends as it stands; the groups that have not
    ended (and those that ended too late to be wanted) are carried over: they go on in the next iteration, before new
    ones, under its weights, from everything that they asked and got. Nothing that was sampled is lost, and nobody waits
    for the longest episode.

    This is consumption in the order of **arrival**, and it is biased: the first batches have more of the short episodes
    than the tasks have, and the long ones come later, under newer weights. `max_carryovers` bounds that.
    `oversample=1`, the default, waits for all that is in flight, and has no bias.

    With `max_new_tokens` the batch is cut, too, when each trajectory that goes on has said so many tokens in this
    iteration: it is drawn as it stands, as truncated and with a `success` of NaN, and goes on in the next one, where it
    is drawn again with what it says then. `recipes.t_ppo.LatestVersionOnly` trains
    only the tokens that the iteration added.

    One trajectory is never in two batches, but for windows; what is dropped is kept in the files, and drawn by nobody.
    The metrics of an iteration say what became of the tokens (`tokens.generated`, `consumed`, `dropped`, …).

    Sources: APRIL arXiv:2509.18521 (`BatchPolicy(oversample=2.0)`: begin twice as many, stop at N, carry over); T-PPO
    arXiv:2506.15050 (`BatchPolicy(max_new_tokens=l)`); RollArt (`BatchPolicy(oversample=1.25, max_carryovers=1,
    stragglers="drop")`: redundant environments, and a bound of age behind which a trajectory is aborted); LOOP
    arXiv:2502.01600 (`max_carryovers=0, stragglers="drop"`).

    Args:
        oversample: groups in flight for each one that is wanted, at least 1.
        max_new_tokens: most tokens that a trajectory says in an iteration; None: no limit.
        max_carryovers: most iterations into which a group is carried; None: as many as it takes.
        stragglers: what becomes of a group that has not ended in the last of them: the cut waits for it (`wait`; a
            batch then has more groups than wanted, if more are due), or it is stopped and drawn by nobody (`drop`,
            which favours short episodes for good).

    Raises:
        InvalidInputError: an argument is not what it should be.

    Example:
        >>> from agentrl_core.collect import BatchPolicy
        >>> april = BatchPolicy(oversample=2.0)
        >>> april.in_flight(32)
        64
        >>> # Seven of eight have ended, the third among them first; four are wanted, and the last one is due.
        >>> BatchPolicy(oversample=2.0, max_carryovers=1).select_groups([2, 0, 1, 4, 5, 6, 3], wanted=4, due={7})
        >>> BatchPolicy(oversample=2.0, max_carryovers=1).select_groups([2, 0, 1, 4, 5, 6, 7], wanted=4, due={7})
        [0, 1, 2, 7]
    """

    oversample: float = 1.0
    max_new_tokens: int | None = None
    max_carryovers: int | None = None
    stragglers: Literal["wait", "drop"] = "wait"

    def __post_init__(self) -> None:
        if (
            isinstance(self.oversample, bool)
            or not isinstance(self.oversample, Real)
            or not 1 <= self.oversample < float("inf")
        ):
            raise InvalidInputError(f"BatchPolicy: oversample={self.oversample!r}; give a number of at least 1")
        for name, least in (("max_new_tokens", 1), ("max_carryovers", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
                raise InvalidInputError(
                    f"BatchPolicy: {name}={value!r}; give a whole number of at least {least}, or None"
                )
        if self.stragglers not in ("wait", "drop"):
            raise InvalidInputError(f"BatchPolicy: stragglers={self.stragglers!r}; give 'wait' or 'drop'")
        if self.stragglers == "drop" and self.max_carryovers is None:
            raise InvalidInputError(
                "BatchPolicy: stragglers='drop' needs the iterations that a group may take; give max_carryovers="
            )

    @property
    def is_synchronous(self) -> bool:
        """Whether nothing is in flight behind a cut."""
        return self.oversample == 1 and self.max_new_tokens is None

    def in_flight(self, wanted: int) -> int:
        """How many groups are in flight where so many are wanted."""
        return round(self.oversample * wanted)

    def is_due(self, carried: int) -> bool:
        """Whether a group that was carried so often cannot be carried again."""
        return self.max_carryovers is not None and carried >= self.max_carryovers

    def select_groups(self, ended: list[int], *, wanted: int, due: Collection[int]) -> list[int] | None:
        """Which groups the batch has: those that are due, then whoever ended first; None: it is not cut yet.

        Args:
            ended: the groups that have ended, in that order.
            wanted: how many are needed.
            due: the groups that cannot be carried over again.
        """
        overdue = [group for group in ended if group in due]
        if len(ended) < wanted or (self.stragglers == "wait" and len(overdue) < len(due)):
            return None
        others = [group for group in ended if group not in due]
        most = wanted if self.stragglers == "drop" else max(wanted, len(overdue))
        return sorted((overdue + others)[:most])

    def check(self, recipe: Recipe, worlds: Mapping[str, EnvironmentHandle], **limits: object) -> None:
        """Refuse what cannot be stopped in the middle and go on.

        Raises:
            InvalidInputError: an environment cannot be brought back, the program decides over several groups, or a
                limit would change meanwhile.
        """
        if self.is_synchronous:
            return
        for world in worlds.values():
            if not world.replayable:
                raise InvalidInputError(
                    f"Collector: batch_policy={self} ends episodes in the middle, and environment {world.title} says "
                    "replayable=False, so that they cannot go on; leave batch_policy out"
                )
        if type(recipe.rollout).cohort is not Rollout.cohort:
            raise InvalidInputError(
                f"Collector: batch_policy={self} takes groups one by one, and {recipe.rollout.title()} decides over "
                "all groups of a selection; leave batch_policy out"
            )
        for name, limit in limits.items():
            if isinstance(limit, Schedule):
                raise InvalidInputError(
                    f"Collector: {name} is a Schedule, and with batch_policy={self} a trajectory goes on in "
                    "iterations in which it has another value; give a number"
                )


WHOLE = BatchPolicy()
"""All that is in flight."""
