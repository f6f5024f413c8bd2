"""Numbers that change from iteration to iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, get_args

from agentrl_core.component.repr import component_repr
from agentrl_core.exceptions import RecipeError

Kind = Literal["linear", "cosine", "exponential", "step", "stairs", "inverse"]


# Type checkers accept a changing value as a number; a running component holds the number.
if TYPE_CHECKING:
    _Number = Any
else:
    _Number = object


class Changing(_Number):  # type: ignore[misc]
    """Base class of changing values: placeholders for a number, name or component that `recipe.at(...)` resolves."""

    is_number: ClassVar[bool] = True

    def now(self, iteration: int, states: Mapping[str, Any], place: str) -> Any:
        """Return the value of an iteration.

        Args:
            iteration: numbered from 0.
            states: states of components by place.
            place: of this value.
        """
        raise NotImplementedError

    @property
    def examples(self) -> tuple[Any, ...]:
        """Return sample values, with which a component is checked before anything runs."""
        return ()

    def _refuse(self, *_: object) -> NoReturn:
        """Refuse arithmetic on a changing value."""
        raise RecipeError(
            f"{self} is not a number yet; resolve it for an iteration first: component.at(iteration), or "
            "schedule.at(iteration)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __float__ = __int__ = __index__ = __round__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __call__ = _refuse


@dataclass(frozen=True, repr=False)
class Schedule(Changing):
    """A number that changes with the iteration. Any numeric option of a component may be one.

    With i = min(max(iteration - begin, 0), iterations) and p = i / iterations, by `kind`:

    - `linear`: start + (end - start) p;
    - `cosine`: end + (start - end) (1 + cos(pi p)) / 2;
    - `exponential`: start (end / start)^p;
    - `step`: start while p < 1, then end;
    - `stairs`: start + (end - start) ceil(p stairs) / stairs (ReMix, arXiv:2507.06892);
    - `inverse`: 1 / (1 / start + (1 / end - 1 / start) p), so that from 1 to 1 / n in n - 1 iterations it is
      1 / (iteration + 1) (mirror descent policy optimization, arXiv:2005.09814).

    The recipe replaces it by the number of the batch's iteration (`component.at(iteration)`), rounded if the option is
    an integer. A component checks its options at `start` and at `end`. In TOML it is a table of its fields.

    Args:
        start: number up to iteration `begin`, finite.
        end: number from iteration `begin + iterations` on, finite.
        iterations: length of the change, at least 1.
        begin: the first iteration of the change, at least 0.
        kind: see above; `exponential` and `inverse` need `start` and `end` of the same sign.
        stairs: number of steps of kind `stairs`, at least 1.
        then: the next piece, from iteration `then.begin` on. None: the number stays at `end`.

    Raises:
        RecipeError: an argument is not possible.

    Example:
        >>> from agentrl_core import Schedule
        >>> from agentrl_core.advantage import EntropyBonus
        >>> bonus = EntropyBonus(coefficient=Schedule(0.4, 0.0, iterations=100))
        >>> bonus.at(25).coefficient
        0.3
        >>> Schedule(1.0, 0.01, iterations=2, kind="exponential").at(1)
        0.1
        >>> pieces = Schedule(0.0, 1.0, iterations=10, then=Schedule(1.0, 0.5, iterations=2, begin=20))
        >>> [pieces.at(iteration) for iteration in (5, 15, 21, 30)]
        [0.5, 1.0, 0.75, 0.5]
    """

    start: float
    end: float
    iterations: int
    begin: int = 0
    kind: Kind = "linear"
    stairs: int = 1
    then: Schedule | None = None

    __repr__ = component_repr

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            self._require(plain and math.isfinite(value), name, "give a finite number")
            object.__setattr__(self, name, float(value))
        for name, smallest in (("iterations", 1), ("begin", 0), ("stairs", 1)):
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            self._require(is_whole and value >= smallest, name, f"give a whole number of at least {smallest}")
        self._require(self.kind in get_args(Kind), "kind", "give one of " + ", ".join(map(repr, get_args(Kind))))
        self._require(
            self.kind not in ("exponential", "inverse") or self.start * self.end > 0.0,
            "end",
            f"give start and end on one side of 0 (start is {self.start})",
        )

        then: object = self.then
        if isinstance(then, Mapping):
            object.__setattr__(self, "then", Schedule(**then))
        follows = isinstance(self.then, Schedule) and self.then.begin > self.begin
        self._require(then is None or follows, "then", f"give a Schedule that begins later than {self.begin}, or None")

    def now(self, iteration: int, states: Mapping[str, Any], place: str) -> float:  # noqa: ARG002 - it knows nothing
        """Return the number of an iteration."""
        return self.at(iteration)

    def at(self, iteration: int) -> float:
        """Return the number of an iteration."""
        if self.then is not None and iteration >= self.then.begin:
            return self.then.at(iteration)
        part = min(max(iteration - self.begin, 0) / self.iterations, 1.0)
        if part in (0.0, 1.0):
            return self.end if part else self.start
        if self.kind == "linear":
            return self.start + (self.end - self.start) * part
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * (1.0 + math.cos(math.pi * part)) / 2.0
        if self.kind == "stairs":
            climbed = -(-(iteration - self.begin) * self.stairs // self.iterations)
            return self.start + (self.end - self.start) * climbed / self.stairs
        if self.kind == "inverse":
            return 1.0 / (1.0 / self.start + (1.0 / self.end - 1.0 / self.start) * part)
        return self.start * (self.end / self.start) ** part if self.kind == "exponential" else self.start

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a table that `Schedule(**table)` reads back, without unused `stairs` and `then`."""
        table = {option.name: getattr(self, option.name) for option in fields(self)}
        if self.stairs == 1:
            del table["stairs"]
        return {**table, "then": self.then.to_dict()} if self.then else {k: v for k, v in table.items() if k != "then"}

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the last iteration at `start` and the first at `end`, followed by those of the next piece."""
        if self.then is None:
            return self.begin, self.begin + self.iterations
        return self.begin, min(self.begin + self.iterations, self.then.begin - 1), *self.then.ends

    def _require(self, condition: bool, name: str, remedy: str) -> None:  # noqa: FBT001 - as in assert
        if not condition:
            raise RecipeError(f"Schedule: {name}={getattr(self, name)!r} is not possible; {remedy}")
