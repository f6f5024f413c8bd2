"""Imitation, sums of losses, and losses of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, Where, option, token
from agentrl_core.component.component import named_module
from agentrl_core.exceptions import RecipeError
from agentrl_core.loss.base import MADE, REFERENCE, SHARES, UNITS, Denominator, Loss, Unit, WeightedLoss, metric_sums
from agentrl_core.loss.mask import Mask
from agentrl_core.loss.surrogate import OPEN
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    LossFunction = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Imitation(WeightedLoss):
    """Trains on tokens as they are: those of demonstrations, or those of the policy's own good rollouts.

        L = - sum of w c v log p        (normalised: divided by the mean of c, sum of w c / sum of w)

    c marks the imitated tokens: `all`; `expert`: the stream `expert` (DataMind, SFT on expert rows); `positive`:
    1 where A > 0 (A2PR, DigiRL's filtered cloning); `advantage`: max(A, 0); `imitation`: the stream `imitation`, which
    holds any gate and scale (AHPO: expert rows of groups that fail; classes of tokens).

    v = u f''(u), u = p / p_reference, detached, keeps the divergence that plain likelihood drops: `likelihood`: 1;
    `chi_squared`: 2 u; `hellinger`: u^(-1/2) / 2; log u is within +-5 and v at most 10 ("Implicit reward as the
    bridge"; a weight of ours, the paper's loss is not public).

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        tokens: which tokens, see above.
        kind: v, see above.
        mask: its factor of a positive advantage multiplies too; or None.
        normalised: whether the c of an optimizer step count as weights of a mean, for `expert` and `imitation`.

    Raises:
        RecipeError: an option is out of range, or `normalised` for other tokens.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Imitation(tokens="expert").needs
        (token('expert'),)
    """

    tokens: Literal["all", "expert", "positive", "advantage", "imitation"] = "all"
    kind: Literal["likelihood", "chi_squared", "hellinger"] = "likelihood"
    mask: Mask | None = None
    normalised: bool = False

    def check_options(self) -> None:
        """The normalised column is a stream."""
        super().check_options()
        streamed = self.tokens in ("expert", "imitation")
        self.require(streamed or not self.normalised, "normalised", "use tokens='expert' or tokens='imitation'")

    @property
    def normaliser(self) -> str | None:
        """c, where it is normalised."""
        return self.tokens if self.normalised else None

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, what c is made of, and the reference's log-probs."""
        yield "weight_kl"
        if self.tokens in ("positive", "advantage"):
            yield "advantage_positive"
        elif self.tokens != "all":
            yield token(self.tokens)
        if self.kind != "likelihood":
            yield REFERENCE

    def own_foldable(self) -> bool:
        """Not for `positive`, which counts branches."""
        return self.tokens != "positive"

    def own_by_advantage(self) -> bool:
        """Whether the advantage marks the imitated tokens."""
        return self.tokens in ("positive", "advantage")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The negative log-likelihood of the imitated tokens, and its metrics."""
        factor = tokens.stream("weight_kl")
        if self.tokens == "advantage":
            factor = tokens.advantage_positive
        elif self.tokens == "positive":
            factor = torch.where(tokens.advantage_positive > 0, factor, 0.0)
        elif self.tokens != "all":
            factor = factor * tokens.stream(self.tokens)
        if self.kind != "likelihood":
            away = tokens.log_ratio_to("reference_logprob").detach().clamp(-5.0, 5.0)
            grown = 2.0 * away.exp() if self.kind == "chi_squared" else 0.5 * (-0.5 * away).exp()
            factor = factor * grown.clamp(max=10.0)
        if self.mask is not None:
            factor = factor * self.mask(tokens, torch.zeros_like(tokens.logprob), OPEN)[0]
        return -(factor * tokens.logprob).sum(), metric_sums(tokens, nll=-tokens.logprob, entropy=tokens.entropy)


@dataclass(frozen=True)
class Sum(Loss):
    """Trains one model on two losses at once: first_coefficient * first + second_coefficient * second.

    Without `first_where` and `second_where` both terms read all rows, with one denominator. With one of them each term
    has a denominator of its own: that of the rows it reads. A mean over an expert's tokens is then no smaller because
    the policy sampled more tokens, and a term may have another kind of mean than the other. The old policy's log-probs,
    and metrics of the same name, are those of `first`.

    Args:
        first: a loss.
        second: a loss; with the denominator of `first`, if both read all rows.
        first_coefficient: at least 0.
        second_coefficient: at least 0.
        first_where: the draws that `first` trains and counts; None: all.
        second_where: the draws that `second` trains and counts; None: all.

    Raises:
        RecipeError: an option is out of range, or the denominators differ although both terms read all rows.

    Example:
        >>> from agentrl_core import loss
        >>> from agentrl_core.component import Where
        >>> hybrid = loss.Sum(loss.Policy(), loss.Imitation("token_mean", tokens="imitation"), 1.0, 0.5)
        >>> hybrid.streams[-1]
        'imitation'
        >>> loss.Sum(loss.Policy(), loss.Imitation(), second_where=Where(origin="expert")).own_rows
        True
    """

    first: Loss
    second: Loss
    first_coefficient: float = option(1.0, at_least=0)
    second_coefficient: float = option(1.0, at_least=0)
    first_where: Where | None = field(default=None, kw_only=True)
    second_where: Where | None = field(default=None, kw_only=True)

    def check_options(self) -> None:
        """Both are losses of one denominator, or each of its own rows."""
        mine, other = (
            (loss.denominator, loss.denominator_constant, loss.normaliser, loss.equal_groups)
            for loss in (self.first, self.second)
        )
        remedy = f"give it the denominator of the first, {mine}, or rows of its own (second_where)"
        self.require(self.own_rows or mine == other, "second", remedy)
        if self.own_rows:
            nested = isinstance(self.first, Sum) or isinstance(self.second, Sum)
            self.require(not nested, "first_where", "a term that is a sum itself has no rows of its own; give it none")
            both = self.first.of_steps == self.second.of_steps
            self.require(both, "second", "give two losses with a row for each token, or two with a row for each step")
        else:
            for name in ("first", "second"):
                inner = getattr(self, name)
                remedy = "a sum with rows of its own is not a term of another sum; train it alone"
                self.require(not (isinstance(inner, Sum) and inner.own_rows), name, remedy)

    @property
    def own_rows(self) -> bool:
        """Whether each term has a denominator of its own."""
        return self.first_where is not None or self.second_where is not None

    @property
    def terms(self) -> tuple[tuple[Loss, Where | None], ...]:
        """Both losses, and the draws that each reads."""
        return (self.first, self.first_where), (self.second, self.second_where)

    def own_reads(self) -> Iterable[str | Column]:
        """The share of each term in a row's weight, if each has a denominator of its own."""
        return SHARES if self.own_rows else ()

    def own_by_advantage(self) -> bool:
        """Where it is so of both."""
        return True

    @property
    def denominator(self) -> Denominator:
        """That of both; of the first, if each has its own."""
        return self.first.denominator

    @property
    def denominator_constant(self) -> float | None:
        """That of both; of the first, if each has its own."""
        return self.first.denominator_constant

    @property
    def of_steps(self) -> bool:
        """That of both."""
        return self.first.of_steps

    @property
    def normaliser(self) -> str | None:
        """That of both."""
        return self.first.normaliser

    @property
    def equal_groups(self) -> bool:
        """That of both."""
        return self.first.equal_groups

    @property
    def needs_score(self) -> bool:
        """Where one of them needs it."""
        return self.first.needs_score or self.second.needs_score

    @property
    def needs_entropy_gradient(self) -> bool:
        """Where one of them needs it."""
        return self.first.needs_entropy_gradient or self.second.needs_entropy_gradient

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Both losses added up, and the metrics of both."""
        if not self.own_rows:
            first, metrics = self.first.evaluate(tokens)
            second, more = self.second.evaluate(tokens)
            return self.first_coefficient * first + self.second_coefficient * second, {**more, **metrics}
        first, metrics = self.first.evaluate(tokens.of_share(SHARES[0]))
        second, more = self.second.evaluate(tokens.of_share(SHARES[1]))
        named = {name: value for name, value in metrics.items() if name in _OF_FIRST or name.startswith("max_")}
        for term, found in (("first", metrics), ("second", more)):
            named |= {f"{name}@{term}": value for name, value in found.items() if "@" not in name}
        value = self.first_coefficient * first + self.second_coefficient * second
        return value, {**metric_sums(tokens, entropy=tokens.entropy), **named}


_OF_FIRST = ("compared", "ratio", "clip_fraction", "approximate_kl")
"""Metrics of the first term that are not means over all trained rows, and keep their names."""


class _Declared(NamedTuple):
    function: LossFunction
    streams: tuple[str | Column, ...]
    unit: Unit
    foldable: bool


_FUNCTIONS: dict[str, _Declared] = {}


@dataclass(frozen=True)
class Function(WeightedLoss):
    """A loss that is a function of one's own; `loss.function` makes it.

    It is a value like every component: it holds the function's import path, so that a recipe with it can be written
    and read again wherever that module can be imported.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        path: `module:name`.

    Raises:
        RecipeError: nothing of that name was declared with `loss.function`.

    Example:
        >>> from agentrl_core import loss
        >>> @loss.function(needs=["advantage_positive"], foldable=True)
        ... def cloning(logprob, entropy, streams):
        ...     return -streams["advantage_positive"] * logprob
        >>> cloning.streams, cloning.path.partition(":")[2]
        (('advantage_positive', 'weight_kl'), 'cloning')
    """

    path: str = ""

    def check_options(self) -> None:
        """The path leads to a declared function."""
        super().check_options()
        module = self.path.partition(":")[0]
        if self.path not in _FUNCTIONS and module:
            try:
                named_module(module)
            except ImportError as error:
                raise RecipeError(
                    f"{self.title()}: option path={self.path!r} cannot be imported: {error}; give the module:name of a "
                    "function that loss.function was applied to"
                ) from None
        remedy = "give the module:name of a function that loss.function was applied to"
        self.require(self.path in _FUNCTIONS, "path", remedy)

    def own_reads(self) -> Iterable[str | Column]:
        """As declared."""
        return _FUNCTIONS[self.path].streams

    def own_unit(self) -> Unit:
        """As declared."""
        return _FUNCTIONS[self.path].unit

    def own_foldable(self) -> bool:
        """As declared."""
        return _FUNCTIONS[self.path].foldable

    @property
    def needs_entropy_gradient(self) -> bool:
        """True, unless a loss overrides it."""
        return True

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The function's value, summed."""
        streams = {name: tokens.stream(name) for name in self.streams}
        value = _FUNCTIONS[self.path].function(tokens.logprob, tokens.entropy, streams)
        return value.sum(), metric_sums(tokens, entropy=tokens.entropy)


def function(
    *,
    needs: Iterable[str] = ("advantage_positive", "advantage_negative", "old_logprob"),
    unit: Unit = "token",
    foldable: bool = False,
    aggregate: Denominator = "token_mean",
    constant: float | None = None,
) -> Callable[[LossFunction], Function]:
    """Make a loss of a function `(logprob, entropy, streams) -> [N] or scalar`, whose sum is the loss.

    All vectors are 0 where nothing is trained. Weights are in the advantages and in `weight_kl`.

    Args:
        needs: the streams it reads; `weight_kl` is always among them.
        unit: what it needs whole: one token, or all trained tokens of a `step`, `trajectory`, `pair`, `group` or
            `update`.
        foldable: branches that share a token may add up their advantages and weights, see `Loss.foldable`.
        aggregate: how weights are normalised.
        constant: the constant of `constant`.

    Returns:
        A decorator that turns the function into a `Function`.

    Raises:
        RecipeError: the unit does not exist, or the denominator is not possible.

    Example:
        >>> from agentrl_core import loss
        >>> @loss.function(needs=["advantage_positive", "advantage_negative", "old_logprob"], foldable=True)
        ... def vanilla(logprob, entropy, streams):
        ...     ratio = (logprob - streams["old_logprob"]).exp()
        ...     return -(streams["advantage_positive"] + streams["advantage_negative"]) * ratio
        >>> vanilla.needs
        (token('advantage'), token('behaviour_logprob'))
    """
    if unit not in UNITS:
        raise RecipeError(f"loss.function: unit={unit!r} is not possible; give one of {', '.join(map(repr, UNITS))}")
    streams = tuple(stream if stream in MADE else token(stream) for stream in dict.fromkeys((*needs, "weight_kl")))

    def declare(call: LossFunction) -> Function:
        path = f"{call.__module__}:{call.__qualname__}"
        _FUNCTIONS[path] = _Declared(call, streams, unit, foldable)
        return Function(aggregate, constant, path)

    return declare
