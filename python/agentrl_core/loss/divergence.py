"""Distillation: losses on the divergence of the policy from a teacher."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, option, token
from agentrl_core.loss.base import Denominator, WeightedLoss, metric_sums
from agentrl_core.loss.inputs import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Divergence(WeightedLoss):
    """Distil a teacher: minimise the divergence of the policy p from the teacher q at every trained token.

        L = sum_t w_t D_t
        D = beta KL(q || m) + (1 - beta) KL(p || m),   m = beta q + (1 - beta) p     0 < beta < 1
        D = KL(q || p)   (forward KL)                                                beta = 0
        D = KL(p || q)   (reverse KL)                                                beta = 1

    This is the generalised Jensen-Shannon divergence of GKD (arXiv:2306.13649), whose limits are the two KLs. `support`
    is the set of tokens that D sums over:

    - `vocabulary`: all of them, exactly. `pack.run(policy, teacher=teacher)` computes it in chunks and keeps no logits.
    - `top`: the teacher's k likeliest tokens, and one more bin for all others together. It is a lower bound of the
      exact divergence. `arl.annotate(batch, "teacher_logprob", teacher, top_k=k)` makes the columns.
    - `sampled`: the sampled token alone, an estimate of the reverse KL: log p - log q, with the gradient of KL(p || q)
      in expectation over tokens that p sampled: (log p - log q) times that of log p. The column is `teacher_logprob`.

    w includes the denominators, and the column `kl_weight` if there is one. The column `weight` scales advantages only,
    so a recipe that computes it needs a loss that reads advantages. The teacher gets no gradient. Both distributions
    use the sampling temperature. The loss reads neither advantages nor scores, so it also trains batches with equal
    rewards or without rewards. Add it to a policy loss with `loss.Sum`.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`; by default `token_mean`.
        constant: see `WeightedLoss`.
        beta: see above, from 0 to 1; 1 for `sampled`.
        support: see above.
        ratio_at_most: multiply each token's term by p / p_old, bounded by this number, without gradient; for batches
            with several optimizer steps (SDPO, arXiv:2601.20802: 2). None: no factor.

    Metrics: `divergence` (D), `entropy`, and `teacher_kl`, the reverse KL: for `top` over its bins, for `sampled` the
    estimate, in place of `divergence`; for `vocabulary` it is `divergence` with beta 1. `top` adds `coverage`, the
    teacher's total probability of its k tokens, and `policy_coverage`, the policy's total probability of these tokens.

    Raises:
        RecipeError: an option is out of range, or beta is not 1 for `sampled`.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Divergence(support="top").needs
        (token('teacher_top_ids'), token('teacher_top_logprobs'))
    """

    aggregate: Denominator = "token_mean"
    beta: float = option(0.5, at_least=0, at_most=1)
    support: Literal["top", "vocabulary", "sampled"] = "top"
    ratio_at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Require beta 1 for `sampled`, which estimates the reverse KL."""
        super().check_options()
        self.require(self.support != "sampled" or self.beta == 1.0, "beta", "use beta=1 with support='sampled'")

    @property
    def needs_score(self) -> bool:
        """False: distillation needs no reward."""
        return False

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: weights, the teacher's columns, and old log-probs if the ratio is used."""
        yield "weight_kl"
        if self.support == "sampled":
            yield token("teacher_logprob", model="teacher")
        elif self.support == "top":
            yield token("teacher_top_ids", model="teacher")
            yield token("teacher_top_logprobs", model="teacher")
        if self.ratio_at_most is not None:
            yield "old_logprob"

    def own_reads_outputs(self) -> Iterable[str]:
        """The policy's log-probs of the teacher's tokens, the divergence over the vocabulary, or none for `sampled`."""
        if self.support == "top":
            yield "top_logprobs:teacher_top_ids"
        elif self.support == "vocabulary":
            yield f"divergence:{self.beta!r}"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted divergence from the teacher, summed over rows, and metrics."""
        from agentrl_core.model.logit_statistics import bin_divergence, log_tail

        metrics: dict[str, Any] = {}
        if self.support == "sampled":
            teacher_kl = tokens.log_ratio_to("teacher_logprob")
            metrics["teacher_kl"] = teacher_kl
            # The value is the estimate; the gradient is that of the divergence, not of the estimate.
            term = teacher_kl.detach() * (1.0 + tokens.logprob - tokens.logprob.detach())
        elif self.support == "top":
            policy_top, top = tokens.output("top_logprobs"), tokens.stream("teacher_top_logprobs")
            tail = torch.where(torch.isneginf(policy_top.detach()[:, -1:]), -torch.inf, log_tail(top))  # -inf: k is V
            term = bin_divergence(policy_top, torch.cat([top, tail], dim=1), self.beta)
            term = torch.where(tokens.trained, term, 0.0)
            with torch.no_grad():
                teacher_kl = torch.where(
                    tokens.trained, bin_divergence(policy_top, torch.cat([top, tail], dim=1), 1.0), 0.0
                )
                inside = torch.where(tokens.trained, 1.0 - policy_top[:, -1].exp(), 0.0)
            metrics |= {"divergence": term, "teacher_kl": teacher_kl}
            metrics |= {"coverage": 1.0 - tail[:, 0].exp(), "policy_coverage": inside}
        else:
            term = tokens.output("divergence")
            metrics["divergence"] = term
        if self.ratio_at_most is not None:
            term = term * tokens.log_ratio.detach().exp().clamp(max=self.ratio_at_most)
        value = (tokens.stream("weight_kl") * term).sum()
        return value, metric_sums(tokens, entropy=tokens.entropy, **metrics)
