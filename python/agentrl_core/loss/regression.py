"""Squared regressions of the log-ratio on the advantage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.component import Column, option, token
from agentrl_core.loss.base import ADVANTAGES, REFERENCE, Unit, WeightedLoss, metric_sums
from agentrl_core.loss.inputs import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Regression(WeightedLoss):
    """Fits the log-ratio of a token, step or sequence to its advantage, instead of a policy gradient.

    With x = sum over the segment of log p - log q,

        L = coefficient * sum of w (beta x - A)^2      (`residual="advantage"`)
        L = coefficient * sum of w (x - A / beta)^2    (`residual="log_ratio"`)

    | system | options, and what A is |
    | --- | --- |
    | A*-PO (arXiv:2505.20686) | `beta=1e-3`, reference; A = R - V* |
    | DAPO-direct (arXiv:2412.18279) | step, `residual="log_ratio"`, `coefficient=0.5`; A = V(s, a) - V(s) |
    | OPMD, mirror descent, Kimi k1.5 | `beta` = their tau; A = R - baseline |
    | SPPO (arXiv:2405.00675) | `beta=1e-3`, `residual="log_ratio"`, `coefficient=0.5`; A = P(win) - 1/2 |
    | ROVER (arXiv:2509.24981) | token, `next_value=1`; A = R - mean |
    | ROSA | `residual="log_ratio"`; A = reward shift |

    A of a segment is the mean of the advantages of its tokens; its weight is the sum of the weights of its tokens.

    Args:
        aggregate: see `WeightedLoss`; `sequence_mean` gives the mean over sequences.
        constant: see `WeightedLoss`.
        level: the segment: `token`, `step` or `sequence`.
        beta: factor of the log-ratio, above 0.
        reference: the policy q: the `reference` model or the `old` policy.
        reduce: x is the `sum` or the `mean` over the tokens of a segment.
        residual: `advantage` or `log_ratio`, see above.
        coefficient: factor of the loss, above 0.
        next_value: at least 0, for level `token` only: the target is A + next_value * beta * (u - u_old) of the next
            token, detached, 0 after the last token; u is the mean log-prob over the vocabulary (model output
            `mean_logprob`, stream `old_mean_logprob`), the value of a policy that samples uniformly.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Regression(beta=1e-3, reference="reference").unit
        'trajectory'
    """

    level: Literal["token", "step", "sequence"] = "sequence"
    beta: float = option(1.0, above=0)
    reference: Literal["reference", "old"] = "old"
    reduce: Literal["sum", "mean"] = "sum"
    residual: Literal["advantage", "log_ratio"] = "advantage"
    coefficient: float = option(1.0, above=0)
    next_value: float = option(0.0, at_least=0)

    def check_options(self) -> None:
        """Require level `token` for `next_value`, since only tokens have a next one."""
        super().check_options()
        self.require(
            self.next_value == 0.0 or self.level == "token", "next_value", "set level='token', or leave next_value 0"
        )

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: advantages, weights, log-probs, segment ids, and those for `next_value`."""
        yield from (*ADVANTAGES, "weight_kl", REFERENCE if self.reference == "reference" else "old_logprob")
        if self.level != "token":
            yield self.level
        if self.next_value:
            yield from ("sequence", token("old_mean_logprob", model="policy"))

    def own_reads_outputs(self) -> Iterable[str]:
        """The model output `mean_logprob`, the mean log-prob over the vocabulary, if `next_value` is used."""
        return ("mean_logprob",) if self.next_value else ()

    def own_unit(self) -> Unit:
        """`trajectory` for sequences or if the target reads the next token, otherwise the level."""
        return "trajectory" if self.level == "sequence" or self.next_value else self.level

    def own_foldable(self) -> bool:
        """False: the loss squares the advantage."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared distance of each segment's log-ratio from its target, summed, and metrics."""
        log_ratio, target = tokens.log_ratio_to(f"{self.reference}_logprob"), tokens.advantage
        if self.level != "token":
            segments = tokens.segments(self.level)
            reduced = segments.sum(log_ratio) if self.reduce == "sum" else segments.mean(log_ratio)
            log_ratio, target = segments.spread(reduced), segments.spread(segments.mean(target))
        if self.next_value:
            change = (tokens.output("mean_logprob") - tokens.stream("old_mean_logprob")).detach()
            target = target + self.next_value * self.beta * tokens.segments("sequence").following(change)
        residual = self.beta * log_ratio - target
        if self.residual == "log_ratio":
            residual = residual / self.beta
        loss = self.coefficient * (tokens.stream("weight_kl") * residual.square()).sum()
        return loss, metric_sums(tokens, log_ratio=log_ratio, residual=residual, entropy=tokens.entropy)
