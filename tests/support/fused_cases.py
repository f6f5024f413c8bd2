"""Random packs with hidden states and a head, and reference implementations of the fused loss."""

from __future__ import annotations

import torch
from cases import Case
from systems import LOSSES
from torch import Tensor

from agentrl_core import loss
from agentrl_core.model.pack import Pack, PackOutput, Streams

TOKENS, SIZE, VOCABULARY = 21, 6, 37
HEADS = {
    "bias": {"bias": True},
    "factor": {"factor": 0.3},
    "soft cap": {"softcap": 1.5},
    "all": {"bias": True, "factor": 1.7, "softcap": 2},
}
EVERYTHING = LOSSES["everything"]
SEQUENCES = loss.Policy(ratio=loss.Ratio("sequence"), clip=loss.Clip(0.3, 0.4), entropy=0.1)


def pack_of(streams: dict[str, Tensor], seed: int = 0) -> Pack:
    """Return prediction pairs of random targets; some hidden states have several."""
    make = torch.Generator().manual_seed(seed)
    count = len(streams["weight_kl"])
    scale = torch.rand(count, generator=make, dtype=torch.float64) + 0.5
    tokens = torch.arange(TOKENS)
    return Pack(
        input_ids=tokens,
        position_ids=tokens,
        cu_seqlens=torch.tensor([0, TOKENS], dtype=torch.int32),
        max_seqlen=TOKENS,
        source_row=torch.randint(0, TOKENS, (count,), generator=make),
        target=torch.randint(0, VOCABULARY, (count,), generator=make),
        token=torch.arange(count),
        node_token=torch.arange(count),
        streams=Streams({"inverse_temperature": scale, **streams}),
    )


def problem(seed: int = 0, dtype: torch.dtype = torch.float64, **options: object) -> tuple[Tensor, Tensor, Pack]:
    """Return hidden states, weight and pack; the old log-probs are near the new ones."""
    make = torch.Generator().manual_seed(seed)
    hidden = torch.randn(TOKENS, SIZE, generator=make, dtype=torch.float64).to(dtype)
    weight = (0.5 * torch.randn(VOCABULARY, SIZE, generator=make, dtype=torch.float64)).to(dtype)
    case = Case.random(seed, **options)
    pack = pack_of(case.streams, seed)
    near = naive(hidden.double(), weight.double(), pack).logprob
    for name in ("old_logprob", "reference_logprob", "proximal_logprob", "other_logprob"):
        noise = 0.4 * torch.randn(len(near), generator=make, dtype=torch.float64)
        pack.streams[name] = (near + noise).clamp(max=-0.01)
    return hidden.requires_grad_(), weight.requires_grad_(), pack


def head_of(name: str, dtype: torch.dtype = torch.float64) -> dict[str, object]:
    """Return options of a head, with a random bias if the head has one."""
    options: dict[str, object] = dict(HEADS[name])
    if "bias" in options:
        bias = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        options["bias"] = bias.to(dtype).requires_grad_()
    return options


def naive(
    hidden: Tensor,
    weight: Tensor,
    pack: Pack,
    bias: Tensor | None = None,
    factor: float = 1.0,
    softcap: float | None = None,
) -> PackOutput:
    """Compute the loss by its definition, with all logits at once."""
    logits = factor * (hidden[pack.source_row] @ weight.T + (0.0 if bias is None else bias))
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    log_p = (logits * pack.streams.inverse_temperature[:, None].to(hidden.dtype)).log_softmax(1)
    return PackOutput(log_p.gather(1, pack.target[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(1))
