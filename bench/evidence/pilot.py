"""The pilot: GRPO twice in every world from the same warm starts, to measure difficulty and detectable effects.

    python bench/evidence/pilot.py

writes the detectable effect of ten pairs into each claim that has none yet; commit the claims afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import claims
import numpy as np
import records
from records import Records, Run
from scores import Metric, score
from worlds import WORLDS

from agentrl_core import stats

SEEDS = (100, 101, 102)
"""Seeds of the pilot and the screening, which no claim or control uses."""
ARMS = ("grpo", "grpo+1")


def runs() -> list[Run]:
    """Return the runs of the pilot."""
    return [Run(world, arm, seed) for world in WORLDS for seed in SEEDS for arm in ARMS]


def spread(study: Records, worlds: Sequence[str], metric: Metric) -> float | None:
    """Return the standard deviation of the paired difference of equal arms; None if runs are missing.

    It is the root mean square, since the mean is known to be 0. Of several worlds it is that of the mean of their
    differences, which are independent.
    """
    variances = []
    for world in worlds:
        pairs = [[study.get(Run(world, arm, seed)) for arm in ARMS] for seed in SEEDS]
        known = [[each for each in pair if each is not None and each["status"] == "done"] for pair in pairs]
        if any(len(pair) < len(ARMS) for pair in known):
            return None
        variances.append(np.mean([(score(first, metric) - score(second, metric)) ** 2 for first, second in known]))
    return float(np.sqrt(np.sum(variances)) / len(worlds))


def main() -> None:
    """Write detectable effects."""
    study = records.study("pilot")
    for claim in claims.all_claims():
        if claim.detectable_effect:
            continue
        deviation = spread(study, claim.worlds, claim.metric)
        if deviation is None:
            print(f"{claim.name}: the pilot of {', '.join(claim.worlds)} is not complete")
            continue
        effect = stats.detectable_effect(claim.seeds) * deviation
        text = claim.path.read_text(encoding="utf-8")
        new_text = text.replace("detectable_effect = 0\n", f"detectable_effect = {effect:.3f}\n")
        claim.path.write_text(new_text, encoding="utf-8")
        print(f"{claim.name}: {effect:.3f}")


if __name__ == "__main__":
    main()
