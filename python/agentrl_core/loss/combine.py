"""Imitation, sums of losses, and user-defined losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, Where, option, token
from agentrl_core.component.component import named_module
from agentrl_core.exceptions import RecipeError
from agentrl_core.loss.base import MADE, REFERENCE, SHARES, UNITS, Denominator, Loss, Unit, WeightedLoss, metric_sums
from agentrl_core.loss.inputs import Tokens
from agentrl_core.loss.mask import Mask
from agentrl_core.loss.surrogate import OPEN

if TYPE_CHECKING:
    from torch import Tensor

    LossFunction = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Imitation(WeightedLoss):
    """Maximises the likelihood of given tokens: of demonstrations, or of the policy's own good rollouts.

        L = - sum of w c v log p        (normalised: divided by the mean of c, sum of w c / sum of w)

    c marks the imitated tokens: `all`; `expert`: the stream `expert` (DataMind, SFT on expert rows); `positive`:
    1 where A > 0 (A2PR, DigiRL's filtered cloning); `advantage`: max(A, 0); `imitation`: the stream `imitation`, which
    holds any gate and scale (AHPO: expert rows of groups that fail; classes of tokens).

    v = u f''(u), u = p / p_reference, detached, keeps the divergence that plain likelihood drops: `likelihood`: 1;
    `chi_squared`: 2 u; `hellinger`: u^(-1/2) / 2; log u is within +-5 and v at most 10 ("Implicit reward as the
    bridge"; a weight of ours, the paper's loss is not public).

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        tokens: which tokens, see above.
        kind: v, see above.
        mask: a mask whose factor for positive advantages multiplies the term; or None.
        normalised: divide by the weighted mean of c over an optimizer step; only for `expert` and `imitation`.

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
        """Require tokens `expert` or `imitation` for `normalised`, which divides by the mean of that stream."""
        super().check_options()
        streamed = self.tokens in ("expert", "imitation")
        self.require(streamed or not self.normalised, "normalised", "use tokens='expert' or tokens='imitation'")

    @property
    def normaliser(self) -> str | None:
        """The stream `expert` or `imitation`, whichever `tokens` names, if `normalised`; otherwise None."""
        return self.tokens if self.normalised else None

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: weights, those of `tokens`, and reference log-probs if `kind` reads them."""
        yield "weight_kl"
        if self.tokens in ("positive", "advantage"):
            yield "advantage_positive"
        elif self.tokens != "all":
            yield token(self.tokens)
        if self.kind != "likelihood":
            yield REFERENCE

    def own_foldable(self) -> bool:
        """False for `positive`, which counts branches; otherwise True."""
        return self.tokens != "positive"

    def own_by_advantage(self) -> bool:
        """Whether the advantage selects the imitated tokens."""
        return self.tokens in ("positive", "advantage")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted negative log-likelihood of the imitated tokens, and metrics."""
        factor = tokens.stream("weight_kl")
        if self.tokens == "advantage":
            factor = tokens.advantage_positive
        elif self.tokens == "positive":
            factor = torch.where(tokens.advantage_positive > 0, factor, 0.0)
        elif self.tokens != "all":
            factor = factor * tokens.stream(self.tokens)
        if self.kind != "likelihood":
            log_ratio = tokens.log_ratio_to("reference_logprob").detach().clamp(-5.0, 5.0)
            growth = 2.0 * log_ratio.exp() if self.kind == "chi_squared" else 0.5 * (-0.5 * log_ratio).exp()
            factor = factor * growth.clamp(max=10.0)
        if self.mask is not None:
            factor = factor * self.mask(tokens, torch.zeros_like(tokens.logprob), OPEN)[0]
        return -(factor * tokens.logprob).sum(), metric_sums(tokens, nll=-tokens.logprob, entropy=tokens.entropy)


@dataclass(frozen=True)
class Sum(Loss):
    """Trains one model on two losses at once: first_coefficient * first + second_coefficient * second.

    Without `first_where` and `second_where` both terms read all rows and share one denominator. If either is given,
    each term has its own denominator, over the rows that it reads: a mean over expert tokens then does not shrink when
    the policy samples more tokens, and the terms may use different kinds of mean. The old policy's log-probs, and
    metrics of the same name, are those of `first`.

    Args:
        first: the first loss.
        second: the second loss; it must have the denominator of `first` if both read all rows.
        first_coefficient: factor of `first`, at least 0.
        second_coefficient: factor of `second`, at least 0.
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
        """Require equal denominators if both terms read all rows, otherwise equal row levels and no nested sums."""
        first, second = (
            (loss.denominator, loss.denominator_constant, loss.normaliser, loss.equal_groups)
            for loss in (self.first, self.second)
        )
        remedy = f"give it the denominator of the first, {first}, or rows of its own (second_where)"
        self.require(self.own_rows or first == second, "second", remedy)
        if self.own_rows:
            nested = isinstance(self.first, Sum) or isinstance(self.second, Sum)
            remedy = "a term is a Sum, which takes no rows of its own; leave first_where and second_where None"
            self.require(not nested, "second_where" if self.first_where is None else "first_where", remedy)
            same_rows = self.first.of_steps == self.second.of_steps
            self.require(
                same_rows, "second", "give two losses with a row for each token, or two with a row for each step"
            )
        else:
            for name in ("first", "second"):
                inner = getattr(self, name)
                remedy = "a sum with rows of its own is not a term of another sum; train it alone"
                self.require(not (isinstance(inner, Sum) and inner.own_rows), name, remedy)

    @property
    def own_rows(self) -> bool:
        """Whether each term has its own denominator, over its own rows."""
        return self.first_where is not None or self.second_where is not None

    @property
    def terms(self) -> tuple[tuple[Loss, Where | None], ...]:
        """Both losses, each with the draws that it reads."""
        return (self.first, self.first_where), (self.second, self.second_where)

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read: the share of each term in a row's weight, if each has its own denominator."""
        return SHARES if self.own_rows else ()

    def own_by_advantage(self) -> bool:
        """True; the properties of the two terms decide."""
        return True

    @property
    def denominator(self) -> Denominator:
        """How the weights of tokens are normalised: as in both terms, or as in `first` if they differ."""
        return self.first.denominator

    @property
    def denominator_constant(self) -> float | None:
        """A further constant by which weights are divided: that of both terms, or of `first` if they differ."""
        return self.first.denominator_constant

    @property
    def of_steps(self) -> bool:
        """Whether each step has a single row, as in both terms."""
        return self.first.of_steps

    @property
    def normaliser(self) -> str | None:
        """The stream whose weighted mean divides the loss: as in both terms, or as in `first` if they differ."""
        return self.first.normaliser

    @property
    def equal_groups(self) -> bool:
        """Whether all groups have equal weight: as in both terms, or as in `first` if they differ."""
        return self.first.equal_groups

    @property
    def needs_score(self) -> bool:
        """Whether one of the terms needs draws to have a score."""
        return self.first.needs_score or self.second.needs_score

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether gradients of one of the terms flow through the entropy."""
        return self.first.needs_entropy_gradient or self.second.needs_entropy_gradient

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of both losses, and the metrics of both."""
        if not self.own_rows:
            first, metrics = self.first.evaluate(tokens)
            second, second_metrics = self.second.evaluate(tokens)
            return self.first_coefficient * first + self.second_coefficient * second, {**second_metrics, **metrics}
        first, metrics = self.first.evaluate(tokens.of_share(SHARES[0]))
        second, second_metrics = self.second.evaluate(tokens.of_share(SHARES[1]))
        named_metrics = {name: value for name, value in metrics.items() if name in _OF_FIRST or name.startswith("max_")}
        for term, term_metrics in (("first", metrics), ("second", second_metrics)):
            named_metrics |= {f"{name}@{term}": value for name, value in term_metrics.items() if "@" not in name}
        value = self.first_coefficient * first + self.second_coefficient * second
        return value, {**metric_sums(tokens, entropy=tokens.entropy), **named_metrics}


_OF_FIRST = ("compared", "ratio", "clip_fraction", "approximate_kl")
"""Metrics of the first term that keep their names, because they are not means over all trained rows."""


class _Declared(NamedTuple):
    function: LossFunction
    streams: tuple[str | Column, ...]
    unit: Unit
    foldable: bool


_FUNCTIONS: dict[str, _Declared] = {}


@dataclass(frozen=True)
class Function(WeightedLoss):
    """A loss defined by a user's function; created by `loss.function`.

    It holds the function's import path, so a recipe that contains it can be saved, and loaded wherever that module can
    be imported.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        path: import path of the function, `module:name`.

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
        """Require that the path names a function declared with `loss.function`."""
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
        """Streams declared with `loss.function(needs=...)`, and `weight_kl`."""
        return _FUNCTIONS[self.path].streams

    def own_unit(self) -> Unit:
        """Unit declared with `loss.function(unit=...)`."""
        return _FUNCTIONS[self.path].unit

    def own_foldable(self) -> bool:
        """Whether the function was declared with `foldable=True`."""
        return _FUNCTIONS[self.path].foldable

    @property
    def needs_entropy_gradient(self) -> bool:
        """True: gradients may flow through the entropy."""
        return True

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the function's value, and metrics."""
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
    """Return a decorator that turns `(logprob, entropy, streams) -> [N] or scalar` into a loss, the sum of the result.

    All vectors are 0 at untrained tokens. Advantages and `weight_kl` include the loss weights.

    Args:
        needs: the streams that the function reads; `weight_kl` is always added.
        unit: the rows that the function needs together: one token, or all trained tokens of a `step`, `trajectory`,
            `pair`, `group` or `update`.
        foldable: whether branches that share a token may add up their advantages and weights; see `Loss.foldable`.
        aggregate: how weights are normalised; see `WeightedLoss`.
        constant: the number for the denominator `constant`.

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
