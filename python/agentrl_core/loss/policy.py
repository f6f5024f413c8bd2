"""The policy loss: a ratio, its clip range, a surrogate and regularisers, as a plain sum over prediction pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, option
from agentrl_core.loss.base import ADVANTAGES, REFERENCE, Denominator, WeightedLoss, metric_sums
from agentrl_core.loss.inputs import Tokens
from agentrl_core.loss.mask import Mask
from agentrl_core.loss.regulariser import KL, EntropyTerm
from agentrl_core.loss.surrogate import OPEN, Clip, Clipped, ClipRange, ImportanceRatio, Ratio, Surrogate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Policy(WeightedLoss):
    """The loss of policy-gradient methods, composed of ratio, clip range, surrogate, mask, penalties and entropy.

    With r the ratio of a token, w its weight and A its advantage,

        L = sum_t [ - w max(A, 0) f(r) - w min(A, 0) g(r) + kl.coefficient * w * KL_t(reference)
                    + drift.coefficient * w * KL_t(old) - entropy * w * H_t ]

    By default, r = exp(clamp(log p - log p_old, -20, 20)), f = min(r, 1 + high), g = min(max(r, 1 - low), dual):
    PPO's clipped objective (arXiv:1707.06347). The denominators are in the weights (`Batch.token_weights`), so this is
    a plain sum and the packs of an update simply add up.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`; by default `token_mean`.
        constant: see `WeightedLoss`.
        clip: clip range of the ratio, or None.
        kl: penalty on the divergence from the reference model, or None.
        entropy: coefficient of the entropy bonus, at least 0; or an `EntropyTerm`.
        ratio: definition of r: of tokens, steps, sequences or items, and relative to which policy.
        surrogate: definition of f and g.
        mask: detached factors of f and g for each token; or None.
        drift: penalty on the divergence from the old policy, or None.
        expert: definition of f and g for tokens whose stream `expert` is 1, to which masks do not apply; or None.

    Metrics (sums over tokens with positive weight, except `loss`): `ratio`, `clip_fraction` (r is outside the bound
    for the sign of its advantage) and `approximate_kl` (k3 of the old policy to the current one), which only sum tokens
    with an old log-prob, whose number is `compared`; `entropy`; with `kl` its `reference_kl`, with `drift` its `drift`,
    with a mask `mask` (the mean factor of f and g), and those of an `EntropyTerm`. If fresh and stored draws are
    trained together, each is also reported for every source: `approximate_kl@fresh`, `ratio@replay`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(clip=loss.Clip(high=0.28, dual=3.0), kl=loss.KL(0.001)).needs
        (token('advantage'), token('behaviour_logprob'), token('reference_logprob'))
        >>> gspo = loss.Policy(ratio=loss.Ratio("sequence"), clip=loss.Clip(3e-4, 4e-4), aggregate="sequence_mean")
        >>> gspo.unit, gspo.foldable
        ('trajectory', False)
    """

    aggregate: Denominator = "token_mean"
    clip: ClipRange | None = Clip()  # noqa: RUF009 - frozen
    kl: KL | None = None
    entropy: float | EntropyTerm = option(0.0, at_least=0)  # noqa: RUF009 - a field
    ratio: ImportanceRatio = Ratio()  # noqa: RUF009 - frozen
    surrogate: Surrogate = Clipped()  # noqa: RUF009 - frozen
    mask: Mask | None = None
    drift: KL | None = None
    expert: Surrogate | None = None

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: advantages, weights, old log-probs, and those of `kl`, `entropy` and `expert`."""
        yield from (*ADVANTAGES, "weight_kl", "old_logprob")
        if self.kl is not None and not self.kl.column:
            yield REFERENCE
        if self.entropy and isinstance(self.entropy, float):
            yield "weight_entropy"
        if self.expert is not None:
            yield "expert"

    def own_by_advantage(self) -> bool:
        """True without penalties and an entropy term, which apply to all tokens."""
        return self.kl is None and self.drift is None and not self.entropy

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether there is an entropy term."""
        return bool(self.entropy)

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy loss with its penalties and entropy term, summed over rows, and metrics."""
        log_ratio, factor = self.ratio(tokens)
        bounds = OPEN if self.clip is None else self.clip(tokens, log_ratio)
        positive, negative = self.surrogate(tokens, log_ratio, bounds)
        for multiplier in (factor, bounds.kept):
            if multiplier is not None:
                positive, negative = positive * multiplier, negative * multiplier
        extra: dict[str, Any] = {}
        if self.mask is not None:
            open_positive, open_negative = self.mask(tokens, log_ratio, bounds)
            positive, negative = positive * open_positive, negative * open_negative
            extra["mask"] = (open_positive + open_negative) / 2.0
        if self.expert is not None:
            foreign = tokens.stream("expert") > 0
            theirs = self.expert(tokens, log_ratio, bounds)
            positive, negative = (
                torch.where(foreign, their, own) for their, own in zip(theirs, (positive, negative), strict=True)
            )
        loss = -(tokens.advantage_positive * positive + tokens.advantage_negative * negative).sum()

        weight = torch.where(tokens.trained, tokens.weight, 0.0)
        for name, penalty, stream in (
            ("reference_kl", self.kl, "reference_logprob"),
            ("drift", self.drift, "old_logprob"),
        ):
            if penalty is not None:
                divergence = penalty.divergence(tokens, stream)
                loss = loss + penalty.coefficient * (weight * divergence).sum()
                extra[name] = divergence
        if isinstance(self.entropy, EntropyTerm):
            loss = loss + self.entropy(tokens)
            extra |= self.entropy.metrics(tokens)
        elif self.entropy:
            loss = loss - self.entropy * (tokens.stream("weight_entropy") * tokens.entropy).sum()

        ratio, log_policy_ratio = log_ratio.detach().exp(), tokens.log_ratio.detach()
        outside = (bounds.above(ratio) & (tokens.advantage_positive > 0)) | (
            bounds.below(ratio) & (tokens.advantage_negative < 0)
        )
        metrics: dict[str, Any] = {
            "ratio": ratio,
            "clip_fraction": outside,
            "approximate_kl": (-log_policy_ratio).expm1() + log_policy_ratio,
        }
        sums = metric_sums(tokens, entropy=tokens.entropy, **extra)
        return loss, sums | metric_sums(tokens, tokens.compared, "compared", **metrics)
