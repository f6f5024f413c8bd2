"""Shared parts of the benches of the fused loss: a pack of random pairs, the plain loss, and the fp64 reference."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl_core import loss
from agentrl_core.model.pack import Pack, PackOutput, Streams

POLICY = loss.Policy(clip=loss.Clip(0.2, 0.28), kl=loss.KL(0.01), entropy=0.01)


@dataclass
class Problem:
    """N prediction pairs of hidden size H over a vocabulary of V: the inputs of the head and the loss."""

    hidden: Tensor
    weight: Tensor
    pack: Pack
    policy: loss.Loss = POLICY

    @classmethod
    def random(
        cls, rows: int, size: int, vocabulary: int, device: str, dtype: torch.dtype, *, sequences: int | None = None
    ) -> Problem:
        """Return a random problem.

        Logits have a spread of about 2; old log-probs are near the new ones, so that some rows are clipped. With
        `sequences`, rows form that number of equal sequences, advantages are per sequence and the temperature is 1: all
        that peers support.
        """
        make = torch.Generator(device).manual_seed(0)
        hidden = torch.randn(rows, size, generator=make, device=device).to(dtype)
        weight = (2.0 * size**-0.5 * torch.randn(vocabulary, size, generator=make, device=device)).to(dtype)
        ids = torch.arange(rows, device=device)
        target = torch.randint(0, vocabulary, (rows,), generator=make, device=device)
        advantage = torch.randn(rows, generator=make, device=device) / rows
        scale = 0.7 + 0.6 * torch.rand(rows, generator=make, device=device)
        if sequences is not None:
            advantage = advantage[:sequences].repeat_interleave(rows // sequences)
            scale = torch.ones_like(scale)
        noise = 0.2 * torch.randn(2, rows, generator=make, device=device)
        streams = Streams(
            inverse_temperature=scale,
            weight_kl=torch.full((rows,), 1.0 / rows, device=device),
            weight_entropy=torch.full((rows,), 1.0 / rows, device=device),
            advantage_positive=advantage.clamp(min=0.0),
            advantage_negative=advantage.clamp(max=0.0),
        )
        lengths = torch.tensor([0, rows], dtype=torch.int32, device=device)
        problem = cls(hidden, weight, Pack(ids, ids, lengths, rows, ids, target, ids, ids, streams))
        now = torch.cat([part.logprob.detach().float() for part, _ in problem.exact_parts()])
        streams["old_logprob"], streams["reference_logprob"] = now + noise[0], now + noise[1]
        problem.hidden.requires_grad_()
        problem.weight.requires_grad_()
        return problem

    def clear(self) -> None:
        """Clear the gradients."""
        self.hidden.grad = self.weight.grad = None

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of the last backward pass."""
        assert self.hidden.grad is not None
        assert self.weight.grad is not None
        return self.hidden.grad, self.weight.grad

    def fused(self, workspace: int | None = None) -> Tensor:
        """Run our loss forward and backward."""
        self.clear()
        output = loss.fused(self.hidden, self.weight, self.pack, self.policy, workspace=workspace)
        output.loss.backward()
        return output.loss.detach()

    def evaluated(self, logprob: Tensor, entropy: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the loss of some rows from their log-probs and entropies."""
        streams = {name: values[rows] for name, values in self.pack.streams.items()}
        return self.policy.evaluate(loss.Tokens(logprob, entropy, streams))[0]

    def exact_parts(self, rows: int = 256) -> list[tuple[PackOutput, slice]]:
        """Return log-probs and entropies in fp64, in chunks of rows."""
        return list(self._exact(self.hidden.detach().double(), self.weight.detach().double(), rows))

    def truth(self, rows: int = 256) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-prob, entropy, and gradients by hidden states and weight in fp64, in chunks of rows."""
        hidden = self.hidden.detach().double().requires_grad_()
        weight = self.weight.detach().double().requires_grad_()
        outputs = []
        for output, part in self._exact(hidden, weight, rows):
            self.evaluated(output.logprob, output.entropy, part).backward()
            outputs.append((output.logprob.detach(), output.entropy.detach()))
        logprob, entropy = (torch.cat(parts) for parts in zip(*outputs, strict=True))
        assert hidden.grad is not None
        assert weight.grad is not None
        return logprob, entropy, hidden.grad, weight.grad

    def _exact(self, hidden: Tensor, weight: Tensor, rows: int):  # noqa: ANN202 - a generator of the two above
        for begin in itertools.count(0, rows):
            if begin >= len(self.pack.target):
                return
            part = slice(begin, begin + rows)
            logits = (hidden[part] @ weight.T) * self.pack.streams.inverse_temperature[part, None].double()
            log_p = logits.log_softmax(1)
            chosen = log_p.gather(1, self.pack.target[part, None]).squeeze(1)
            yield PackOutput(chosen, -(log_p.exp() * log_p).sum(1)), part


def plain_head(hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies by common code: all logits at once, converted to fp32."""
    logits = torch.nn.functional.linear(hidden, weight).float() * scale[:, None]
    log_p = logits.log_softmax(-1)
    return log_p.gather(1, target[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)
