"""GRPO for speech recognition: a transcript is paid for the words that it gets right (arXiv:2509.01939).

    R = - WER,   WER = (substituted + deleted + inserted words) / words of the reference,   then GRPO with a KL

The environment normalises both texts and reports them; with an empty reference every word is an error. The other
rewards of the paper are `WordErrorRate(kind="exact")` and `"edits"`, which on its data strike a worse balance.

Equations:
    Read: the paper's sections II-B, II-C, III-A and IV, and notes.

    - 3, objective: `Policy(aggregate="sequence_mean", kl=KL(0.04))`.
    - 4, advantage: `GroupRelative`.
    - 5, divergence: `KL`, its default estimator.
    - 6, ratio: the default of `Policy`.
    - 7, reward WER: `WordErrorRate`.
    - 8, reward EM: `WordErrorRate(kind="exact")`.
    - 9, reward ED: `WordErrorRate(kind="edits")`.
    - D1, DAPO: an option, `Policy(clip=Clip(0.2, 0.28))`; the paper gives no threshold.
    - D2, Dr. GRPO: an option, `GroupRelative(scale="none")` and `Policy(aggregate="constant", constant=...)`.

Differs:
    - Empty reference: the paper's WER divides by 0; by 1 here.
    - Clip, optimizer steps: not stated; 0.2 and 1 here.
    - Frozen encoder: the user's model decides which parameters train.

Needs: the facts `transcript` and `reference`, texts of an episode that has finished; the model reference, the policy
after its supervised training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw
from agentrl_core.data.codes import CODES
from agentrl_core.loss import KL, Policy
from agentrl_core.reward.edits import edit_distances

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class WordErrorRate(BatchComponent):
    """Pays a transcript by its errors: score = - edits of words / max(1, words of the reference).

    An edit substitutes, deletes or inserts a word. Words are what blanks separate. An episode that has not finished has
    no transcript, and no score.

    Args:
        transcript: draw column, the policy's transcript.
        reference: draw column, the correct transcript.
        kind: `rate`: as above; `exact`: 1 if there is no error, else 0; `edits`: - edits of words.

    Raises:
        RecipeError: an option is not possible.

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
    kind: Literal["rate", "exact", "edits"] = "rate"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        finished = np.flatnonzero(batch.column("status", "draw") == CODES["status"].index("finished"))
        rows = Rows(batch.select_draws(finished), "draw")
        said, wanted = ([text.split() for text in rows.names(name)] for name in (self.transcript, self.reference))
        errors = np.asarray(edit_distances(said, wanted), np.float64)
        scores = np.full(batch.num_draws, np.nan)
        if self.kind == "rate":
            scores[finished] = -errors / [max(1, len(words)) for words in wanted]
        else:
            scores[finished] = errors == 0 if self.kind == "exact" else -errors
        return Rows(batch, "draw").write(score=scores)


GRPO_ASR = Recipe(
    name="grpo_asr",
    source="arXiv:2509.01939",
    reward=WordErrorRate(),
    advantage=GroupRelative(),
    loss=Policy(aggregate="sequence_mean", kl=KL(0.04)),
)
