"""The loss of several packs together: a run of each without gradients, the loss once, and a run with its gradients.

With L the loss of all rows and y_i what the model says about row i (log-prob, entropy, answers), the gradient of L is
the sum over rows of dL/dy_i times that of y_i. The first run gives all y, one evaluation all dL/dy, and the second run,
pack by pack, the products: no pack needs to know another one, whatever L does with the rows (arXiv:2101.06983).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.linear import FusedOutput
from agentrl_core.loss.tokens import Tokens
from agentrl_core.model.pack import Pack, PackOutput

if TYPE_CHECKING:
    from agentrl_core.loss import Loss

Run = Callable[[Pack], PackOutput]
Rows = dict[str, Tensor]


class Together:
    """A loss over all rows of some packs, which are run one at a time.

    Args:
        loss: the loss.
        ids: of every token of the batch the segments that the loss reads.
        model: what is run: a module, or a function of a pack.
        group: the processes that hold packs of the same update, or None.
    """

    def __init__(
        self,
        loss: Loss,
        ids: Mapping[str, NDArray[Any]],
        model: nn.Module | Run,
        group: distributed.ProcessGroup | None,
    ) -> None:
        self._loss = loss
        self._ids = ids
        self._run: Run = (lambda pack: pack.run(model)) if isinstance(model, nn.Module) else model
        self._group = group

    def once(self, pack: Pack) -> tuple[Tensor, Rows]:
        """Loss and metrics of a pack that holds all rows: it needs one run."""
        said = self._said(pack)
        here = pack.to(said["logprob"].device)
        return self._evaluated(here.token, said, here.streams)

    def first(self, packs: Iterable[Pack]) -> tuple[Tensor, Rows]:
        """Run the packs without gradients; the loss, without gradient, and its metrics."""
        self._noise: list[_Noise] = []
        tokens: list[Tensor] = []
        said: list[Rows] = []
        read: list[Rows] = []
        with torch.no_grad():
            for pack in packs:
                self._noise.append(_Noise())
                said.append(self._said(pack))
                here = pack.to(said[-1]["logprob"].device)
                tokens.append(here.token.clone())  # the memory of a pack may be written again
                read.append({name: stream.clone() for name, stream in here.streams.items() if name not in self._ids})
        ends = np.cumsum([len(rows) for rows in tokens]).tolist()
        self._rows = [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]
        counts, own = [ends[-1]], slice(0, ends[-1])
        if self._group is not None:
            counts = _counts(ends[-1], tokens[0].device, self._group)
            before = sum(counts[: self._group.rank()])
            own = slice(before, before + ends[-1])

        def joined(parts: list[Tensor]) -> Tensor:
            rows = torch.cat(parts).detach()
            return rows if self._group is None else _gathered(rows, counts, self._group)

        leaves = {name: joined([rows[name] for rows in said]).requires_grad_() for name in said[0]}
        streams = {name: joined([rows[name] for rows in read]) for name in read[0]}
        value, metrics = self._evaluated(joined(tokens), leaves, streams)
        found: Sequence[Tensor | None] = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        used = {name: gradient for name, gradient in zip(leaves, found, strict=True) if gradient is not None}
        self._gradients = {name: gradient[own] for name, gradient in used.items()}
        weight = streams["weight_kl"].to(value.dtype)
        self._shares = (value.detach() * weight / weight.sum())[own]
        return value.detach(), metrics

    def second(self, packs: Iterable[Pack]) -> Iterator[Tensor]:
        """Run the same packs again: of each a number that has the gradient of its rows."""
        for pack, noise, rows in zip(packs, self._noise, self._rows, strict=True):
            noise.repeat()
            yield self._part(self._said(pack), rows)

    def _part(self, said: Rows, rows: slice) -> Tensor:
        live = [name for name in self._gradients if said[name].requires_grad]
        gradients = [self._gradients[name][rows] for name in live]
        part: Tensor = _Part.apply(self._shares[rows].sum(), gradients, *(said[name] for name in live))  # type: ignore[no-untyped-call]
        return part

    def _said(self, pack: Pack) -> Rows:
        """What the model says about a pack, by name."""
        output: object = self._run(pack)
        if not isinstance(output, PackOutput) or isinstance(output, FusedOutput):
            raise InvalidInputError(
                f"the function returned {type(output).__name__} for a pack; return a PackOutput, such as "
                "pack.run(model), or PackOutput(*loss.linear_logprob(...)) where the logits shall not be kept"
            )
        said = {name: values for name, values in vars(output).items() if isinstance(values, Tensor)}
        for name, values in said.items():
            if values.shape[:1] != pack.token.shape:
                raise InvalidInputError(
                    f"the function returned {name} of shape {tuple(values.shape)} for a pack of {len(pack.token)} "
                    "prediction pairs; return one row for each"
                )
        return said

    def _evaluated(self, token: Tensor, said: Rows, read: Mapping[str, Tensor]) -> tuple[Tensor, Rows]:
        """Loss and metrics of rows in the order of their tokens, which is one for all layouts and sizes of packs."""
        order = token.argsort()
        streams = {name: values[order] for name, values in read.items()}
        for name, ids in self._ids.items():
            _, number = np.unique(ids[token[order].cpu().numpy()], return_inverse=True)
            streams[name] = torch.from_numpy(number).to(order.device)
        answers = SimpleNamespace(**{name: values[order] for name, values in said.items()})
        entropy = answers.entropy if self._loss.needs_entropy_gradient else answers.entropy.detach()
        return self._loss.evaluate(Tokens(answers.logprob, entropy, streams, answers))


class _Part(torch.autograd.Function):
    """A number whose gradients are known."""

    @staticmethod
    def forward(context: Any, value: Tensor, gradients: list[Tensor], *_: Tensor) -> Tensor:
        context.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(context: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(by * gradient for gradient in context.saved_tensors)


class _Noise:
    """Where torch's random numbers stand, so that dropout drops the same in both runs."""

    def __init__(self) -> None:
        self._host = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def repeat(self) -> None:
        torch.set_rng_state(self._host)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _counts(count: int, device: torch.device, group: distributed.ProcessGroup) -> list[int]:
    """How many rows each process has."""
    own = torch.tensor([count], device=device)
    found = [torch.empty_like(own) for _ in range(group.size())]
    distributed.all_gather(found, own, group=group)
    return [int(number) for number in found]


def _gathered(values: Tensor, counts: list[int], group: distributed.ProcessGroup) -> Tensor:
    """The rows of all processes, one after the other."""
    padded = values.new_zeros((max(counts), *values.shape[1:]))  # all send as much as the longest
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(found, padded, group=group)
    return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])
