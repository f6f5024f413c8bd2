"""GRPO for speech recognition: a transcript is paid for the words that it gets right (arXiv:2509.01939).

    R = - min(WER, 1),   WER = (substituted + deleted + inserted words) / max(1, words of the reference),   then GRPO

The environment normalises both texts and counts the errors; with an empty reference every word is one. Other rewards of
the paper are an exact match, which an environment pays by itself, and edits over characters. How it mixes them is not
given.

Needs: the facts `word_errors` and `reference_words`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class WordErrorRate(BatchComponent):
    """Pays a transcript by its errors: score = - min(word_errors / max(1, reference_words), 1).

    Example:
        >>> from agentrl_core.recipes.grpo_asr import WordErrorRate
        >>> WordErrorRate().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("word_errors"), draw("reference_words"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        rates = rows.values("word_errors") / np.maximum(rows.values("reference_words"), 1.0)
        return rows.write(score=-np.minimum(rates, 1.0))


GRPO_ASR = Recipe(
    name="grpo_asr",
    source="arXiv:2509.01939",
    reward=WordErrorRate(),
    advantage=GroupRelative(),
    loss=Policy(),
)
