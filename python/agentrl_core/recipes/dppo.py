"""DPPO: mask a token by how far its probability has moved, not by its ratio (arXiv:2602.04879).

    L = - mean over tokens of M_t sg(min(r_t, 5)) A_t log p_t,   A = R - mean(R)
    M_t = 0 if A_t > 0 and p_t - p_old > 0.2, or A_t < 0 and p_old - p_t > 0.2, else 1

The ratio of an unlikely token leaves a clip range after a tiny change of its probability; the ratio of a likely token
leaves it only after a large change. A divergence between the two probabilities treats both tokens equally. This recipe
uses the paper's binary total variation; the paper's binary KL is `DivergenceMask("kl", 0.05, 0.05)`, and its top-K
divergences need `support="top"`. p_old is the policy that sampled. verl's `dppo_tv` bounds the ratio at 20:
`Reinforce("ratio", "ratio", at_most=20)`.

Equations:
    Read: the paper's sections 4.3 to 5.3 with appendices C, E and F.3, and the authors' code.

    - 12, objective: `Policy` with `DivergenceMask`; equation 12 has the gradient of `Reinforce` without `at_most`.
    - 13, binary TV: `DivergenceMask("tv")`.
    - 14, binary KL: `DivergenceMask("kl")`.
    - 15 and 16, top-K TV and KL: `DivergenceMask(support="top")`, an option.
    - 23, gradient: `Reinforce("ratio", "ratio", at_most=5.0)`; the advantage is `GroupRelative(scale="none")`.

Differs:
    - Optimizer steps: 8, as in the scaling runs, from which the bound C = 5 and the threshold 0.2 are also taken; the
      stability test makes 4, with a threshold of 0.15 and no bound.
    - Mean over tokens: equations 12 and 23 sum over the tokens of an answer; the mean over the tokens of a mini-batch
      has the same direction.
    - KL: 1e-8 is added to both complements, as in the code.
    - Likeliest tokens: computed by the trainer, with the policy before its first optimizer step; the engine that
      sampled need not return them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option, token
from agentrl_core.loss import ClipBounds, Mask, Policy, Reinforce, Tokens, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DivergenceMask(Mask):
    """Mask tokens whose probability has moved too far, instead of bounding the ratio.

    Let q and p be the probabilities of a few tokens when sampled and now, with everything else as one more class:

        `tv`: D = 1/2 sum |q - p|        `kl`: D = sum q log(q / p), 1e-8 added to the probabilities of everything else

    A token is masked if its probability has moved in the direction of its advantage and D is above a threshold: `high`
    for a positive advantage, `low` for a negative one. With the support `sampled`, the few tokens are only the sampled
    one. With `top`, they are the sampler's likeliest tokens and the sampled one;
    `arl.annotate(batch, "sampler_logprob", policy, top_k=20)` makes the columns. Use the mask with
    `Reinforce("ratio", "ratio", at_most=5)` and `clip=None`.

    Args:
        kind: the divergence, `tv` or `kl`.
        low: threshold for tokens with a negative advantage, above 0.
        high: threshold for tokens with a positive advantage, above 0.
        support: the few tokens, `sampled` or `top`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.dppo import DivergenceMask
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.5, 0.5]).log()}
        >>> tokens = Tokens(torch.tensor([0.6, 0.9]).log(), None, streams)
        >>> [factor.tolist() for factor in DivergenceMask()(tokens, tokens.log_ratio, ClipBounds())]
        [[1.0, 0.0], [1.0, 1.0]]
    """

    kind: Literal["tv", "kl"] = "tv"
    low: float = option(0.2, above=0)
    high: float = option(0.2, above=0)
    support: Literal["sampled", "top"] = "sampled"

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read: old log-probs; with `top` also token ids and the sampler's likeliest tokens."""
        yield "old_logprob"
        if self.support == "top":
            yield token("token")
            yield token("sampler_top_ids", model="policy")
            yield token("sampler_top_logprobs", model="policy")

    def own_reads_outputs(self) -> Iterable[str]:
        """Return the outputs to read: with `top`, the policy's log-probs of the sampler's likeliest tokens."""
        if self.support == "top":
            yield "top_logprobs:sampler_top_ids"

    def divergence(self, tokens: Tokens) -> Tensor:
        """Return the divergence of the policy from the old one at each row, `[N]`, without gradient."""
        old, new = tokens.stream("old_logprob")[:, None], tokens.logprob.detach()[:, None]
        if self.support == "top":
            known = (tokens.stream("sampler_top_ids") == tokens.stream("token")[:, None]).any(1, keepdim=True)
            old, new = (torch.where(known, -torch.inf, each) for each in (old, new))
            old = torch.cat([tokens.stream("sampler_top_logprobs").to(old), old], dim=1)
            new = torch.cat([tokens.output("top_logprobs").detach()[:, :-1].to(new), new], dim=1)
        q, p = old.exp(), new.exp()
        q_rest, p_rest = ((1.0 - each.sum(1)).clamp(min=0.0) for each in (q, p))
        if self.kind == "tv":
            return ((q - p).abs().sum(1) + (q_rest - p_rest).abs()) / 2.0
        terms = torch.where(torch.isneginf(old), 0.0, q * (old - new))
        return terms.sum(1) + q_rest * ((q_rest + 1e-8) / (p_rest + 1e-8)).log()

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the factors for positive and for negative advantages: 0 for masked tokens, else 1."""
        divergence = self.divergence(tokens)
        logprob_change = tokens.logprob.detach() - tokens.stream("old_logprob")
        positive = (divergence <= self.high) | (logprob_change <= 0)
        negative = (divergence <= self.low) | (logprob_change >= 0)
        return positive.to(tokens.logprob), negative.to(tokens.logprob)


DPPO = Recipe(
    name="dppo",
    source="arXiv:2602.04879",
    advantage=GroupRelative(scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce("ratio", "ratio", at_most=5.0), mask=DivergenceMask()),
    minibatches=8,
)
