"""The policy loss: a ratio, its bounds, a surrogate and regularisers, as a plain sum over prediction pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import Denominator, Loss, check_denominator, sums
from agentrl_core.loss.bounds import OPEN, BoundProvider, Clip
from agentrl_core.loss.gate import Gate
from agentrl_core.loss.ratio import Ratio, RatioProvider
from agentrl_core.loss.regulariser import KL, EntropyTerm
from agentrl_core.loss.surrogate import Clipped, Expert, Surrogate
from agentrl_core.loss.tokens import Tokens
from agentrl_core.model.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Policy(Loss):
    """Policy gradient with a ratio, bounds and a surrogate of choice, penalties on divergences, and entropy.

    With r the ratio of a token, w its weight and A its advantage,

        L = sum_t [ - w max(A, 0) f(r) - w min(A, 0) g(r) + kl.coefficient * w * KL_t(reference)
                    + drift.coefficient * w * KL_t(old) - entropy * w * H_t ]

    As it stands, r = exp(clamp(log p - log p_old, -20, 20)), f = min(r, 1 + high), g = min(max(r, 1 - low), dual):
    PPO's clipped objective (arXiv:1707.06347). The denominators are in the weights (`Batch.token_weights`), so this is
    a plain sum and the packs of an update simply add up.

    Args:
        clip: bounds of the ratio, or None.
        kl: penalty on the divergence from the reference model, or None.
        entropy: coefficient of the entropy bonus, at least 0; or an `EntropyTerm`.
        aggregate: the denominator: `token_mean` (every token of the update counts the same: DAPO), `sequence_mean`
            (mean over the tokens of a draw, then over draws: GRPO) or `constant` (sum over tokens divided by
            `constant`, then mean over draws: Dr. GRPO, arXiv:2503.20783).
        constant: the constant of `constant`, above 0; None otherwise.
        old_logprob: `behaviour`: the log-probs recorded when the tokens were sampled; `recomputed`: the column
            `recomputed_logprob` that `arl.annotate(batch, "recomputed_logprob", policy)` makes before the first update.
        ratio: what r is: of tokens, steps or sequences, to which policy.
        surrogate: what f and g are.
        gate: which tokens speak: detached factors of f and g; or None.
        drift: penalty on the divergence from the old policy, or None.
        expert: what f and g are on tokens whose stream `expert` is 1; or None. Gates do not apply to them.

    Metrics (sums over tokens with positive weight, except `loss`): `ratio`, `clip_fraction` (r is outside the bound
    that its advantage feels), `approximate_kl` (k3 of the old policy to the current one), `entropy`, with `kl` the
    penalty's `reference_kl`, with `drift` its `drift`, with a gate `gate` (the mean factor of f and g).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(clip=loss.Clip(high=0.28, dual=3.0), kl=loss.KL(0.001)).needs
        (('token', 'advantage'), ('token', 'behaviour_logprob'), ('token', 'reference_logprob'))
        >>> gspo = loss.Policy(ratio=loss.Ratio("sequence"), clip=loss.Clip(3e-4, 4e-4), aggregate="sequence_mean")
        >>> gspo.unit, gspo.foldable
        ('trajectory', False)
    """

    clip: BoundProvider | None = Clip()  # noqa: RUF009 - frozen
    kl: KL | None = None
    entropy: float | EntropyTerm = 0.0
    aggregate: Denominator = "token_mean"
    constant: float | None = None
    old_logprob: Literal["behaviour", "recomputed"] = "behaviour"
    ratio: RatioProvider = Ratio()  # noqa: RUF009 - frozen
    surrogate: Surrogate = Clipped()  # noqa: RUF009 - frozen
    gate: Gate | None = None
    drift: KL | None = None
    expert: Expert | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        fits = isinstance(self.entropy, EntropyTerm) or self.entropy >= 0.0
        self.require(fits, "entropy", "give a number of at least 0, or an EntropyTerm")
        check_denominator(self, self.aggregate, self.constant)

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Advantages, weights and old log-probs; with `kl` the reference's, with `entropy` its weights."""
        names = ("advantage_positive", "advantage_negative", "weight_kl", "old_logprob")
        reference = () if self.kl is None or self.kl.other else ("reference_logprob",)
        return (*names, *reference, *(("weight_entropy",) if self.entropy and isinstance(self.entropy, float) else ()))

    @property
    def denominator(self) -> Denominator:
        """`aggregate`."""
        return self.aggregate

    @property
    def denominator_constant(self) -> float | None:
        """`constant`."""
        return self.constant

    @property
    def old_logprob_column(self) -> str:
        """The token column behind `old_logprob`."""
        return "behaviour_logprob" if self.old_logprob == "behaviour" else "recomputed_logprob"

    @property
    def needs_entropy_gradient(self) -> bool:
        """Only with an entropy term."""
        return bool(self.entropy)

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        log_ratio, factor = self.ratio(tokens)
        bounds = OPEN if self.clip is None else self.clip(tokens, log_ratio)
        positive, negative = self.surrogate(tokens, log_ratio, bounds)
        if factor is not None:
            positive, negative = positive * factor, negative * factor
        extra = {}
        if self.gate is not None:
            open_positive, open_negative = self.gate(tokens, log_ratio, bounds)
            positive, negative = positive * open_positive, negative * open_negative
            extra["gate"] = (open_positive + open_negative) / 2.0
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
        elif self.entropy:
            loss = loss - self.entropy * (tokens.stream("weight_entropy") * tokens.entropy).sum()

        ratio, moved = log_ratio.detach().exp(), tokens.log_ratio.detach()
        outside = (bounds.above(ratio) & (tokens.advantage_positive > 0)) | (
            bounds.below(ratio) & (tokens.advantage_negative < 0)
        )
        metrics = {"ratio": ratio, "clip_fraction": outside, "approximate_kl": (-moved).expm1() + moved}
        return loss, sums(tokens, **metrics, entropy=tokens.entropy, **extra)
