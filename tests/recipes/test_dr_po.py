"""DR-PO: starts of episodes, by hand."""

from __future__ import annotations

from riddles import RIGHT, Riddles, check_resumes, in_turn, solve, step

from agentrl_core import recipes
from agentrl_core.recipes.dr_po import ResetToSolution

SOLUTION = "abcdefghij"


def test_a_rollout_starts_after_a_random_part_of_the_solution() -> None:
    run = solve(recipes.DR_PO, in_turn(RIGHT), world=Riddles((SOLUTION,)), group_size=6)
    shares = run.fact("began")
    assert len(set(shares)) == 6
    for row, share in zip(run.drawn, shares, strict=True):
        # Bytes are tokens: a share of 0.37 of ten letters is three of them.
        beginning = row.actions[0].removesuffix(RIGHT)
        assert beginning == SOLUTION[: int(share * len(SOLUTION))]
        assert row.trained == RIGHT + "<|im_end|>", "what it began with is not trained"
    half = solve(ResetToSolution(share=0.5), in_turn(RIGHT), world=Riddles((SOLUTION,)), group_size=40)
    assert 8 <= sum(share > 0 for share in half.fact("began")) <= 32
    none = solve(recipes.DR_PO, in_turn(RIGHT), world=Riddles(()), group_size=2)
    assert [row.actions for row in none.drawn] == [[RIGHT]] * 2


def test_whole_actions_come_first() -> None:
    # Of three actions, a share of 0.5 is one whole and half of the next; 0.9 is two and 0.7 of the last.
    assert ResetToSolution.cut(0.5, 3) == (1, 0.5)
    count, rest = ResetToSolution.cut(0.9, 3)
    assert (count, round(rest, 9)) == (2, 0.7)
    assert ResetToSolution.cut(0.999999, 1)[0] == 0
    world = Riddles(("look", "listen", RIGHT))
    run = solve(recipes.DR_PO, in_turn(RIGHT), world=world, group_size=8)
    for row, share in zip(run.drawn, run.fact("began"), strict=True):
        count, rest = ResetToSolution.cut(share, 3)
        solution = ("look", "listen", RIGHT)
        assert row.actions[:count] == list(solution[:count])
        assert row.actions[count].startswith(solution[count][: int(rest * len(solution[count]))])


def test_the_recipe_resumes_and_takes_optimizer_steps() -> None:
    world = Riddles(("look", "listen", RIGHT))
    assert check_resumes(recipes.DR_PO, in_turn(RIGHT), world=world, every=2) >= 2
    batch = solve(recipes.DR_PO, in_turn(RIGHT), world=world).batch
    tokens = int(batch.offsets("node_token")[-1])
    assert step(recipes.DR_PO, batch.with_columns("node_token", value=[-1.0] * tokens)) == 8  # four for each model
