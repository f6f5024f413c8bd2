"""The base of the losses, and of the parts that a policy loss is composed of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

from agentrl_core.component import Column, Component, option, token
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

Unit = Literal["token", "step", "trajectory", "pair", "group", "update"]
"""The rows that a loss needs together: in one update, and in one pack if packs are to add up."""

Denominator = Literal[
    "token_mean", "sequence_mean", "sequence_mean_sum", "turn_mean", "step_mean", "episode_mean", "constant"
]

Scope = Literal["all", "sequence"]
"""The rows of a statistic: all that a loss is given, or those of each sequence."""

UNITS: tuple[Unit, ...] = ("token", "step", "trajectory", "pair", "group", "update")  # from small to large

ADVANTAGES = ("advantage_positive", "advantage_negative")
SHARES = ("share_first", "share_second")
"""How much of a row's weight is that of each term of a sum whose terms have denominators of their own."""
MADE = (
    *ADVANTAGES,
    *SHARES,
    "old_logprob",
    "weight_kl",
    "weight_entropy",
    "inverse_temperature",
    "step",
    "sequence",
    "pair",
    "group",
)
"""The streams that an update makes, of its draws and denominators; every other one is a token column of its name."""

REFERENCE = token("reference_logprob", model="reference")

Pack_contra = TypeVar("Pack_contra", contravariant=True)


class Output(Protocol[Pack_contra]):
    """Output of a model for a pack, such as `PackOutput`, from which a loss is computed."""

    def evaluated(self, loss: Loss, pack: Pack_contra, /) -> tuple[Tensor, dict[str, Tensor]]:
        """Value and metrics of a loss."""


@dataclass(frozen=True)
class Part(Component):
    """One piece of a loss: a ratio, a clip range, a surrogate, a mask or a regulariser.

    It declares what it reads, and over which rows its term of one row is made; the loss that holds it asks its parts,
    and they theirs.
    """

    reads: ClassVar[tuple[str | Column, ...]] = ()
    """The streams it reads: a token column, or the name of one that the update makes (advantages, weights, ids)."""
    reads_outputs: ClassVar[tuple[str, ...]] = ()
    """The answers it asks of the model beside log-prob and entropy."""
    over: ClassVar[Unit] = "token"
    """The rows that the term of a row needs together: the `token` alone, or a statistic over something larger."""

    def own_reads(self) -> Iterable[str | Column]:
        """As `reads`, where it depends on options."""
        return self.reads

    def own_reads_outputs(self) -> Iterable[str]:
        """As `reads_outputs`, where it depends on options."""
        return self.reads_outputs

    def own_unit(self) -> Unit:
        """As `over`, where it depends on options."""
        return self.over

    def own_foldable(self) -> bool:
        """Whether branches that share a token may add up their advantages and weights on one row."""
        return self.own_unit() == "token"

    def own_by_advantage(self) -> bool:
        """Whether draws without advantage may be left out: they add nothing to it, nor to what it makes of others."""
        return UNITS.index(self.own_unit()) <= UNITS.index("trajectory")

    def own_needs(self) -> Iterable[Column]:
        """The token columns among what it reads."""
        return [stream for stream in self.own_reads() if isinstance(stream, Column)]

    def _parts(self) -> Iterator[Part]:
        yield self
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Part):
                yield from value._parts()  # noqa: SLF001 - a part asks its parts

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The streams of a pack that it reads."""
        streams = (stream for part in self._parts() for stream in part.own_reads())
        return tuple(dict.fromkeys(stream.name if isinstance(stream, Column) else stream for stream in streams))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The answers of the model that it reads beside log-prob and entropy, such as `value`."""
        return tuple(dict.fromkeys(answer for part in self._parts() for answer in part.own_reads_outputs()))

    @property
    def unit(self) -> Unit:
        """The rows that must lie in one pack, so that packs add up: the largest unit of any piece.

        `update`: a statistic is over all rows. `Update.gradient_cached` needs nothing whole in a pack.
        """
        largest = 0  # a plain loop: torch.compile follows it
        for part in self._parts():
            largest = max(largest, UNITS.index(part.own_unit()))
        return UNITS[largest]

    @property
    def foldable(self) -> bool:
        """Whether a token that several branches share may be one row.

        Then `advantage_positive`, `advantage_negative` and the weights are sums over the branches. That is exact, in
        value and gradient, if the term of a row is linear in those sums and everything else it reads is the same on
        all branches; so never with segment ids, with counts or quantiles of rows, or with a square of the advantage.
        """
        return all(part.own_foldable() for part in self._parts())

    @property
    def by_advantage(self) -> bool:
        """Whether a draw whose advantages are all 0 changes neither the loss nor its gradient, and need not be run."""
        return all(part.own_by_advantage() for part in self._parts())

    @property
    def separable(self) -> bool:
        """Whether the term of a row depends on that row alone, so that gradients can be formed chunk by chunk."""
        return self.unit == "token"


class OverRows(Part):
    """A piece with a statistic, such as a quantile, over the rows of its option `scope`."""

    scope: Scope

    def own_reads(self) -> Iterable[str | Column]:
        """Sequence ids, where the statistic is of each sequence."""
        return (*self.reads, "sequence") if self.scope == "sequence" else self.reads

    def own_unit(self) -> Unit:
        """A trajectory where the statistic is of each sequence, else the update."""
        return "trajectory" if self.scope == "sequence" else "update"


@dataclass(frozen=True)
class Loss(Part, ABC):
    """Base of the losses: what the update must prepare for one, and the call itself.

    A loss is a plain sum over rows, of packs, and of ranks, as long as each holds the loss's `unit` whole: every
    denominator is in the weights. A term that belongs to a larger unit (a sequence, a pair, a group) counts as the
    weights of its rows add up: 1 / (sequences) for `sequence_mean`.
    """

    phase: ClassVar[str] = "loss"

    def own_needs(self) -> Iterable[Column]:
        """The token columns that it reads, and those behind what the update makes."""
        streams = self.streams
        if not set(ADVANTAGES).isdisjoint(streams):
            yield token("advantage")
        if "old_logprob" in streams:
            yield token("behaviour_logprob")
        yield from super().own_needs()

    def own_by_advantage(self) -> bool:
        """False unless a loss overrides it: there may be terms that read something else."""
        return False

    @property
    @abstractmethod
    def denominator(self) -> Denominator:
        """How the weights of the tokens are normalised."""

    @property
    def denominator_constant(self) -> float | None:
        """A further denominator of the weights."""
        return None

    @property
    def of_steps(self) -> bool:
        """Whether a step has one row, that of its first trained token, which is read before the action begins."""
        return False

    @property
    def normaliser(self) -> str | None:
        """The stream by whose mean over the tokens of a step, by their weights, the loss is divided; None: none."""
        return None

    @property
    def equal_groups(self) -> bool:
        """Whether every group of a step counts the same, however many draws it has; such a loss reads `group`."""
        return False

    @property
    def needs_preference(self) -> bool:
        """Whether pairs whose draws have the same advantage are left out: neither is preferred."""
        return False

    @property
    def needs_score(self) -> bool:
        """Whether draws without a score are left out: what their reward means is unknown."""
        return True

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss is differentiated through the entropy."""
        return True

    @abstractmethod
    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of some rows and its metrics: a pure function of their vectors.

        Returns:
            The loss, a scalar, and detached sums over the trained rows; `tokens` is how many there are.
        """

    def of_rows(
        self, logprob: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], outputs: object = None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`evaluate` on the vectors of some rows, as `Tokens` takes them."""
        return self.evaluate(Tokens(logprob, entropy, streams, outputs))

    def __call__(self, output: Output[Pack_contra], pack: Pack_contra) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a pack and its metrics, from the model's output.

        Args:
            output: what `pack.run(model)` gave, or `loss.fused` for this loss.
            pack: the pack.
        """
        return output.evaluated(self, pack)


@dataclass(frozen=True)
class WeightedLoss(Loss, ABC):
    """A loss whose denominator is an option.

    Args:
        aggregate: `token_mean` (every token of the update counts the same: DAPO), `sequence_mean` (mean over the
            tokens of a draw, then over draws: GRPO), `turn_mean` (mean over the tokens of a turn, then over the turns
            of a draw, then over draws), `step_mean` (mean over the tokens of a turn, then over all turns of the update:
            IterResearch, arXiv:2511.07327), `constant` (sum over tokens divided by `constant`, then mean over draws:
            Dr. GRPO, arXiv:2503.20783), `sequence_mean_sum` (mean over the tokens of a draw, then the sum over draws,
            divided by `constant` if it is given: the batch size in LOOP's code), or another denominator of
            `Batch.token_weights`.
        constant: above 0, of `constant` and, where it is given, of `sequence_mean_sum`; None otherwise.
    """

    aggregate: Denominator = "sequence_mean"
    constant: float | None = option(None, above=0)

    def check_options(self) -> None:
        """A constant is there where something divides by it."""
        if self.aggregate == "constant":
            self.require(self.constant is not None, "constant", "aggregate='constant' divides by it: give a number")
        elif self.aggregate != "sequence_mean_sum":
            remedy = f"leave it None, or use aggregate='constant' (not {self.aggregate!r})"
            self.require(self.constant is None, "constant", remedy)

    @property
    def denominator(self) -> Denominator:
        """How the weights of the tokens are normalised: the option `aggregate`."""
        return self.aggregate

    @property
    def denominator_constant(self) -> float | None:
        """A further denominator of the weights: the option `constant`."""
        return self.constant

    @property
    def needs_entropy_gradient(self) -> bool:
        """False unless a loss overrides it: one with an entropy term does."""
        return False


def metric_sums(
    tokens: Tokens, counted: Tensor | None = None, count: str = "tokens", **values: Tensor
) -> dict[str, Tensor]:
    """Metrics: the sum of each over some rows, detached, and how many rows those are.

    Where draws of several sources are trained together, also those of each source: `ratio@replay`.

    Args:
        tokens: the rows.
        counted: which count, `bool[N]`; None: those that are trained.
        count: what their number is called.
        values: of the rows, by name.
    """
    counted = tokens.trained if counted is None else counted
    found: dict[str, Tensor] = {}
    for suffix, rows in (("", counted), *((f"@{name}", counted & held) for name, held in tokens.sources)):
        found |= {f"{name}{suffix}": (value.detach() * rows).sum() for name, value in values.items()}
        found[f"{count}{suffix}"] = rows.sum()
    return found
