"""GRPO for speech recognition: a transcript is paid for the words that it gets right (arXiv:2509.01939).

    R = - min(WER, 1),   WER = (substituted + deleted + inserted words) / max(1, words of the reference),   then GRPO

The environment normalises both texts and reports them; with an empty reference every word is an error. Other rewards of
the paper are an exact match, which an environment pays by itself, and edits over characters
(`reward.edit_distances` of the texts). How it mixes them is not given.

Needs: the facts `transcript` and `reference`, texts of an episode that has finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw
from agentrl_core.data.codes import CODES
from agentrl_core.loss import Policy
from agentrl_core.reward.edits import edit_distances

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class WordErrorRate(BatchComponent):
    """Pays a transcript by its errors: score = - min(edits of words / max(1, words of the reference), 1).

    Words are what blanks separate. An episode that has not finished has no transcript, and no score.

    Args:
        transcript: draw column, the policy's transcript.
        reference: draw column, the correct transcript.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.recipes.grpo_asr import WordErrorRate
        >>> forest = arl.Forest(facts={"trajectory": {"transcript": "key", "reference": "key"}})
        >>> forest.add_group(0, "a recording")
        >>> path = forest.start(0, 0)
        >>> _ = forest.append(path, [1, 2], kind="action", logprobs=[-0.5, -0.5])
        >>> forest.finish(path, facts={"transcript": "the cat sat", "reference": "a cat sat down"})
        >>> WordErrorRate()(forest.freeze()).column("score", "draw").tolist()  # one replaced, one left out, of four
        [-0.5]
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    transcript: str = column_name("transcript", level="draw")
    reference: str = column_name("reference", level="draw")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        finished = np.flatnonzero(batch.column("status", "draw") == CODES["status"].index("finished"))
        rows = Rows(batch.select_draws(finished), "draw")
        said, wanted = ([text.split() for text in rows.names(name)] for name in (self.transcript, self.reference))
        lengths = np.array([max(1, len(words)) for words in wanted], np.float64)
        scores = np.full(batch.num_draws, np.nan)
        scores[finished] = -np.minimum(edit_distances(said, wanted) / lengths, 1.0)
        return Rows(batch, "draw").write(score=scores)


GRPO_ASR = Recipe(
    name="grpo_asr",
    source="arXiv:2509.01939",
    reward=WordErrorRate(),
    advantage=GroupRelative(),
    loss=Policy(),
)
