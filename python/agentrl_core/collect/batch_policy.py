"""Rules for cutting the batch of an iteration, and for groups in flight at the cut."""

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
    """Rule for cutting the batch of an iteration, and for groups in flight at the cut.

    For N requested groups, `oversample` N are in flight: carried-over groups, and new ones for the rest. As soon as N
    of them have ended, the batch is cut. Running generations are stopped. Unfinished groups, and those that ended too
    late, are carried over: they continue in the next iteration, before new ones, with its weights and all their records
    (partial rollouts). No sampled token is lost, and the batch does not wait for the longest episode.

    Batches are filled in the order of **arrival**, which is biased: early batches have too many short episodes, and
    long ones come later, with newer weights. `max_carryovers` bounds this. `oversample=1`, the default, waits for all
    groups in flight, and has no bias.

    With `max_new_tokens` the batch is cut when each unfinished trajectory has generated that many tokens in this
    iteration; the number of ended groups does not matter. An unfinished trajectory is drawn as truncated, with
    `success` NaN, and continues in the next iteration, where it is drawn again. `recipes.t_ppo.LatestVersionOnly`
    trains only the tokens that the iteration added.

    Except with windows, a trajectory is in one batch only; dropped ones stay in the files without draws. The metrics of
    an iteration account for all tokens (`tokens.generated`, `consumed`, `dropped`, …).

    Sources: APRIL arXiv:2509.18521 (`BatchPolicy(oversample=2.0)`: start twice as many, stop at N, carry over); T-PPO
    arXiv:2506.15050 (`BatchPolicy(max_new_tokens=l)`); RollArt (`BatchPolicy(oversample=1.25, max_carryovers=1,
    stragglers="drop")`: redundant environments, and an age limit after which a trajectory is aborted); LOOP
    arXiv:2502.01600 (`max_carryovers=0, stragglers="drop"`).

    Args:
        oversample: groups in flight per requested group, at least 1.
        max_new_tokens: most tokens of a trajectory per iteration; None: no limit.
        max_carryovers: most iterations into which a group is carried; None: no limit. Not with `max_new_tokens`.
        stragglers: rule for a group that has not ended in the last of them: the cut waits for it (`wait`; a batch may
            then have more groups than requested), or it is stopped without draws (`drop`, which biases training towards
            short episodes).

    Raises:
        InvalidInputError: an argument is not valid.

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
            raise InvalidInputError(f"BatchPolicy: oversample={self.oversample!r}; give a finite number of at least 1")
        for name, least in (("max_new_tokens", 1), ("max_carryovers", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
                raise InvalidInputError(
                    f"BatchPolicy: {name}={value!r}; give a whole number of at least {least}, or None"
                )
        if self.stragglers not in ("wait", "drop"):
            raise InvalidInputError(f"BatchPolicy: stragglers={self.stragglers!r}; give 'wait' or 'drop'")
        if self.max_new_tokens is not None and self.max_carryovers is not None:
            raise InvalidInputError(
                f"BatchPolicy: max_carryovers={self.max_carryovers} has no effect with max_new_tokens, which carries "
                f"every unfinished group over; omit one of them"
            )
        if self.stragglers == "drop" and self.max_carryovers is None:
            raise InvalidInputError(
                "BatchPolicy: stragglers='drop' needs max_carryovers, but it is None; give a whole number of at least 0"
            )

    @property
    def is_synchronous(self) -> bool:
        """Whether no group is in flight after a cut."""
        return self.oversample == 1 and self.max_new_tokens is None

    def in_flight(self, wanted: int) -> int:
        """Return the number of groups in flight for a number of requested groups."""
        return round(self.oversample * wanted)

    def is_due(self, carried: int) -> bool:
        """Return whether a group with this number of carry-overs must end."""
        return self.max_carryovers is not None and carried >= self.max_carryovers

    def select_groups(self, ended: list[int], *, wanted: int, due: Collection[int]) -> list[int] | None:
        """Choose the groups of the batch among those that ended: due ones, then the first to end; None: no cut yet.

        Args:
            ended: ended groups, in order.
            wanted: number of needed groups.
            due: groups that cannot be carried over again.
        """
        overdue = [group for group in ended if group in due]
        if len(ended) < wanted or (self.stragglers == "wait" and len(overdue) < len(due)):
            return None
        others = [group for group in ended if group not in due]
        most = wanted if self.stragglers == "drop" else max(wanted, len(overdue))
        return sorted((overdue + others)[:most])

    def check(self, recipe: Recipe, worlds: Mapping[str, EnvironmentHandle], **limits: object) -> None:
        """Refuse environments, programs and limits with which groups cannot be carried over to a later iteration.

        Raises:
            InvalidInputError: an environment is not replayable, the program decides over several groups, or a limit
                changes between iterations.
        """
        if self.is_synchronous:
            return
        for world in worlds.values():
            if not world.replayable:
                raise InvalidInputError(
                    f"Collector: batch_policy={self} interrupts episodes, but environment {world.title} has "
                    f"replayable=False, so they cannot be resumed; omit batch_policy"
                )
        if type(recipe.rollout).cohort is not Rollout.cohort:
            raise InvalidInputError(
                f"Collector: batch_policy={self} handles groups one by one, but {recipe.rollout.title()} decides over "
                f"all groups of a selection; omit batch_policy"
            )
        for name, limit in limits.items():
            if isinstance(limit, Schedule):
                raise InvalidInputError(
                    f"Collector: {name} is a Schedule, but with batch_policy={self} a trajectory may span iterations "
                    f"with different values; give a number"
                )


WHOLE = BatchPolicy()
"""Wait for all groups in flight."""
