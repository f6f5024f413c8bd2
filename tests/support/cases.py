"""Random rows for losses, in fp64, and naive loops over them: the base of the transcriptions of formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from agentrl_core.loss import Loss, Tokens

BINS = 7


@dataclass
class Case:
    """N rows: sequences of two steps each, in pairs and in groups of up to four; every stream any loss reads."""

    logprob: Tensor
    entropy: Tensor
    advantage: Tensor
    weight: Tensor
    streams: dict[str, Tensor]
    answers: SimpleNamespace

    @classmethod
    def random(cls, seed: int = 0, *, spread: float = 0.4, per: str = "token", labels: bool = False) -> Case:
        """Return rows with this spread of log-ratios; advantages (or +-1 labels), weights per token or sequence."""
        make = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=make, dtype=torch.float64)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=make, dtype=torch.float64)

        lengths = [5, 3, 1, 4, 6, 2, 3, 3]
        sequence = torch.cat([torch.full((length,), index) for index, length in enumerate(lengths)])
        step = torch.cat([torch.arange(length) * 2 // length + 2 * index for index, length in enumerate(lengths)])
        _, step = step.unique(return_inverse=True)
        count = len(sequence)
        old = -3.0 * uniform(count) - 0.05
        advantage = normal(len(lengths))
        if labels:
            advantage = torch.tensor([1.0, -1.0] * (len(lengths) // 2), dtype=torch.float64)
        weight = 0.1 + uniform(len(lengths))
        if per == "token":
            weight, advantage = 0.1 + uniform(count), normal(count)
        else:
            weight, advantage = weight[sequence], advantage[sequence]
        logprob = (old + spread * normal(count)).clamp(max=-0.01)
        streams = {
            "old_logprob": old,
            "reference_logprob": (logprob + 0.5 * normal(count)).clamp(max=-0.01),
            "proximal_logprob": (old + 0.1 * normal(count)).clamp(max=-0.01),
            "other_logprob": -4.0 * uniform(count) - 0.05,
            "weight_kl": weight,
            "weight_entropy": 0.5 * weight,
            "advantage_positive": weight * advantage.clamp(min=0),
            "advantage_negative": weight * advantage.clamp(max=0),
            "sequence": sequence,
            "step": step,
            "pair": sequence // 2,
            "group": torch.where(sequence < 4, 0, torch.where(sequence < 7, 1, 2)),
            "stratum": torch.arange(count) % 3,
            "policy_version": torch.arange(count, dtype=torch.float64) % 5 - 1,
            "iteration": torch.full((count,), 3.0, dtype=torch.float64),
            "item": torch.arange(count, dtype=torch.float64) % 4,
            "score": advantage if per == "sequence" else (sequence % 3).double(),
            "reward_reference_logprob": (old + 0.2 * normal(count)).clamp(max=-0.01),
            "expert": (sequence % 3 == 0).double(),
            "imitation": uniform(count),
            "dependency": uniform(count),
            "clip_low": 0.3 * uniform(count) + 0.01,
            "clip_high": 0.3 * uniform(count) + 0.01,
            "entropy_history": torch.where(uniform(count) < 0.3, 0.0, uniform(count)),
            "old_mean_logprob": -5.0 - uniform(count),
            "return": uniform(count),
            "old_value": uniform(count),
            "gain": normal(count),
            "inverse_temperature": 0.5 + uniform(count),
        }
        streams["share_first"] = 0.1 + 0.2 * (torch.arange(count, dtype=torch.float64) % 5)
        streams["share_second"] = 1.0 - streams["share_first"]
        streams["trust"], streams["slope"] = streams["share_first"], streams["share_second"] - 0.9
        streams["worse_members"] = (sequence % 3 + 1).double()
        answers = SimpleNamespace(
            value=normal(count),
            value_logits=normal(count, BINS),
            full_kl=uniform(count),
            top_p_entropy=uniform(count),
            mean_logprob=-5.0 - uniform(count),
            soft_value=normal(count),
            max_logprob=-uniform(count),
        )
        entropy = 2.0 * uniform(count)
        streams["teacher_logprob"] = (logprob + 0.5 * normal(count)).clamp(max=-0.01)
        answers.divergence = uniform(count)
        return cls(logprob, entropy, advantage, weight, streams, answers)

    def tokens(self, logprob: Tensor | None = None, entropy: Tensor | None = None, **answers: Tensor) -> Tokens:
        """Return the rows as a loss reads them, with other log-probs, entropies or answers if given."""
        everything = SimpleNamespace(**{**vars(self.answers), **answers})
        return Tokens(
            self.logprob if logprob is None else logprob,
            self.entropy if entropy is None else entropy,
            self.streams,
            everything,
        )

    def rows(self, level: str) -> list[Tensor]:
        """Return the indices of the rows of each segment."""
        ids = self.streams[level]
        return [torch.nonzero(ids == number).squeeze(1) for number in range(int(ids.max()) + 1)]

    def parts(self, level: str) -> Iterator[list[Tensor]]:
        """Yield the rows of each sequence, for each pair or group."""
        for rows in self.rows(level):
            inside = self.streams["sequence"][rows]
            yield [rows[inside == number] for number in inside.unique()]

    def __getattr__(self, name: str) -> Tensor:
        return self.streams[name]


def agree(policy: Loss, case: Case, expected: object, tolerance: float = 1e-11) -> Tensor:
    """Check a loss and its gradients against `expected(logprob, entropy, answers)`; return the gradient by log-prob."""
    results = []
    for evaluate in (
        lambda logprob, entropy, answers: policy.evaluate(case.tokens(logprob, entropy, **vars(answers)))[0],
        expected,
    ):
        logprob, entropy = case.logprob.clone().requires_grad_(), case.entropy.clone().requires_grad_()
        answers = SimpleNamespace(
            **{name: value.clone().requires_grad_() for name, value in vars(case.answers).items()}
        )
        leaves = (logprob, entropy, *vars(answers).values())
        value = evaluate(logprob, entropy, answers)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        results.append((value.detach(), gradients))
    (value, gradients), (expected_value, expected_gradients) = results
    torch.testing.assert_close(value, expected_value, rtol=tolerance, atol=tolerance)
    for actual, right in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual, right, rtol=tolerance, atol=tolerance)
    assert any(gradient.abs().max() > 1e-6 for gradient in expected_gradients), "the transcription has no gradient"
    return expected_gradients[0]


Objective = Callable[[Case, Tensor, Tensor, int], Tensor]
"""A function of the case, ratios, log-probs and row: the contribution of a token of weight 1 to the objective."""


def transcribed(case: Case, objective: Objective) -> Callable[..., Tensor]:
    def total(logprob: Tensor, *_: object) -> Tensor:
        ratio = (logprob - case.old_logprob).exp()
        rows = range(len(logprob))
        return -torch.stack([case.weight[t] * objective(case, ratio, logprob, t) for t in rows]).sum()

    return total


def ppo(ratio: Tensor, advantage: Tensor, lower: float | Tensor, upper: float | Tensor, dual: float = 1e9) -> Tensor:
    """Compute min(rA, clip(r) A), bounded below by dual * A for negative A."""
    objective = torch.minimum(ratio * advantage, torch.clamp(ratio, lower, upper) * advantage)
    return torch.maximum(objective, dual * advantage) if advantage < 0 else objective


def gated(case: Case, factors: Tensor) -> Callable[..., Tensor]:
    """Return PPO as a function of the rows, with these factors of the tokens."""

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        return factors[t] * ppo(ratio[t], case.advantage[t], 0.8, 1.2)

    return transcribed(case, objective)


def total(case: Case, rows: Tensor) -> Tensor:
    """Return the weight of the unit of these rows."""
    return case.weight[rows].sum()
