"""Controls: comparisons with a known outcome. If they fail, no claim counts."""

from __future__ import annotations

from typing import NamedTuple

from records import Records, Run
from scores import paired

from agentrl_core.stats import PairedDifference

SEEDS = range(10)
COMPARISONS = 20
WORLDS_IN_TURN = ("chain", "quest")
LEVEL = 0.05
MOST_REJECTED = 2


class Control(NamedTuple):
    """A comparison and its known outcome: `equal`, or the first arm `higher` or `lower`."""

    name: str
    world: str
    first: str
    second: str
    expected: str


def controls() -> list[Control]:
    """Return all: known directions first, then A/A."""
    all_controls = []
    for world in WORLDS_IN_TURN:
        all_controls.append(Control("negated rewards", world, "grpo_negated", "grpo", "lower"))
        all_controls.append(Control("four times the tokens", world, "grpo", "grpo@short", "higher"))
    for number in range(COMPARISONS):
        first, second = f"grpo@short+{2 * number + 1}", f"grpo@short+{2 * number + 2}"
        all_controls.append(Control(f"A/A {number + 1}", WORLDS_IN_TURN[number % 2], first, second, "equal"))
    return all_controls


def runs() -> list[Run]:
    """Return the runs of all controls, comparison by comparison."""
    planned = [Run(each.world, arm, seed) for each in controls() for seed in SEEDS for arm in (each.first, each.second)]
    return list(dict.fromkeys(planned))


def outcomes(records: Records) -> dict[Control, PairedDifference]:
    """Return the difference in final success of each control whose runs are complete."""
    pairs_by_control = {}
    for each in controls():
        pairs = paired(records, (each.world,), each.first, each.second, SEEDS, "final")
        if pairs is not None and pairs.pairs == len(SEEDS):
            pairs_by_control[each] = pairs
    return pairs_by_control


def passed(control: Control, difference: PairedDifference) -> bool:
    """Return whether a control of a known direction has the expected outcome."""
    sign = {"higher": 1, "lower": -1}[control.expected]
    return difference.p_value <= LEVEL and sign * difference.mean > 0
