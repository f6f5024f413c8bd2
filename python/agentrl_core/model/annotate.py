"""Annotate: columns that only a model can make, pack by pack and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.pack import ANSWERS, Pack, Streams
from agentrl_core.model.probe import Probe, Questions

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch, Layout


def annotate(
    batch: Batch,
    column: str,
    model: nn.Module | Callable[[Pack], Tensor],
    *,
    max_tokens: int = 16_384,
    probe: Probe | None = None,
) -> Batch:
    """Let a model answer for every trained token of a batch, or for a probe at every step, once and without gradients.

    Args:
        batch: the batch; all its draws are run.
        column: name of the new column. It ends with the answer of `Pack.run` that a model gives: `reference_logprob`,
            `recomputed_logprob`, `current_entropy`, `value`, `old_value`, `sum_probability_squared`.
        model: a model, run at each token's sampling temperature; or a function that takes a `Pack` of sequences and
            returns `[N]` values, for a column of any name. Dropout follows the model's mode: call `model.eval()` for a
            reference.
        max_tokens: tokens of a pack.
        probe: what to ask at every step instead, at temperature 1; then `model` is a model.

    Returns:
        A batch with `column` at level `node_token`, float32, NaN where nothing was computed. Tokens find their value
        through their node, so branches that share a token share the value, and a model computes it once. With a probe
        `column` is at level `step` and `<column>_before` at level `draw`; see `Probe`.

    Raises:
        UnsupportedError: the model cannot run packs.
        InvalidInputError: the column's name ends with no answer of a model, the function returned something else than
            N values, or a sequence exceeds `max_tokens`.
    """
    if not callable(model):
        raise InvalidInputError(f"model is {model!r}; give a torch.nn.Module or a function from a Pack to [N] values")
    answer = _answer_for(column) if isinstance(model, nn.Module) else ""
    if probe is not None:
        return _asked(batch, column, answer, model, max_tokens, probe)
    values = np.full(len(batch.column("token", "node_token")), np.nan, dtype=np.float32)
    scale = np.asarray(batch.column("inverse_temperature", "token"), dtype=np.float32)
    # A function may not know trees. Either way a stored token is one pair, whichever draws train it.
    layout: Layout = "tree" if isinstance(model, nn.Module) else "sequence"
    draws = np.arange(batch.num_draws, dtype=np.int64)
    plan = batch._plan(draws, max_tokens, layout=layout, fold=[])  # noqa: SLF001 - its own plan
    for planned in map(plan.pack, range(len(plan))):
        streams = {"inverse_temperature": scale[planned.token]}
        pack = Pack.from_plan(planned, streams, entropy_gradient=False)
        with torch.no_grad():
            found = _answered(pack, model, answer) if isinstance(model, nn.Module) else model(pack)
        if found.shape != pack.target.shape:
            raise InvalidInputError(
                f"the function for column {column!r} returned shape {tuple(found.shape)} for a pack of "
                f"{len(pack.target)} prediction pairs; return one value per pair"
            )
        values[planned.node_token] = found.to("cpu", torch.float32).numpy()
    return batch.with_columns("node_token", **{column: values})


def _answered(pack: Pack, model: nn.Module, answer: str) -> Tensor:
    found: Tensor = getattr(pack.run(model, answers=(answer,) if answer in ANSWERS else ()), answer)
    return found


def _answer_for(column: str) -> str:
    """The answer of a run that a column holds, by its name."""
    names = sorted(("logprob", "entropy", *ANSWERS), key=len, reverse=True)
    for name in names:
        if column == name or column.endswith(f"_{name}"):
            return name
    raise InvalidInputError(
        f"column is {column!r}, but a model answers {', '.join(names)}; end the name with one of them, such as "
        "'reference_logprob', or give a function"
    )


def _asked(
    batch: Batch,
    column: str,
    answer: str,
    model: nn.Module | Callable[[Pack], Tensor],
    max_tokens: int,
    probe: Probe,
) -> Batch:
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"model is {type(model).__name__}, but a probe is asked of a torch.nn.Module; a function cannot read trees"
        )
    questions = Questions(batch, probe)
    asked, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    for tree, question in questions.packs(max_tokens):
        target = torch.from_numpy(tree.target)
        pack = Pack(
            input_ids=torch.from_numpy(tree.input_ids),
            position_ids=torch.from_numpy(tree.position_ids),
            cu_seqlens=torch.from_numpy(tree.cu_seqlens),
            max_seqlen=int(np.diff(tree.cu_seqlens).max()),
            source_row=torch.from_numpy(tree.source_row),
            target=target,
            token=torch.full_like(target, -1),  # probed tokens are none of the batch
            node_token=torch.full_like(target, -1),
            streams=Streams(inverse_temperature=torch.ones(len(target))),
            subtree_end=torch.from_numpy(tree.subtree_end),
            entropy_gradient=False,
        )
        with torch.no_grad():
            found = _answered(pack, model, answer)
        asked.append(question[tree.pair_tokens])
        values.append(np.repeat(found.to("cpu", torch.float64).numpy(), np.diff(tree.pair_offsets)))
    after, before = questions.columns(np.concatenate(asked), np.concatenate(values))
    return batch.with_columns("step", **{column: after}).with_columns("draw", **{f"{column}_before": before})
