"""Gradient caching: the exact loss over the rows of several packs, with the memory of one pack.

A loss may compare rows of different packs. So every pack is run without gradients, the loss L is evaluated once on the
model's outputs for all rows, and every pack is run again with the gradients of L by its outputs. With y_i the outputs
for row i (log-prob, entropy and others), the gradient of L is the sum over rows of dL/dy_i times that of y_i. Packs
stay independent of each other for any L (GradCache, arXiv:2101.06983).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.chunked_logits import FusedOutput
from agentrl_core.loss.inputs import Tokens
from agentrl_core.model.collectives import counts_of_rows, gathered_rows
from agentrl_core.model.pack import Pack, PackOutput
from agentrl_core.model.ranks import Group
from agentrl_core.model.recorded_routes import routed_rows
from agentrl_core.update.prepared_batch import IDS, OF_BATCH

if TYPE_CHECKING:
    from agentrl_core.loss import Loss

Run = Callable[[Pack], PackOutput]
Rows = dict[str, Tensor]
_ROUTED = "routed_tokens"
"""Name of the metric, and of the column, of rows whose source token has recorded experts."""


class GradientCache:
    """A loss over all rows of several packs, which are run one at a time.

    Args:
        loss: the loss.
        model: a module, or a function from a pack to its outputs.
        group: the ranks that hold packs of the same update, or None.

    Attributes:
        ranks: number of ranks over which the model's wrapper averages gradients, from the output of a pack.
    """

    def __init__(self, loss: Loss, model: nn.Module | Run, group: Group | None) -> None:
        self.ranks: int | None = None
        self._loss = loss
        self._run: Run = (lambda pack: pack.run(model)) if isinstance(model, nn.Module) else model
        self._group = group

    def in_one_pack(self, pack: Pack) -> tuple[Tensor, Rows]:
        """Return loss and metrics of a pack with all rows, from one run; the loss has its gradient."""
        outputs = self._outputs(pack)
        device_pack = pack.to(outputs["logprob"].device)
        return self._evaluated(device_pack.token, outputs, _columns(device_pack))

    def evaluate(self, packs: Iterable[Pack]) -> tuple[Tensor, Rows]:
        """Run the packs without gradients, and return the loss of all rows, without gradient, and its metrics."""
        self._noise: list[_Noise] = []
        tokens: list[Tensor] = []
        outputs: list[Rows] = []
        streams: list[Rows] = []
        with torch.no_grad():
            for pack in packs:
                self._noise.append(_Noise())
                outputs.append(self._outputs(pack))
                device_pack = pack.to(outputs[-1]["logprob"].device)
                tokens.append(device_pack.token.clone())  # the memory of a pack may be reused
                streams.append({name: rows.clone() for name, rows in _columns(device_pack).items()})
        ends = np.cumsum([len(rows) for rows in tokens]).tolist()
        self._rows = [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]
        counts, own_rows = [ends[-1]], slice(0, ends[-1])
        if self._group is not None:
            counts = counts_of_rows(ends[-1], tokens[0].device, self._group)
            before = sum(counts[: self._group.rank()])
            own_rows = slice(before, before + ends[-1])

        def joined(parts: list[Tensor]) -> Tensor:
            rows = torch.cat(parts).detach()
            return rows if self._group is None else torch.cat(gathered_rows(rows, counts, self._group))

        leaves = {name: joined([rows[name] for rows in outputs]).requires_grad_() for name in outputs[0]}
        columns = {name: joined([rows[name] for rows in streams]) for name in streams[0]}
        value, metrics = self._evaluated(joined(tokens), leaves, columns)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        used = {name: gradient for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None}
        self._gradients = {name: gradient[own_rows] for name, gradient in used.items()}
        weight = columns["weight_kl"].to(value.dtype)
        self._shares = (value.detach() * weight / weight.sum())[own_rows]
        return value.detach(), metrics

    def parts(self, packs: Iterable[Pack]) -> Iterator[tuple[Tensor, Rows]]:
        """Run the packs of `evaluate` again; yield each pack's part of the loss, with gradients, and its outputs."""
        for pack, noise, rows in zip(packs, self._noise, self._rows, strict=True):
            noise.repeat()
            outputs = self._outputs(pack)
            yield self._part(outputs, rows), outputs

    def _part(self, outputs: Rows, rows: slice) -> Tensor:
        live = [name for name in self._gradients if outputs[name].requires_grad]
        gradients = [self._gradients[name][rows] for name in live]
        part: Tensor = _KnownGradients.apply(  # type: ignore[no-untyped-call]
            self._shares[rows].sum(), gradients, *(outputs[name] for name in live)
        )
        return part

    def _outputs(self, pack: Pack) -> Rows:
        """Return the model's outputs for a pack, by name."""
        output: object = self._run(pack)
        if not isinstance(output, PackOutput) or isinstance(output, FusedOutput):
            raise InvalidInputError(
                f"model: the function returned {type(output).__name__} for a pack; return a PackOutput, such as "
                "pack.run(model), or PackOutput(*loss.linear_logprob(...)) to avoid storing logits"
            )
        self.ranks = output.ranks
        outputs = {name: values for name, values in vars(output).items() if isinstance(values, Tensor)}
        for name, values in outputs.items():
            if values.shape[:1] != pack.token.shape:
                raise InvalidInputError(
                    f"model: the function returned {name} of shape {tuple(values.shape)} for a pack with "
                    f"{len(pack.token)} tokens to score; return one row for each entry of pack.token"
                )
        return outputs

    def _evaluated(self, token: Tensor, outputs: Rows, columns: Mapping[str, Tensor]) -> tuple[Tensor, Rows]:
        """Return loss and metrics of rows in the order of tokens, which does not depend on layout or pack size."""
        order = token.argsort()
        streams = {name: values[order] for name, values in columns.items() if name != _ROUTED}
        for name in streams.keys() & set(IDS):
            streams[name] = torch.unique(streams.pop(name + OF_BATCH), return_inverse=True)[1]
        answers = SimpleNamespace(**{name: values[order] for name, values in outputs.items()})
        entropy = answers.entropy if self._loss.needs_entropy_gradient else answers.entropy.detach()
        value, metrics = self._loss.evaluate(Tokens(answers.logprob, entropy, streams, answers))
        return value, {**metrics, _ROUTED: columns[_ROUTED].sum()} if _ROUTED in columns else metrics


def _columns(pack: Pack) -> Rows:
    """Return the streams of a pack, and which rows have recorded experts if these are replayed."""
    routed = routed_rows(pack)
    return dict(pack.streams) if routed is None else {**pack.streams, _ROUTED: routed.float()}


class _KnownGradients(torch.autograd.Function):
    """Autograd function: a scalar whose gradients by the model's outputs are given."""

    @staticmethod
    def forward(context: Any, value: Tensor, gradients: list[Tensor], *_: Tensor) -> Tensor:
        context.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(context: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(by * gradient for gradient in context.saved_tensors)


class _Noise:
    """Saved state of torch's random generators, to repeat a run with the same dropout."""

    def __init__(self) -> None:
        self._host = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def repeat(self) -> None:
        torch.set_rng_state(self._host)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
