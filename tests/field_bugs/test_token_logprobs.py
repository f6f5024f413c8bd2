"""Log-probs of tokens that the engine could not score."""

import math

import numpy as np
import pytest

import agentrl_core as arl


@pytest.mark.parametrize("unknown", [math.nan, None], ids=str)
def test_masked_token_may_have_any_logprob(unknown):
    """TRL#6166, OpenRLHF#1240: the error advises to mask the token, and then rejects the masked token too."""
    for logprob in (-math.inf, unknown):
        forest = arl.Forest()
        forest.add_group(0, "task")
        trajectory = forest.start(0, 0)
        forest.ingest([trajectory], [[1, 2]], [[3, 4, 5]], logprobs=[[-0.5, logprob, -0.1]], trainable=[[1, 0, 1]])
        forest.finish(trajectory, reward=0.0)
        batch = forest.freeze()
        assert batch.column("token", "token").tolist() == [3, 4, 5]
        np.testing.assert_array_equal(batch.column("trainable", "token"), [1, 0, 1])
