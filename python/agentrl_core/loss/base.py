"""The base of the losses, and of the parts that a policy loss is composed of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

from agentrl_core.component.component import Column, Component
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

Unit = Literal["token", "step", "trajectory", "pair", "group", "update"]
"""What a loss needs whole: in one update, and in one pack where packs are to add up."""

Denominator = Literal["token_mean", "sequence_mean", "sequence_mean_sum", "turn_mean", "episode_mean", "constant"]

Scope = Literal["all", "sequence"]
"""The rows of a statistic: all that a loss is given, or those of each sequence."""

UNITS: tuple[Unit, ...] = ("token", "step", "trajectory", "pair", "group", "update")  # from small to large

Pack_contra = TypeVar("Pack_contra", contravariant=True)


class Output(Protocol[Pack_contra]):
    """What a model said about a pack, such as `PackOutput`: it knows how a loss of it is made."""

    def evaluated(self, loss: Loss, pack: Pack_contra, /) -> tuple[Tensor, dict[str, Tensor]]:
        """Value and metrics of a loss."""


# Streams that an update makes out of its draws and denominators, not out of a column of their own.
_MADE_BY_UPDATE = ("inverse_temperature", "weight_kl", "weight_entropy", "step", "sequence", "pair", "group")


@dataclass(frozen=True)
class Part(Component):
    """One piece of a loss: a ratio, the bounds of it, a surrogate, a gate or a regulariser.

    Its properties say what the loss that holds it needs; parts inside a part are asked too.
    """

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Streams that this piece itself reads."""
        return ()

    @property
    def own_answers(self) -> tuple[str, ...]:
        """Answers of the model that this piece reads beside log-prob and entropy."""
        return ()

    @property
    def own_unit(self) -> Unit:
        """What this piece needs whole."""
        return "token"

    @property
    def own_foldable(self) -> bool:
        """Whether branches that share a token may add up their advantages and weights on one row."""
        return True

    @property
    def own_separable(self) -> bool:
        """Whether the term of a row depends on that row alone."""
        return True

    @property
    def _parts(self) -> Iterable[Part]:
        yield self
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, Part):
                yield from value._parts  # noqa: SLF001 - a part asks its parts

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of a pack that it reads."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.own_streams))

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers of the model that it reads beside log-prob and entropy, such as `value`."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.own_answers))

    @property
    def unit(self) -> Unit:
        """What must lie whole in one pack, so that packs add up: the largest that any piece asks for.

        `update`: a statistic is over all rows. `Update.together` needs nothing whole in a pack.
        """
        return max((part.own_unit for part in self._parts), key=UNITS.index)

    @property
    def foldable(self) -> bool:
        """Whether a token that several branches share may be one row.

        Then `advantage_positive`, `advantage_negative` and the weights are sums over the branches. That is exact, in
        value and gradient, if the term of a row is linear in those sums and everything else it reads is the same on
        all branches; so never with segment ids, with counts or quantiles of rows, or with a square of the advantage.
        """
        return all(part.own_foldable for part in self._parts)

    @property
    def separable(self) -> bool:
        """Whether the term of a row depends on that row alone, so that gradients can be formed chunk by chunk."""
        return all(part.own_separable for part in self._parts)


class OverRows(Part):
    """A piece with a statistic, such as a quantile, over the rows of its option `scope`."""

    scope: Scope

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Sequence ids, where the statistic is of each sequence."""
        return ("sequence",) if self.scope == "sequence" else ()

    @property
    def own_unit(self) -> Unit:
        """A trajectory where the statistic is of each sequence, else the update."""
        return "trajectory" if self.scope == "sequence" else "update"

    @property
    def own_foldable(self) -> bool:
        """No: the statistic counts rows."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False


@dataclass(frozen=True)
class Loss(Part, ABC):
    """Base of the losses: what the update must prepare for one, and the call itself.

    A loss is a plain sum over rows, of packs, and of ranks, as long as each holds the loss's `unit` whole: every
    denominator is in the weights. A term that belongs to a larger unit (a sequence, a pair, a group) counts as the
    weights of its rows add up: 1 / (sequences) for `sequence_mean`.
    """

    phase: ClassVar[str] = "loss"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The token columns behind the streams."""
        names = {
            "advantage_positive": "advantage",
            "advantage_negative": "advantage",
            "old_logprob": self.old_logprob_column,
        }
        columns = (names.get(stream, stream) for stream in self.streams if stream not in _MADE_BY_UPDATE)
        return tuple(("token", column) for column in dict.fromkeys(columns))

    @property
    @abstractmethod
    def denominator(self) -> Denominator:
        """How the weights of the tokens are normalised."""

    @property
    def denominator_constant(self) -> float | None:
        """The constant of the denominator `constant`."""
        return None

    @property
    def old_logprob_column(self) -> str:
        """The token column that holds the log-probs of the policy that the ratio is taken to."""
        return "behaviour_logprob"

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
        self, logprob: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], answers: object = None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`evaluate` on the vectors of some rows, as `Tokens` takes them."""
        return self.evaluate(Tokens(logprob, entropy, streams, answers))

    def __call__(self, output: Output[Pack_contra], pack: Pack_contra) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a pack and its metrics, from what the model said about it.

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
            tokens of a draw, then over draws: GRPO), `constant` (sum over tokens divided by `constant`, then mean
            over draws: Dr. GRPO, arXiv:2503.20783), or another denominator of `Batch.token_weights`.
        constant: the constant of `constant`, above 0; None otherwise.
    """

    aggregate: Denominator = "sequence_mean"
    constant: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        check_denominator(self, self.aggregate, self.constant)

    @property
    def denominator(self) -> Denominator:
        """`aggregate`."""
        return self.aggregate

    @property
    def denominator_constant(self) -> float | None:
        """`constant`."""
        return self.constant

    @property
    def needs_entropy_gradient(self) -> bool:
        """No."""
        return False


def check_denominator(loss: Loss, aggregate: Denominator, constant: float | None) -> None:
    """Refuse a constant that is missing, or that nothing divides by."""
    if aggregate == "constant":
        remedy = "aggregate='constant' divides by it: give a number above 0"
        loss.require(constant is not None and constant > 0.0, "constant", remedy)
    else:
        loss.require(constant is None, "constant", f"leave it None, or use aggregate='constant' (not {aggregate!r})")


def sums(tokens: Tokens, **values: Tensor) -> dict[str, Tensor]:
    """Metrics: the sum of each over the trained rows, detached, and how many rows those are."""
    found = {name: (value.detach() * tokens.trained).sum() for name, value in values.items()}
    return {**found, "tokens": tokens.trained.sum()}
