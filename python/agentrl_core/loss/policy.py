"""The clipped policy-gradient loss, as a plain sum over prediction pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core.component import Column, Component

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.pack import Pack, PackOutput

_LOG_RATIO_LIMIT = 20.0  # exp(20) is 5e8: beyond it a ratio says nothing more, and in fp32 it would soon overflow


@dataclass(frozen=True)
class Clip(Component):
    """How far the ratio r may move before the objective stops rewarding it.

    Args:
        low: 1 - low is the lower bound, felt where the advantage is negative; 0 < low < 1.
        high: 1 + high is the upper bound, felt where the advantage is positive; above 0. Larger than `low` is the
            clip-higher of DAPO (arXiv:2503.14476).
        dual: for negative advantages the objective is bounded below by dual * A (arXiv:1912.09729); above 1,
            customarily 3. None: no such bound.

    Example:
        >>> from agentrl_core.loss import Clip
        >>> Clip(high=0.28)
        Clip(low=0.2, high=0.28, dual=None)
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.low < 1.0, "low", "give a number between 0 and 1")
        self.require(self.high > 0.0, "high", "give a number above 0")
        self.require(self.dual is None or self.dual > 1.0, "dual", "give a number above 1, or None for no dual clip")


@dataclass(frozen=True)
class KL(Component):
    """A penalty on the divergence from the reference model, whose log-probs the batch holds as `reference_logprob`.

    k3 = exp(d) - d - 1 with d = log p_reference - log p, the unbiased, non-negative estimator of
    http://joschu.net/blog/kl-approx.html that GRPO uses. d is clamped to +-20; k3 itself is not.

    Args:
        coefficient: weight of the penalty, above 0.
        estimator: `k3`.

    Example:
        >>> from agentrl_core.loss import KL
        >>> KL(0.01)
        KL(coefficient=0.01, estimator='k3')
    """

    coefficient: float
    estimator: Literal["k3"] = "k3"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.coefficient > 0.0, "coefficient", "give a number above 0, or leave the penalty out: kl=None")


@dataclass(frozen=True)
class Loss(Component, ABC):
    """Base of the losses: what the update must prepare for one, and the call itself."""

    phase: ClassVar[str] = "loss"

    @property
    @abstractmethod
    def denominator(self) -> Literal["token_mean", "sequence_mean", "constant"]:
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
    def __call__(self, outputs: PackOutput, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a pack and its metrics.

        Returns:
            The loss, a scalar, and detached sums over the trained tokens of the pack; `tokens` is how many there are.
        """


@dataclass(frozen=True)
class Policy(Loss):
    """Clipped policy gradient with an optional penalty on the divergence from a reference and an entropy bonus.

    With r = exp(clamp(log p - log p_old, -20, 20)), w the weight of a token and A its advantage,

        L = sum_t [ -w max(A, 0) min(r, 1 + high) - w min(A, 0) min(max(r, 1 - low), dual)
                    + kl.coefficient * w * k3 - entropy * w * H ]

    which is PPO's clipped objective (arXiv:1707.06347). `clip=None` uses r as it is. The denominators are in the
    weights (`Batch.token_weights`), so this is a plain sum and the packs of an update simply add up.

    Args:
        clip: bounds of the ratio, or None.
        kl: penalty on the divergence from a reference, or None.
        entropy: coefficient of the entropy bonus, at least 0.
        aggregate: the denominator: `token_mean` (every token of the update counts the same: DAPO), `sequence_mean`
            (mean over the tokens of a draw, then over draws: GRPO) or `constant` (sum over tokens divided by
            `constant`, then mean over draws: Dr. GRPO, arXiv:2503.20783).
        constant: the constant of `constant`, above 0; None otherwise.
        old_logprob: `behaviour`: the log-probs recorded when the tokens were sampled; `recomputed`: the column
            `recomputed_logprob` that `batch.annotate("recomputed_logprob", policy)` makes before the first update.

    Metrics (sums over tokens with positive weight, except `loss`): `ratio`, `clip_fraction` (the clip is active),
    `approximate_kl` (k3 of the old policy to the current one), `entropy`, and with `kl` the penalty's `reference_kl`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(clip=loss.Clip(high=0.28, dual=3.0), kl=loss.KL(0.001)).needs
        (('token', 'advantage'), ('token', 'behaviour_logprob'), ('token', 'reference_logprob'))
    """

    clip: Clip | None = Clip()
    kl: KL | None = None
    entropy: float = 0.0
    aggregate: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    constant: float | None = None
    old_logprob: Literal["behaviour", "recomputed"] = "behaviour"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.entropy >= 0.0, "entropy", "give a number of at least 0")
        if self.aggregate == "constant":
            self.require(
                self.constant is not None and self.constant > 0.0,
                "constant",
                "aggregate='constant' divides by it: give a number above 0",
            )
        else:
            self.require(
                self.constant is None,
                "constant",
                f"leave it None, or use aggregate='constant' (not {self.aggregate!r})",
            )

    @property
    def needs(self) -> tuple[Column, ...]:
        """Advantage and old log-prob of every token, and with `kl` the reference's log-prob."""
        columns: tuple[Column, ...] = (("token", "advantage"), ("token", self.old_logprob_column))
        return columns if self.kl is None else (*columns, ("token", "reference_logprob"))

    @property
    def denominator(self) -> Literal["token_mean", "sequence_mean", "constant"]:
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
        """Only with an entropy bonus."""
        return self.entropy > 0.0

    def __call__(self, outputs: PackOutput, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class on the `[N]` vectors of a pack. Nothing is copied to the host."""
        streams = pack.to(outputs.logprob.device).streams
        positive, negative = streams.advantage_positive, streams.advantage_negative
        log_ratio = (outputs.logprob - streams.old_logprob).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
        ratio = log_ratio.exp()
        upper = lower = ratio
        if self.clip is not None:
            upper = ratio.clamp(max=1.0 + self.clip.high)
            lower = ratio.clamp(min=1.0 - self.clip.low, max=self.clip.dual)
        loss = -(positive * upper + negative * lower).sum()

        trained = streams.weight_kl > 0
        sums = {
            "ratio": ratio,
            "clip_fraction": ((upper != ratio) & (positive > 0)) | ((lower != ratio) & (negative < 0)),
            "approximate_kl": (-log_ratio).expm1() + log_ratio,
            "entropy": outputs.entropy,
        }
        if self.kl is not None:
            difference = streams.reference_logprob - outputs.logprob
            difference = difference.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
            divergence = difference.expm1() - difference
            loss = loss + self.kl.coefficient * (streams.weight_kl * divergence).sum()
            sums["reference_kl"] = divergence
        if self.entropy:
            loss = loss - self.entropy * (streams.weight_entropy * outputs.entropy).sum()

        metrics = {name: (value.detach() * trained).sum() for name, value in sums.items()}
        return loss, {**metrics, "tokens": trained.sum()}
