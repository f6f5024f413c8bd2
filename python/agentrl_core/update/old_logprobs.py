"""Old log-probs, the denominators of each draw's ratio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.data.replayed_draws import OldLogprob
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError

_BEHAVIOUR, _RECOMPUTED, _NONE = map(CODES["old_logprob"].index, ("behaviour", "recomputed", "none"))
_COLUMNS = {_BEHAVIOUR: "behaviour_logprob", _RECOMPUTED: "recomputed_logprob"}


@dataclass(frozen=True, eq=False)
class OldLogprobs:
    """The old log-probs of the tokens of a batch.

    Attributes:
        column: the token column that all or most draws use, for messages.
        values: `float32[tokens]`, NaN in draws without old log-probs; None: use the column unchanged.
        none: `bool[tokens]`, tokens of draws without old log-probs; their ratio is 1.
    """

    column: str
    values: NDArray[np.float32] | None = None
    none: NDArray[np.bool_] | None = None


def with_old_logprobs(batch: Batch, name: OldLogprob) -> Batch:
    """Mark fresh draws as using this kind of old log-probs, without computing them; `behaviour` changes nothing."""
    if name == "behaviour":
        return batch
    codes = np.asarray(batch.column("old_logprob", "draw"), np.uint8)
    fresh = np.asarray(batch.column("source", "draw")) == CODES["source"].index("fresh")
    updated = np.where(fresh, np.uint8(CODES["old_logprob"].index(name)), codes)
    return Batch(batch._core.with_old_logprobs(updated))  # noqa: SLF001 -- stored in the table of draws


def old_logprobs(batch: Batch) -> OldLogprobs:
    """Return the old log-probs of the tokens, of the kind in column `old_logprob` of their draws.

    `behaviour`: those recorded when sampling. `recomputed`: column `recomputed_logprob`. `none`: no old log-probs, so
    that the ratio is 1 with the gradient of log p.

    Raises:
        InvalidInputError: a draw needs `recomputed`, but the column is missing.
    """
    codes = np.asarray(batch.column("old_logprob", "draw")).astype(np.int64)
    kinds = set(np.unique(codes).tolist())
    if kinds <= {_BEHAVIOUR}:
        return OldLogprobs(_COLUMNS[_BEHAVIOUR])
    if _RECOMPUTED in kinds and not batch.has(_COLUMNS[_RECOMPUTED], "token"):
        raise InvalidInputError(
            "the batch has draws with old_logprob='recomputed' but no column 'recomputed_logprob'; call batch = "
            "arl.annotate(batch, 'recomputed_logprob', policy) before the updates"
        )
    if kinds == {_RECOMPUTED}:
        return OldLogprobs(_COLUMNS[_RECOMPUTED])
    steps = np.diff(batch.offsets("token")[batch.offsets("step")])
    of_tokens = np.repeat(codes, steps)
    values = np.full(len(of_tokens), np.nan, np.float32)
    for code in kinds - {_NONE}:
        chosen = of_tokens == code
        values[chosen] = np.asarray(batch.column(_COLUMNS[code], "token"), np.float32)[chosen]
    most = _RECOMPUTED if _BEHAVIOUR not in kinds else _BEHAVIOUR
    return OldLogprobs(_COLUMNS[most], values, of_tokens == _NONE)
