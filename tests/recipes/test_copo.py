"""COPO: agreement chooses between local and global advantages; numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compared import close, column
from rollouts import small

from agentrl_core.advantage import Normalisation
from agentrl_core.recipes.copo import Consistency


@pytest.mark.parametrize(
    ("answers", "share"),
    [([0] * 6, 0.00669), ([0, 0, 0, 1, 1, 1], 0.5), ([0, 0, 0, 0, 1, 2], 0.77871), ([0, 1, 2, 3, 4, 5], 0.99964)],
)
def test_agreement_decides_between_local_and_global(answers: list[int], share: float) -> None:
    scores = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    batch = small(
        [(0, [1])] * 6 + [(1, [1])],
        draw_score=[*scores, 0.0],
        draw_answer_cluster=[*answers, 9],
        draw_answer_parsed=[1] * 7,
    )
    plain_ = {"normalisation": Normalisation(scale="none")}
    local = np.array([*(np.array(scores) - 0.5), 0.0])
    everyone = np.array([0.25] * 6 + [-0.25])
    expected = (1 - share) * everyone[:6] + share * local[:6]
    credited = Consistency(kind="soft", **plain_)(batch)
    close(column(credited)[:6], expected, 1e-4)
    positive = (1 - share) * np.maximum(everyone, 0) + share * np.maximum(local, 0)
    close(column(credited, "advantage_positive")[:6], positive[:6], 1e-4)
    close(np.array(column(credited, "advantage_positive")) + column(credited, "advantage_negative"), column(credited))
    with_zero = np.where(np.array(scores) == 0.0, everyone[:6], expected)
    close(column(Consistency(**plain_)(batch))[:6], with_zero, 1e-4)
    close(column(Consistency(kind="local", **plain_)(batch)), local)
    close(column(Consistency(kind="global", **plain_)(batch)), everyone)
    forced = column(Consistency(kind="soft_with_forced", **plain_)(batch))
    close(forced[6], -0.25)
    bits = -sum(p * math.log2(p) for p in np.bincount(answers)[np.bincount(answers) > 0] / 6)
    mean = 0.5 * (1.0 - (1 - 1 / 6) / math.log2(6) * bits)
    weighted = column(Consistency(kind="global", coefficient="entropy", **plain_)(batch))
    close(weighted[0], mean / 2)
