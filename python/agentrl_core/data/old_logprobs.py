"""Write the kind of old log-probs of fresh draws into table `draws`."""

from __future__ import annotations

import numpy as np

from agentrl_core.data.batch import Batch
from agentrl_core.data.codes import CODES
from agentrl_core.data.draws import OldLogprob


def with_old_logprobs(batch: Batch, name: OldLogprob) -> Batch:
    """Return the batch with this kind of old log-probs for fresh draws; `behaviour` changes nothing."""
    if name == "behaviour":
        return batch
    codes = np.asarray(batch.column("old_logprob", "draw"), np.uint8)
    fresh = np.asarray(batch.column("source", "draw")) == CODES["source"].index("fresh")
    said = np.where(fresh, np.uint8(CODES["old_logprob"].index(name)), codes)
    return Batch(batch._core.with_old_logprobs(said))
