"""The base of the losses, and of the parts that a policy loss is composed of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

from agentrl_core.component import Column, Component, option, token
from agentrl_core.loss.inputs import Tokens

if TYPE_CHECKING:
    from torch import Tensor

Unit = Literal["token", "step", "trajectory", "pair", "group", "update"]
"""The rows that a loss needs together in one update; also in one pack, so that the losses of packs add up."""

Denominator = Literal[
    "token_mean", "sequence_mean", "sequence_mean_sum", "turn_mean", "step_mean", "episode_mean", "constant"
]

Scope = Literal["all", "sequence"]
"""The rows of a statistic: all that a loss is given, or those of each sequence."""

UNITS: tuple[Unit, ...] = ("token", "step", "trajectory", "pair", "group", "update")  # from small to large

ADVANTAGES = ("advantage_positive", "advantage_negative")
SHARES = ("share_first", "share_second")
"""For a sum of two losses with separate denominators: the share of each loss in a row's weight."""
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
"""Streams that an update computes from its draws and denominators; any other stream is a token column of that name."""

REFERENCE = token("reference_logprob", model="reference")

Pack_contra = TypeVar("Pack_contra", contravariant=True)


class Output(Protocol[Pack_contra]):
    """Interface of a model's output for a pack, such as `PackOutput`, from which a loss is computed."""

    def evaluated(self, loss: Loss, pack: Pack_contra, /) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the value and the metrics of a loss."""


@dataclass(frozen=True)
class Part(Component):
    """Base class of losses and of their pieces: a ratio, a clip range, a surrogate, a mask or a regulariser.

    A part declares the streams that it reads, and the rows that its term of one row depends on. A loss combines the
    declarations of its parts, including nested ones.
    """

    reads: ClassVar[tuple[str | Column, ...]] = ()
    """Streams that the part reads: token columns, or names of streams made by the update (advantages, weights, ids)."""
    reads_outputs: ClassVar[tuple[str, ...]] = ()
    """Model outputs that the part reads besides log-prob and entropy."""
    over: ClassVar[Unit] = "token"
    """The rows that the term of one row depends on: that `token` alone, or a larger unit if it reads a statistic."""

    def own_reads(self) -> Iterable[str | Column]:
        """Streams that the part reads; overridden if they depend on its options."""
        return self.reads

    def own_reads_outputs(self) -> Iterable[str]:
        """Model outputs that the part reads; overridden if they depend on its options."""
        return self.reads_outputs

    def own_unit(self) -> Unit:
        """The rows that the term of one row depends on; overridden if that depends on options."""
        return self.over

    def own_foldable(self) -> bool:
        """Whether branches that share a token may add up their advantages and weights in one row."""
        return self.own_unit() == "token"

    def own_by_advantage(self) -> bool:
        """Whether draws whose advantages are all 0 add nothing to this part and do not affect terms of other draws."""
        return UNITS.index(self.own_unit()) <= UNITS.index("trajectory")

    def own_needs(self) -> Iterable[Column]:
        """The token columns among the streams that the part reads."""
        return [stream for stream in self.own_reads() if isinstance(stream, Column)]

    def _parts(self) -> Iterator[Part]:
        yield self
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Part):
                yield from value._parts()  # noqa: SLF001 - recursion into inner parts

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The streams of a pack that the part and its inner parts read."""
        streams = (stream for part in self._parts() for stream in part.own_reads())
        return tuple(dict.fromkeys(stream.name if isinstance(stream, Column) else stream for stream in streams))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The model outputs, besides log-prob and entropy, that the part and its inner parts read, such as `value`."""
        return tuple(dict.fromkeys(answer for part in self._parts() for answer in part.own_reads_outputs()))

    @property
    def unit(self) -> Unit:
        """The rows that must be in one pack so that the losses of packs add up: the largest unit of any inner part.

        `update`: a statistic reads all rows. With `Update.gradient_cached`, units may be split over packs.
        """
        largest = 0  # a plain loop: torch.compile follows it
        for part in self._parts():
            largest = max(largest, UNITS.index(part.own_unit()))
        return UNITS[largest]

    @property
    def foldable(self) -> bool:
        """Whether a token that several branches share may be a single row.

        Then `advantage_positive`, `advantage_negative` and the weights are sums over the branches. That is exact, in
        value and gradient, if the term of a row is linear in those sums and everything else it reads is the same on
        all branches; so never with segment ids, with counts or quantiles of rows, or with a square of the advantage.
        """
        return all(part.own_foldable() for part in self._parts())

    @property
    def by_advantage(self) -> bool:
        """Whether a draw whose advantages are all 0 changes neither the loss nor its gradient, so it can be skipped."""
        return all(part.own_by_advantage() for part in self._parts())

    @property
    def separable(self) -> bool:
        """Whether the term of a row depends on that row alone, so that gradients can be formed chunk by chunk."""
        return self.unit == "token"


class OverRows(Part):
    """Base class of parts that compute a statistic, such as a quantile, over the rows of their option `scope`."""

    scope: Scope

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read, with sequence ids if the statistic is computed for each sequence."""
        return (*self.reads, "sequence") if self.scope == "sequence" else self.reads

    def own_unit(self) -> Unit:
        """`trajectory` if the statistic is computed for each sequence, otherwise `update`."""
        return "trajectory" if self.scope == "sequence" else "update"


@dataclass(frozen=True)
class Loss(Part, ABC):
    """Base class of losses: properties that an update reads to prepare streams and weights, and the evaluation.

    A loss is a plain sum over rows, packs and ranks, because every denominator is in the weights. Each pack must hold
    the loss's `unit` whole. The weight of a term of a larger unit (a sequence, a pair, a group) is the sum of the
    weights of its rows: 1 / (number of sequences) for `sequence_mean`.
    """

    phase: ClassVar[str] = "loss"

    def own_needs(self) -> Iterable[Column]:
        """The token columns that the loss reads, including those from which the update makes streams."""
        streams = self.streams
        if not set(ADVANTAGES).isdisjoint(streams):
            yield token("advantage")
        if "old_logprob" in streams:
            yield token("behaviour_logprob")
        yield from super().own_needs()

    def own_by_advantage(self) -> bool:
        """False unless a loss overrides it, since other terms may read more than the advantage."""
        return False

    @property
    @abstractmethod
    def denominator(self) -> Denominator:
        """How the weights of tokens are normalised."""

    @property
    def denominator_constant(self) -> float | None:
        """A further constant by which weights are divided; None: none."""
        return None

    @property
    def of_steps(self) -> bool:
        """Whether each step has one row, at its first trained token, with outputs of the state before the action."""
        return False

    @property
    def normaliser(self) -> str | None:
        """The stream whose weighted mean over the tokens of an optimizer step divides the loss; None: no division."""
        return None

    @property
    def equal_groups(self) -> bool:
        """Whether all groups of an optimizer step have equal weight, whatever their size; such a loss reads `group`."""
        return False

    @property
    def needs_preference(self) -> bool:
        """Whether pairs whose draws have equal advantages are left out, since neither draw is preferred."""
        return False

    @property
    def needs_score(self) -> bool:
        """Whether draws without a score are left out."""
        return True

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether gradients of the loss flow through the entropy."""
        return True

    @abstractmethod
    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of some rows and its metrics, as a pure function of their vectors.

        Returns:
            The loss, a scalar, and metrics: detached sums over the trained rows, and their number as `tokens`.
        """

    def of_rows(
        self, logprob: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], outputs: object = None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Evaluate the loss on vectors of rows; the arguments are those of `Tokens`."""
        return self.evaluate(Tokens(logprob, entropy, streams, outputs))

    def __call__(self, output: Output[Pack_contra], pack: Pack_contra) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a pack and its metrics, from the model's output.

        Args:
            output: the result of `pack.run(model)`, or of `loss.fused` with this loss.
            pack: the pack.
        """
        return output.evaluated(self, pack)


@dataclass(frozen=True)
class WeightedLoss(Loss, ABC):
    """Base class of losses whose denominator is an option.

    Args:
        aggregate: `token_mean` (every token of the update counts the same: DAPO), `sequence_mean` (mean over the
            tokens of a draw, then over draws: GRPO), `turn_mean` (mean over the tokens of a turn, then over the turns
            of a draw, then over draws), `step_mean` (mean over the tokens of a turn, then over all turns of the update:
            IterResearch, arXiv:2511.07327), `constant` (sum over tokens divided by `constant`, then mean over draws:
            Dr. GRPO, arXiv:2503.20783), `sequence_mean_sum` (mean over the tokens of a draw, then the sum over draws,
            divided by `constant` if it is given: the batch size in LOOP's code), or another denominator of
            `Batch.token_weights`.
        constant: a number above 0, required by `constant` and optional for `sequence_mean_sum`; None otherwise.
    """

    aggregate: Denominator = "sequence_mean"
    constant: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Require `constant` if `aggregate` is `constant`, and refuse it for others but `sequence_mean_sum`."""
        if self.aggregate == "constant":
            self.require(self.constant is not None, "constant", "aggregate='constant' divides by it: give a number")
        elif self.aggregate != "sequence_mean_sum":
            remedy = f"leave it None, or use aggregate='constant' (not {self.aggregate!r})"
            self.require(self.constant is None, "constant", remedy)

    @property
    def denominator(self) -> Denominator:
        """How the weights of tokens are normalised: the option `aggregate`."""
        return self.aggregate

    @property
    def denominator_constant(self) -> float | None:
        """A further constant by which weights are divided: the option `constant`."""
        return self.constant

    @property
    def needs_entropy_gradient(self) -> bool:
        """False; a loss with an entropy term overrides it."""
        return False


def metric_sums(
    tokens: Tokens, counted: Tensor | None = None, count: str = "tokens", **values: Tensor
) -> dict[str, Tensor]:
    """Return detached sums of metrics over some rows and the number of rows, in total and by the source of draws.

    If draws of several sources are trained together, the sums of each source are added: `ratio@replay`.

    Args:
        tokens: the rows.
        counted: the rows to sum over, `bool[N]`; None: the trained rows.
        count: name of the metric with their number.
        values: metric values of the rows, `[N]`, by name.
    """
    counted = tokens.trained if counted is None else counted
    sums: dict[str, Tensor] = {}
    for suffix, rows in (("", counted), *((f"@{name}", counted & in_source) for name, in_source in tokens.sources)):
        sums |= {f"{name}{suffix}": (value.detach() * rows).sum() for name, value in values.items()}
        sums[f"{count}{suffix}"] = rows.sum()
    return sums
