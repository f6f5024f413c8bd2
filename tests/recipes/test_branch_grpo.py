"""BranchGRPO: only the depths outside a window leave the gradient."""

from __future__ import annotations

from rollouts import small

from agentrl_core import Schedule
from agentrl_core.recipes.branch_grpo import DepthWindow


def test_turns_of_the_window_are_not_trained() -> None:
    batch = small([(0, [2, 1, 3]), (0, [1]), (0, [1, 2])])
    # Turns 1 and 2 of each draw: tokens of the draws by turn are 2 1 3, 1, 1 2.
    keep = DepthWindow(first=1, width=2)(batch).column("keep", "token")
    assert keep.tolist() == [1, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    assert DepthWindow(first=0, width=1)(batch).column("keep", "token").tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    assert DepthWindow(first=0, width=0)(batch).column("keep", "token").all()
    slides = DepthWindow(first=Schedule(15, 9, iterations=180))
    assert [slides.at(iteration).first for iteration in (0, 30, 90, 400)] == [15, 14, 12, 9]
