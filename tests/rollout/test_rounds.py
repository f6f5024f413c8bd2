"""Members of several kinds, and rounds that read the scores; compared with golden trees by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riddles import RIGHT, WRONG, Riddles, Speaker, check_resumes, in_turn, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.a2fm import FixedHint
from agentrl_core.recipes.agent_rlvr import AgentHint
from agentrl_core.recipes.dars import MoreForHard
from agentrl_core.recipes.ghpo import HintLadder
from agentrl_core.recipes.v05 import CostAwareSampling
from agentrl_core.rollout import RolloutSpec, Rounds, SolutionHint

END = "<|im_end|>"


def by_chance(share: float, *, but: str = "\0") -> Speaker:
    """Return a speaker that is right by chance, from the request's seed, and always if a text is in its prompt."""

    def speak(context: str, request: Request) -> str:
        return RIGHT if but in context or request.seed % 997 / 997 < share else WRONG

    return speak


def test_each_rollout_spec_applies_its_own_hint_prefill_and_role() -> None:
    def speak(context: str, request: Request) -> str:
        return f"{request.sampling.temperature}{RIGHT if 'be brief' in context else WRONG}"

    kinds = (
        RolloutSpec(1)
        + RolloutSpec(
            1, hint=FixedHint("be brief"), template="{text}: {prompt}", temperature=0.5, fact="brief", value=2.0
        )
        + RolloutSpec(1, prefill=FixedHint("well, "), fact="begun")
        + RolloutSpec(1, role="helper")
    )
    run = solve(Rounds(members=kinds), speak)
    assert [(row.role, row.prompt, row.actions, row.trained) for row in run.rows] == [
        ("member", "riddle?", [f"1.0{WRONG}"], f"1.0{WRONG}{END}"),
        ("member", "be brief: riddle?", [f"0.5{RIGHT}"], f"0.5{RIGHT}{END}"),
        ("member", "riddle?", [f"well, 1.0{WRONG}"], f"1.0{WRONG}{END}"),
        ("helper", "riddle?", [f"1.0{WRONG}"], ""),
    ]
    assert run.fact("brief") == [0, 2, 0]
    assert run.fact("begun") == [0, 0, 1]
    assert run.batch.column("reward", "draw").tolist() == [0, 1, 0]


def test_a_solution_hint_prefills_the_requested_share() -> None:
    def actions_and_trained_text(solution: tuple[str, ...], **options: object) -> list[tuple[list[str], str]]:
        members = RolloutSpec(1, prefill=SolutionHint(**options), prefill_trained=True)
        run = solve(Rounds(members=members), in_turn(WRONG), world=Riddles(solution))
        return [(row.actions, row.trained) for row in run.rows]

    full_solution = ("look", RIGHT)
    assert actions_and_trained_text(full_solution) == [(["look", RIGHT], f"look{END}{RIGHT}{END}")]
    # 0.5 of 2 actions is 1 whole one.
    assert actions_and_trained_text(full_solution, share=0.5, unit="actions") == [
        (["look", WRONG], f"look{END}{WRONG}{END}")
    ]
    # 0.25 of 4 + 22 = 26 characters are floor(6.5) = 6: "look", and 2 of the answer.
    assert actions_and_trained_text(full_solution, share=0.25) == [(["look", f"<a{WRONG}"], f"look{END}<a{WRONG}{END}")]
    # 0.5 of 9 tokens, which are bytes, are floor(4.5) = 4.
    assert actions_and_trained_text(("some tale",), share=0.5, unit="tokens") == [
        ([f"some{WRONG}"], f"some{WRONG}{END}")
    ]
    assert actions_and_trained_text(()) == [([WRONG], f"{WRONG}{END}")]
    with pytest.raises(RecipeError, match="train_without_hint=True is not possible; give a hint"):
        RolloutSpec(train_without_hint=True)


def test_an_agent_hint_is_generated_by_a_helper() -> None:
    def speak(context: str, request: Request) -> str:
        del request
        if "Give a hint" in context:
            return "think twice"
        return RIGHT if "think twice" in context else WRONG

    run = solve(Rounds(members=RolloutSpec(1, hint=AgentHint())), speak)
    member, helper = run.rows
    assert helper.role == "helper"
    assert "Task:\nriddle?" in helper.prompt
    assert (member.prompt, member.actions) == ("think twice\n\nriddle?", [RIGHT])
    assert [row.drawn for row in run.rows] == [True, False]


def test_remax() -> None:
    def speak(context: str, request: Request) -> str:
        del context
        return f"{request.sampling.temperature} {RIGHT if request.sampling.temperature else WRONG}"

    run = solve(recipes.REMAX, speak)
    assert [(row.role, row.actions) for row in run.rows] == [
        ("member", [f"1.0 {RIGHT}"]),
        ("baseline", [f"0.0 {WRONG}"]),
    ]
    assert run.fact("greedy") == [0, 1]
    assert run.batch.column("score", "draw").tolist() == [1, 0]
    assert run.batch.column("trained", "draw").tolist() == [1, 0]


def test_temp_samp_gives_the_solution_to_one_of_four() -> None:
    run = solve(recipes.TEMP_SAMP, in_turn(WRONG), world=Riddles(("look", RIGHT)))
    assert [row.actions for row in run.rows] == [[WRONG]] * 3 + [["look", RIGHT]]
    assert run.fact("expert") == [0, 0, 0, 1]
    # t = 0.8: 0.8 + 0.01 ln(1.2) = 0.80182 for 1; 0.8 - (e^0.8 - 1) / (e - 1) = 0.8 - 1.225541 / 1.718282 = 0.086764.
    np.testing.assert_allclose(run.batch.column("score", "draw"), [0.086764] * 3 + [0.801823], atol=1e-6)
    without = solve(recipes.TEMP_SAMP, in_turn(WRONG), world=Riddles(()))
    assert ([row.actions for row in without.rows], without.fact("expert")) == ([[WRONG]] * 4, [0] * 4)


def test_ghpo_shows_more_and_more_of_the_solution() -> None:
    # 20 letters: a quarter is 5, a half is 10, three quarters are 15.
    world = Riddles(("abcdefghijklmnopqrst",))

    def hints(needed: str) -> tuple[list[str], list[float], list[str]]:
        run = solve(recipes.GHPO, by_chance(0.0, but=needed), world=world, group_size=2)
        hint_lines = [row.prompt.rpartition("\n")[2] for row in run.rows]
        assert {row.status for row in run.rows if not row.drawn} <= {"pruned"}
        return hint_lines, run.fact("hint"), [row.prompt.rpartition("\n")[2] for row in run.drawn]

    first = ["riddle?"] * 2
    assert hints("riddle") == (first, [0, 0], first)
    assert hints("abcde") == ([*first, *["abcde"] * 2], [0.25] * 2, ["abcde"] * 2)
    assert hints("abcdef") == ([*first, *["abcde"] * 2, *["abcdefghij"] * 2], [0.5] * 2, ["abcdefghij"] * 2)
    for needed in ("abcdefghijk", "never"):
        hint_lines, facts, drawn = hints(needed)
        assert len(hint_lines) == 8, "three quarters stay whatever comes of them"
        assert (facts, drawn) == ([0.75] * 2, ["abcdefghijklmno"] * 2)
    alone = solve(recipes.GHPO, in_turn(WRONG), world=Riddles(()), group_size=2)
    assert [row.drawn for row in alone.rows] == [True, True], "a task without a solution keeps its group"
    late = solve(HintLadder(column="success", from_iteration=1), in_turn(WRONG), world=world, group_size=2)
    assert len(late.rows) == 2


@pytest.mark.parametrize(
    ("options", "solved", "extra"),
    [
        # a = 1/8: S = 2 * 1/8 * 7/8 = 7/32, M = 4: (4 - 8 * 7/32) * 32/7 = 10.29 -> 11.
        ({}, 1, 11),
        # a = 3/8: S = 15/32: (4 - 3.75) * 32/15 = 0.53 -> 1.
        ({}, 3, 1),
        # None: a = 1/16: S = 15/128: (4 - 15/16) * 128/15 = 26.1 -> 27, at most 32 - 8 = 24.
        ({}, 0, 24),
        ({"at_most": 64}, 0, 27),
        ({}, 4, 0),
        ({}, 8, 0),
        # Hard, a = 1/4: S = 3/8, 2 * 3/4 * 4 = 6: (6 - 3) * 8/3 = 8.
        ({"kind": "hard"}, 2, 8),
        # With std, a = 1/4: S = 2 sqrt(3/16) = 0.8660, M = 8: (8 - 6.928) / 0.8660 = 1.24 -> 2.
        ({"scale": "std"}, 2, 2),
    ],
)
def test_dars_spends_more_on_hard_tasks(options: dict[str, object], solved: int, extra: int) -> None:
    program = MoreForHard(members=RolloutSpec(8), column="success", **options)
    answers = [RIGHT] * solved + [WRONG] * (9 - solved)
    run = solve(program, in_turn(*answers))
    assert (run.num_requests, len(run.drawn)) == (8 + extra, 8 + extra)


def test_v05_stops_when_one_more_does_not_pay() -> None:
    # A new task has V = 0, and R(k) = D2 / (k D2 + 1). With k right answers of k, v = 1 and D2 = 1 - 1/k, so that
    # k D2 + 1 = k, R(k) = D2 / k, and with one more D2 / (k + D2). At k = 14, D2 = 0.92857: 0.066327 - 0.062201 =
    # 0.004126 > 1/256 = 0.003906; at k = 15, D2 = 0.93333: 0.062222 - 0.058577 = 0.003645, which does not pay.
    assert solve(recipes.V05, in_turn(RIGHT)).num_requests == 15
    # Two of four right: v = 0, D2 = max(0, -1/4) = 0: nothing pays.
    even = solve(recipes.V05, in_turn(RIGHT, RIGHT, WRONG))
    assert even.num_requests == 4
    assert even.fact("prior") == [0] * 4
    # With rewards of 0 and 1, V = 1/2 and the variance 1/4, all is a quarter: at k = 4 (3/16 - 3/19) / 4 = 0.0296 / 4.
    assert solve(CostAwareSampling(variance=0.25, cost=0.03 / 4), in_turn(RIGHT)).num_requests == 4
    assert solve(CostAwareSampling(variance=0.25, cost=0.029 / 4), in_turn(RIGHT)).num_requests == 5
    assert solve(CostAwareSampling(cost=0.0, at_most=7), in_turn(RIGHT)).num_requests == 7


def test_v05_requests_the_prior_from_a_value_model() -> None:
    path_lengths: list[int] = []

    def value(paths: Sequence[np.ndarray]) -> list[float]:
        path_lengths.extend(len(path) for path in paths)
        return [1.0] * len(paths)

    program = CostAwareSampling(model="value")
    run = solve(program, in_turn(RIGHT), models={"value": value})
    # As good as expected: nothing pays. The request to the value model is not a rollout.
    assert run.num_requests == len(run.drawn) == 4
    assert run.fact("prior") == [1.0] * 4
    [helper] = [row for row in run.rows if row.role == "helper"]
    assert RIGHT not in helper.text
    assert len(path_lengths) == 1
    assert 0 < path_lengths[0] <= len(helper.text)
    assert check_resumes(program, by_chance(0.3), models={"value": value}) >= 2


PROGRAMS = {
    "kinds": Rounds(
        members=RolloutSpec(2)
        + RolloutSpec(1, hint=AgentHint(), fact="x")
        + RolloutSpec(1, prefill=SolutionHint(share=0.5))
    ),
    "hints": HintLadder(column="success"),
    "more": MoreForHard(members=RolloutSpec(4), column="success", at_most=9),
    "until": CostAwareSampling(at_most=8, cost=0.001),
}
MOST = {"kinds": 4, "hints": None, "more": 9, "until": 8}
"""Number of rollouts of a group; None: as many as were requested."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded_responses_are_not_sampled_again(name: str) -> None:
    assert check_resumes(PROGRAMS[name], by_chance(0.3, but="012")) >= 2


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), st.floats(0, 1), st.integers(1, 5), st.integers(0, 1000))
def test_no_group_is_larger_than_its_budget(name: str, share: float, size: int, seed: int) -> None:
    run = solve(PROGRAMS[name], by_chance(share), tasks=2, group_size=size, seed=seed)
    groups = np.bincount(run.batch.column("group_id", "draw").astype(int))
    assert 0 < groups.max() <= (MOST[name] or size)
    assert run.sampled > 0
