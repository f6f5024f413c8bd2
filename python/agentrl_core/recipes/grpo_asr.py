"""GRPO for speech recognition: score a transcript by its word error rate (arXiv:2509.01939).

    R = - WER,   WER = (substituted + deleted + inserted words) / words of the reference,   then GRPO with a KL

The environment normalises transcript and reference, and returns both as facts. With an empty reference, every word is
an error. The paper's other rewards are `WordErrorRate(kind="exact")` and `"edits"`; on its data they give a worse
balance.

Equations:
    Read: the paper's sections II-B, II-C, III-A and IV, and notes.

    - 3, objective: `Policy(aggregate="sequence_mean", kl=KL(0.04))`.
    - 4, advantage: `GroupRelative`.
    - 5, divergence: `KL`, with its default estimator.
    - 6, ratio: the default ratio of `Policy`.
    - 7, reward WER: `WordErrorRate`.
    - 8, reward EM: `WordErrorRate(kind="exact")`.
    - 9, reward ED: `WordErrorRate(kind="edits")`.
    - D1, DAPO: an option, `Policy(clip=Clip(0.2, 0.28))`; the paper does not give the clip range.
    - D2, Dr. GRPO: an option, `GroupRelative(scale="none")` and `Policy(aggregate="constant", constant=...)`.

Differs:
    - Empty reference: the paper's WER divides by 0; here by 1.
    - Clip, optimizer steps: not stated; 0.2 and 1 here.
    - Frozen encoder: here the user's model defines which parameters are trained.

Needs: the facts `transcript` and `reference`, texts of a finished episode; the reference model, which is the policy
after its supervised training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw
from agentrl_core.loss import KL, Policy
from agentrl_core.operators.edit_distance import edit_distances

if TYPE_CHECKING:
    from agentrl_core import Batch

_FINISHED = 0  # a code of column `status`, see docs/format.md


@dataclass(frozen=True)
class WordErrorRate(BatchComponent):
    """Score a transcript by its errors: score = - word edits / max(1, words of the reference).

    An edit substitutes, deletes or inserts a word. Words are separated by whitespace. An unfinished episode has no
    transcript and gets no score.

    Args:
        transcript: draw column with the policy's transcript.
        reference: draw column with the correct transcript.
        kind: `rate`: as above; `exact`: 1 if there is no error, otherwise 0; `edits`: minus the number of word edits.

    Raises:
        RecipeError: an option is invalid.

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
        finished = np.flatnonzero(batch.column("status", "draw") == _FINISHED)
        rows = Rows(batch.select_draws(finished), "draw")
        transcripts, references = (
            [text.split() for text in rows.names(name)] for name in (self.transcript, self.reference)
        )
        errors = np.asarray(edit_distances(transcripts, references), np.float64)
        scores = np.full(batch.num_draws, np.nan)
        if self.kind == "rate":
            scores[finished] = -errors / [max(1, len(words)) for words in references]
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
