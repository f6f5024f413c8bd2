"""Numbers that change from iteration to iteration."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from agentrl_core.exceptions import RecipeError

Kind = Literal["linear", "cosine", "exponential", "step"]


# Type checkers take a Schedule wherever a number is asked; a component that runs holds the number.
if TYPE_CHECKING:
    _Number = Any
else:
    _Number = object


@dataclass(frozen=True)
class Schedule(_Number):  # type: ignore[misc]
    """A number that changes with the iteration, for any number among the options of any component.

    With p = min(max(iteration - begin, 0) / iterations, 1), by `kind`:

    - `linear`: start + (end - start) p;
    - `cosine`: end + (start - end) (1 + cos(pi p)) / 2;
    - `exponential`: start (end / start)^p;
    - `step`: start while p < 1, then end.

    The recipe gives the component that runs the number of the batch's iteration (`component.at(iteration)`), rounded
    where the option is a whole number. A component checks its options at `start` and at `end`. In TOML it is a table
    of its fields.

    Args:
        start: up to iteration `begin`, finite.
        end: from iteration `begin + iterations` on, finite.
        iterations: how long the change takes, at least 1.
        begin: the first iteration of the change, at least 0.
        kind: see above; `exponential` wants `start` and `end` on one side of 0.

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
    """

    start: float
    end: float
    iterations: int
    begin: int = 0
    kind: Kind = "linear"

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            self._require(plain and math.isfinite(value), name, "give a finite number")
            object.__setattr__(self, name, float(value))
        for name, smallest in (("iterations", 1), ("begin", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self._require(whole and value >= smallest, name, f"give a whole number of at least {smallest}")
        self._require(self.kind in get_args(Kind), "kind", "give one of " + ", ".join(map(repr, get_args(Kind))))
        self._require(
            self.kind != "exponential" or self.start * self.end > 0.0, "end", "give start and end on one side of 0"
        )

    def at(self, iteration: int) -> float:
        """The number in an iteration."""
        part = min(max(iteration - self.begin, 0) / self.iterations, 1.0)
        if part in (0.0, 1.0):
            return self.end if part else self.start
        if self.kind == "linear":
            return self.start + (self.end - self.start) * part
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * (1.0 + math.cos(math.pi * part)) / 2.0
        return self.start * (self.end / self.start) ** part if self.kind == "exponential" else self.start

    def _refuse(self, *_: object) -> NoReturn:
        """What a component does with a number, done with a schedule."""
        raise RecipeError(
            f"{self} is no number yet; take the number of an iteration first: component.at(iteration), or "
            "schedule.at(iteration)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __float__ = __int__ = __index__ = __round__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __call__ = _refuse

    def to_dict(self) -> dict[str, Any]:
        """Its fields, which `Schedule(**table)` reads back."""
        return asdict(self)

    @property
    def ends(self) -> tuple[int, int]:
        """The last iteration with the number `start`, and the first with `end`."""
        return self.begin, self.begin + self.iterations

    def _require(self, condition: bool, name: str, remedy: str) -> None:  # noqa: FBT001 - as in assert
        if not condition:
            raise RecipeError(f"Schedule: {name}={getattr(self, name)!r} is not possible; {remedy}")
