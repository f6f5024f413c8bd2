"""Compute the results of a pack at the model's output layer: hidden states, log-probs and statistics, or a loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model.architecture import LogitFormula, head_of, is_plain_linear, unusual_head
from agentrl_core.model.comparisons import Comparison, TeacherRows, comparisons_of, is_compared
from agentrl_core.model.images import IMPOSSIBLE, never_sampled
from agentrl_core.model.logit_statistics import ANSWERS_OF_LOGITS
from agentrl_core.model.matmul import fast_linear
from agentrl_core.model.ranks import wrapping_of
from agentrl_core.model.replaced_forward import Forward

LOGITS_AT_ONCE = 2**27  # 512 MiB in fp32; more logits are scored in chunks, which the backward pass recomputes
VALUES = ("value", "value_logits")
VALUE_HEAD = "value_head"
"""Name of the module that computes values from hidden states; engines do not use it."""
ANSWERS = (*VALUES, *ANSWERS_OF_LOGITS)
"""Outputs of `Pack.run` on request, besides log-probs and entropies."""

Pack: TypeAlias = Any  # model.pack.Pack, whose module uses this one


class Feed(NamedTuple):
    """One forward call of the model, on all or some sequences of a pack.

    Attributes:
        arguments: keyword arguments of the forward.
        rows: `int64[n]`, the rows of its flattened hidden states that are read.
        pairs: `int64[n]`, the prediction pairs to which these rows belong; None: all pairs in order.
        tokens: `int64[rows, length]`, for each position, the index of its token in the pack; None: all tokens in order.
    """

    arguments: dict[str, Any]
    rows: Tensor
    pairs: Tensor | None
    tokens: Tensor | None = None


class Reading:
    """Reads the hidden states of a pack at the output layer; subclasses compute log-probs or a loss from them.

    Attributes:
        order: `int64[n]`, the index of each pair among the rows that were read; None: the rows are in order.
        never: `int64[k]`, tokens that have probability 0; None: no token.
    """

    def __init__(self, pack: Pack, outer: nn.Module, inner: nn.Module, rows: Tensor) -> None:
        self.pack, self.outer, self.inner, self.rows = pack, outer, inner, rows
        self.head, self.wrapping = head_of(inner), wrapping_of(outer)
        self.never = never_sampled(inner)
        self.states: list[Tensor] = []
        self.order: Tensor | None = None

    def at_head(self, own: Forward, states: Tensor, *, is_last: bool) -> Tensor:  # noqa: ARG002
        """Store the hidden states `[n, H]` of a forward call, and return the output of the head for no rows."""
        self.states.append(states)
        return cast("Tensor", own(states[None, :0]))

    def after_model(self, logits: Tensor | None, feed: Feed) -> None:
        """Process the logits that the model returns for a forward call; nothing here."""

    def results(self, output: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return tensors in the order of the pairs, given the last output of the head."""
        return (in_order(self.states, self.order),)


class Scores(Reading):
    """Computes log-probs, entropies and other statistics from the model's logits, one forward call at a time."""

    def __init__(
        self, pack: Pack, outer: nn.Module, inner: nn.Module, outputs: tuple[str, ...], teacher: TeacherRows | None
    ) -> None:
        super().__init__(pack, outer, inner, pack.source_row)
        self.comparisons = comparisons_of(pack, outputs, teacher, vocabulary_of(inner), self.never) if outputs else []
        self.of_logits = tuple(name for name in outputs if name in ANSWERS_OF_LOGITS)
        self.of_values = tuple(name for name in outputs if name in VALUES)
        self.critic = value_head_of(outer, inner, outputs)
        self.found: list[tuple[Tensor, ...]] = []
        self.values: list[Tensor] = []
        self.wide: torch.dtype = torch.float32
        self.scored = functools.partial(
            score,
            entropy_gradient=pack.entropy_gradient,
            outputs=self.of_logits,
            comparisons=self.comparisons,
            never=self.never,
        )

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """Columns that scoring needs: targets, inverse temperatures, and the columns of comparisons."""
        compared = (each.column for each in self.comparisons)
        return self.pack.target, self.pack.streams.inverse_temperature, *compared

    def at_head(self, own: Forward, states: Tensor, *, is_last: bool) -> Tensor:  # noqa: ARG002
        """Compute values and logits for the hidden states of a forward call."""
        self.wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        self._value(states)
        return cast("Tensor", self._logits(own)(states))[None]

    def _value(self, states: Tensor) -> None:
        if self.critic is not None:
            with torch.autocast(states.device.type, enabled=False):
                self.values.append(self.critic(states.to(next(self.critic.parameters()).dtype)).to(self.wide))

    def _logits(self, own: Forward) -> Forward:
        """Return the function from hidden states to logits: a plain head in fp32 or fp64, any other as it is."""
        head = self.head
        if not is_plain_linear(head) or getattr(own, "__func__", None) is not nn.Linear.forward:
            return lambda states: own(states[None])[0].to(self.wide)
        linear = cast("nn.Linear", head)
        weight = linear.weight.to(self.wide)
        bias = None if linear.bias is None else linear.bias.to(self.wide)  # type: ignore[redundant-expr]  # Linear(bias=False)

        def logits(states: Tensor) -> Tensor:
            with torch.autocast(states.device.type, enabled=False):
                return fast_linear(states.to(self.wide), weight, bias)

        return logits

    def after_model(self, logits: Tensor | None, feed: Feed) -> None:
        """Compute log-probs and statistics of the logits that the model returned for a forward call."""
        if logits is None or logits.dim() != 3 or logits.shape[:2] != (1, len(feed.rows)):
            raise UnsupportedError(
                f"model: {type(self.inner).__name__} returns "
                f"{'no logits' if logits is None else f'logits of shape {tuple(logits.shape)}'} instead of "
                f"[1, {len(feed.rows)}, vocabulary], so packs cannot run on it; use a model of docs/models.md"
            )
        columns = [column if feed.pairs is None else column.index_select(0, feed.pairs) for column in self.columns]
        with torch.autocast(logits.device.type, enabled=False):
            size = max(1, LOGITS_AT_ONCE // logits.shape[-1])
            self.found.append(in_chunks(self.scored, size, (logits[0].to(self.wide), *columns)))

    def results(self, output: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return log-prob, entropy, other statistics of logits, and values, each in the order of the pairs."""
        results = [in_order(parts, self.order) for parts in zip(*self.found, strict=True)]
        return (*results, *self._values())

    def _values(self) -> tuple[Tensor, ...]:
        return (in_order(self.values, self.order),) if self.values else ()

    def fields(self, results: tuple[Tensor, ...]) -> dict[str, Any]:
        """Return the results as fields of `PackOutput`, by name."""
        logprob, entropy, *others = results
        names = (*self.of_logits, *(each.name for each in self.comparisons))
        answers: dict[str, Any] = dict(zip(names, others, strict=False))
        for name in self.of_values:
            answers[name] = others[-1] if name == "value_logits" else others[-1].squeeze(-1)
        return {"logprob": logprob, "entropy": entropy, "ranks": self.wrapping.ranks, **answers}


class ChunkedScores(Scores):
    """Computes log-probs and statistics chunk by chunk inside the head, so that all logits never exist at once.

    It needs a model whose formula from the head's output to logits is known.
    """

    def __init__(
        self,
        pack: Pack,
        outer: nn.Module,
        inner: nn.Module,
        outputs: tuple[str, ...],
        teacher: TeacherRows | None,
        formula: LogitFormula,
    ) -> None:
        super().__init__(pack, outer, inner, outputs, teacher)
        self.formula = formula
        self.whole: tuple[Tensor, ...] = ()

    def at_head(self, own: Forward, states: Tensor, *, is_last: bool) -> Tensor:
        """Score all rows at the last forward call; the head returns the scores, so its hooks see them."""
        self.wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        self._value(states)
        self.states.append(states)
        if not is_last:
            return cast("Tensor", own(states[None, :0]))
        return self._at_last(own, in_order(self.states, self.order))

    def _at_last(self, own: Forward, states: Tensor) -> Tensor:
        logits = self._logits(own)

        def scored(part: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
            return self.scored(self._logits_of(logits(part)), *columns)

        size = max(1, LOGITS_AT_ONCE // vocabulary_of(self.inner))
        self.whole = in_chunks(scored, size, (states, *self.columns))
        return torch.cat([each.to(self.wide).reshape(len(states), -1) for each in self.whole], dim=1).t()[None]

    def _logits_of(self, of_head: Tensor) -> Tensor:
        logits = of_head * self.formula.factor
        cap = self.formula.softcap
        return logits if cap is None else cap * (logits / cap).tanh()

    def after_model(self, logits: Tensor | None, feed: Feed) -> None:
        """Do nothing: the head returned scores, so what the model computes from them is meaningless."""

    def results(self, output: Tensor) -> tuple[Tensor, ...]:
        """Split the head's output, after its hooks, into log-prob, entropy and other results."""
        widths = [1 if scores.dim() == 1 else scores.shape[1] for scores in self.whole]
        parts = output[0].split(widths)
        results = [
            part.t().reshape(scores.shape).to(scores.dtype) for part, scores in zip(parts, self.whole, strict=True)
        ]
        if not self.pack.entropy_gradient:
            results[1] = results[1].detach()
        return (*results, *self._values())


class FusedLoss(ChunkedScores):
    """Computes the loss of a pack with its gradients inside a plain linear head, without storing logits."""

    def __init__(
        self, pack: Pack, outer: nn.Module, inner: nn.Module, fuse: Callable[..., Any], formula: LogitFormula
    ) -> None:
        super().__init__(pack, outer, inner, (), None, formula)
        self.fuse = fuse
        self.made: Any = None

    def _at_last(self, own: Forward, states: Tensor) -> Tensor:
        if not is_plain_linear(self.head) or getattr(own, "__func__", None) is not nn.Linear.forward:
            raise UnsupportedError(
                f"loss: the output layer of {type(self.inner).__name__} is {unusual_head(self.head)}, but a fused loss "
                "needs an unmodified torch.nn.Linear; use pack.run(model)"
            )
        head, every = cast("nn.Linear", self.head), torch.arange(len(states), device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            self.made = self.fuse(
                states,
                head.weight,
                replace(self.pack, source_row=every),
                bias=self._bias(head),
                factor=self.formula.factor,
                softcap=self.formula.softcap,
            )
        return cast("Tensor", self.made.loss).reshape(1, 1, 1)

    def _bias(self, head: nn.Linear) -> Tensor | None:
        """Return the bias of the head, changed so that tokens that are never sampled have probability 0."""
        bias: Tensor | None = head.bias
        if self.never is None:
            return bias
        if self.formula.softcap is not None:
            raise UnsupportedError(
                f"loss: {type(self.inner).__name__} takes images and caps its logits, so no loss can be fused with it; "
                "use pack.run(model)"
            )
        if bias is None:
            bias = torch.zeros(len(head.weight), dtype=self.wide, device=head.weight.device)
        return bias.index_fill(0, self.never, IMPOSSIBLE)

    def results(self, output: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, a scalar."""
        return (output.reshape(()),)


def vocabulary_of(inner: nn.Module) -> int:
    """Return the number of logits of a model."""
    size = getattr(cast("Any", inner).config.get_text_config(), "vocab_size", None)
    return int(size) if size else int(cast("Any", head_of(inner)).weight.shape[0])


def in_order(parts: Any, order: Tensor | None) -> Tensor:
    """Concatenate tensors, and return their rows in the order of the prediction pairs."""
    joined = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    return cast("Tensor", joined) if order is None else joined.index_select(0, order)


def score(
    logits: Tensor,
    target: Tensor,
    scale: Tensor,
    *columns: Tensor,
    entropy_gradient: bool,
    outputs: Sequence[str],
    comparisons: Sequence[Comparison] = (),
    never: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return log-prob of the target, entropy, `outputs` and comparisons, each from the logits `[R, V]` times `scale`.

    Args:
        logits: fp32 or fp64.
        target: `int64[R]`.
        scale: `[R]`, the inverse temperatures.
        columns: one column per comparison, with R rows each.
        entropy_gradient: whether the entropy can be differentiated.
        outputs: names of `ANSWERS_OF_LOGITS`.
        comparisons: the comparisons to compute.
        never: `int64[k]`, tokens that have probability 0; None: no token.
    """
    scale = scale.to(logits.dtype)
    logits = logits * scale[:, None]
    if never is not None:
        logits = logits.index_fill(1, never, IMPOSSIBLE)
    largest = logits.detach().amax(dim=-1, keepdim=True)
    shifted = logits - largest
    logprob = shifted.gather(1, target[:, None]).squeeze(1) - shifted.logsumexp(dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        exponential = shifted.exp()
        total = exponential.sum(dim=-1)
        entropy = total.log() - (exponential * shifted).sum(dim=-1) / total
    answers = {name: ANSWERS_OF_LOGITS[name](shifted) for name in outputs}  # a shift changes only soft_value
    if never is not None and "mean_logprob" in answers:
        possible = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, never, 0)
        answers["mean_logprob"] = ANSWERS_OF_LOGITS["mean_logprob"](shifted[:, possible])
    if "soft_value" in answers:
        answers["soft_value"] = (answers["soft_value"] + largest.squeeze(1)) / scale
    pairs = zip(comparisons, columns, strict=True)
    return logprob, entropy, *answers.values(), *(each.compare(shifted, column, scale) for each, column in pairs)


def in_chunks(function: Callable[..., tuple[Tensor, ...]], size: int, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return `function(*rows)`, computed `size` rows at a time; the backward pass recomputes each chunk."""
    count = len(rows[0])
    if count <= size:
        return function(*rows)
    parts = []
    for begin in range(0, count, size):
        part = [each[begin : begin + size] for each in rows]
        if torch.is_grad_enabled():
            parts.append(cast("tuple[Tensor, ...]", checkpoint(function, *part, use_reentrant=False)))
        else:
            parts.append(function(*part))
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def value_head_of(outer: nn.Module, inner: nn.Module, outputs: Sequence[str]) -> nn.Module | None:
    """Return the module `value_head` of a model or of one of its wrappers, if `value` or `value_logits` is requested.

    Raises:
        UnsupportedError: an unknown output is requested, or there is no value head.
    """
    for name in outputs:
        if name not in ANSWERS and not is_compared(name):
            raise UnsupportedError(
                f"outputs: pack.run cannot give the answer {name!r}, only {', '.join(ANSWERS)}; compute it and add it: "
                f"dataclasses.replace(pack.run(model, outputs=()), {name}=...)"
            )
    value_output = next((name for name in outputs if name in VALUES), None)
    if value_output is None:
        return None
    for part in outer.modules():
        head = part._modules.get(VALUE_HEAD)  # noqa: SLF001 - getattr on a wrapper would return the inner one's
        if head is not None and (part is inner or any(each is inner for each in part.modules())):
            return head
    raise UnsupportedError(
        f"{type(inner).__name__} has no value head for the answer {value_output!r}; give it one before it is wrapped: "
        "model.value_head = torch.nn.Linear(model.config.hidden_size, 1)"
    )
