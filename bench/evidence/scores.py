"""Scores of runs: one number from a curve, and paired differences of two arms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from records import Records, Run

from agentrl_core import stats

Metric = Literal["final", "area", "turns", "tokens"]
LEAST_GAIN = 0.05
"""A recipe improves on its warm start if the mean gain of its seeds is above this, and each gain above 0."""
METRICS: dict[Metric, str] = {
    "final": "held-out success at the end: mean of the last two measures",
    "area": "mean held-out success over the budget: the area under the curve of generated tokens",
    "turns": "turns of a held-out episode at the end",
    "tokens": "generated tokens of a held-out episode at the end",
}


def score(record: dict[str, Any], metric: Metric) -> float:
    """Return the score of a finished run."""
    curve = np.array(record["curve"], np.float64)
    tokens, success = curve[:, 0], curve[:, 1]
    if metric == "final":
        return float(success[-2:].mean())
    if metric == "area":
        return float(np.trapezoid(success, tokens) / tokens[-1])
    return float(curve[-1, {"turns": 2, "tokens": 3}[metric]])


def gain(record: dict[str, Any]) -> float:
    """Return a run's final success minus that of its warm start."""
    return score(record, "final") - float(record["curve"][0][1])


def improves(runs: Sequence[dict[str, Any]]) -> bool:
    """Return whether runs of a recipe improve on their warm starts: their mean gain, and each of them."""
    gains = [gain(each) for each in runs]
    return float(np.mean(gains)) > LEAST_GAIN and min(gains) > 0


def paired(
    records: Records, worlds: Sequence[str], first: str, second: str, seeds: Iterable[int], metric: Metric
) -> stats.PairedDifference | None:
    """Return the paired difference of two arms over seeds; a seed's score is the mean over the worlds.

    Seeds with a missing or failed run are left out; None: no pair is left.

    Raises:
        ValueError: two runs of a pair have different warm starts.
    """
    ours, theirs = [], []
    for seed in seeds:
        pair = [[records.get(Run(world, arm, seed)) for arm in (first, second)] for world in worlds]
        if any(each is None or each["status"] != "done" for both in pair for each in both):
            continue
        complete_pairs = [[each for each in both if each is not None] for both in pair]
        for one, other in complete_pairs:
            if one["start"] != other["start"]:
                raise ValueError(f"{first} and {second} of seed {seed} begin with other weights; run both again")
        ours.append(np.mean([score(one, metric) for one, _ in complete_pairs]))
        theirs.append(np.mean([score(other, metric) for _, other in complete_pairs]))
    return stats.paired_difference(ours, theirs) if ours else None
