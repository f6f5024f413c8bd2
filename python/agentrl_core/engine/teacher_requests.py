"""Convert a pack to sequences for a served teacher, and the teacher's scores back to the pack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.lazy_torch import torch
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.model.pack import Pack

Tokens = NDArray[np.int64]
Scores = Sequence[NDArray[np.float64]]
"""For each sequence, a row for each requested place: log-prob, ids and log-probs of the most likely tokens."""


def teacher_answers(
    pack: Pack, top_k: int | None, score: Callable[[list[Tokens], list[Tokens]], Scores]
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Return log-probs of a pack's targets `[N]`; with `top_k` also ids and log-probs of the likeliest `[N, k]`.

    Args:
        pack: pack of sequences, sampled at temperature 1.
        top_k: number of most likely tokens, or None.
        score: function of sequences and of the requested places in each, which returns a table
            `[places, 1 + 2 top_k]` for each sequence.

    Raises:
        UnsupportedError: the pack shows images.
        InvalidInputError: a token was sampled at another temperature.
    """
    if pack.images is not None and pack.images.hashes:
        raise UnsupportedError(
            "batch: rollouts show images, and a served teacher would score their placeholders without them; give the "
            "teacher as a local model, or leave these draws out (batch.select_draws)"
        )
    scale = pack.streams.inverse_temperature
    other = torch.nonzero((scale - 1.0).abs() > 1e-6)
    if len(other):
        raise InvalidInputError(
            f"batch: token {int(other[0, 0])} of a pack was sampled at temperature "
            f"{1.0 / float(scale[other[0, 0]]):.4g}, but vLLM scores given tokens at temperature 1; sample at 1, or "
            "give the teacher as a local model"
        )
    prompts, rows, places = _requests(pack)
    width = top_k or 0
    order = np.argsort(np.concatenate([np.zeros(0, np.int64), *rows]))
    table = np.concatenate([np.zeros((0, 1 + 2 * width)), *score(prompts, places)])[order]
    logprob, ids, top = table[:, 0], table[:, 1 : 1 + width], table[:, 1 + width :]
    if top_k is None:
        return torch.from_numpy(logprob)
    return torch.from_numpy(logprob), torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(top)


def _requests(pack: Pack) -> tuple[list[Tokens], list[Tokens], list[Tokens]]:
    """Return the sequences to score, the prediction pairs that each one covers, and the places of their tokens.

    A pair whose token follows its row in a sequence is scored by that sequence. The last target of a sequence is not
    among its inputs, so it is appended. Another token on the same row, sampled by a branch, gets its own sequence.
    """
    tokens, bounds = pack.input_ids.cpu().numpy(), pack.cu_seqlens.cpu().numpy().astype(np.int64)
    source, target = pack.source_row.cpu().numpy(), pack.target.cpu().numpy()
    sequence = np.searchsorted(bounds, source, side="right") - 1
    ends = bounds[sequence + 1]
    follows = (source + 1 < ends) & (tokens[np.minimum(source + 1, len(tokens) - 1)] == target)
    last = source + 1 == ends
    appended = np.full(len(bounds) - 1, -1)
    appended[sequence[last][::-1]] = target[last][::-1]
    follows |= last & (target == appended[sequence])
    prompts, rows, places = [], [], []
    for one in np.unique(sequence[follows]).tolist():
        covered = np.flatnonzero(follows & (sequence == one))
        last_token = appended[one : one + 1][appended[one : one + 1] >= 0]
        prompts.append(np.concatenate([tokens[bounds[one] : bounds[one + 1]], last_token]))
        rows.append(covered)
        places.append(source[covered] + 1 - bounds[one])
    for pair in np.flatnonzero(~follows).tolist():
        begin, end = bounds[sequence[pair]], source[pair] + 1
        prompts.append(np.append(tokens[begin:end], target[pair]))
        rows.append(np.array([pair]))
        places.append(np.array([end - begin]))
    return prompts, rows, places
