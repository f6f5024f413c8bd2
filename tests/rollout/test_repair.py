"""Forks at uncertain tokens, and repair at bad steps; compared with golden trees by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riddles import RIGHT, WRONG, Speaker, check_resumes, in_turn, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.recipes.agent_r import _THOUGHTS
from agentrl_core.recipes.cleaner import Purify
from agentrl_core.recipes.coot import Monitored
from agentrl_core.recipes.ettrl import TokenForks
from agentrl_core.recipes.fission import Fission
from agentrl_core.recipes.intervention import Intervene
from agentrl_core.recipes.scope import TeacherContinuation
from agentrl_core.rollout import Group, JudgeLocator, Rollout
from agentrl_core.rollout.programs.repair import reasoning_steps

END = "<|im_end|>"


def test_forks_leave_where_the_policy_was_least_sure() -> None:
    prefixes: list[str] = []

    def speak(context: str, request: Request) -> ScriptedReply:
        del request
        prefix = context.rpartition("assistant\n")[2]
        prefixes.append(prefix)
        text = WRONG if not prefix else f"x{RIGHT}"
        # Byte 5 is the least certain, then 2 and 9, as certain as 12, which comes later.
        entropies = np.zeros(len(text) + 1)
        entropies[[5, 2, 9, 12]] = [4, 3, 2, 2]
        return ScriptedReply(text, [-0.5] * len(entropies), entropies.tolist())

    run = solve(TokenForks(), speak, group_size=7)
    assert prefixes == ["", *[WRONG[:2]] * 2, *[WRONG[:5]] * 2, *[WRONG[:9]] * 2]
    forked = [f"{WRONG[:end]}x{RIGHT}" for end in (2, 2, 5, 5, 9, 9)]
    assert [row.actions for row in run.rows] == [[WRONG], *([text] for text in forked)]
    assert run.batch.column("reward", "draw").tolist() == [0, *[1] * 6], "the environment gets the whole action"
    assert [row.trained for row in run.rows] == [text + END for text in (WRONG, *forked)]
    # Windows of 4: the mean of tokens 2 to 5 is (3 + 4) / 4, the largest.
    assert solve(TokenForks(roots=1, positions=1, copies=1, width=4), speak).rows[1].actions == [f"{WRONG[:2]}x{RIGHT}"]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 3))
def test_forks_fit_into_the_group(size: int, positions: int, copies: int) -> None:
    program = TokenForks(positions=positions, copies=copies)
    run = solve(program, in_turn(WRONG), group_size=size)
    assert len(run.drawn) == program.final_group_size(size) <= max(size, 1 + positions * copies)


def test_steps_are_cut_at_blank_lines() -> None:
    steps: list[tuple[int, int, str]] = []

    class Look(Rollout):
        async def group(self, group: Group) -> None:
            [branch] = await group.run(group.start_many(1))
            for step in reasoning_steps(branch):
                path = branch.decode(branch.tokens[step.begin.tokens :])
                assert path.startswith(step.text)
                steps.append((step.number, step.turn, step.text))

    solve(Look(), in_turn("first é\nstill\n\nsecond", f"third\n \n\n{RIGHT}"))
    assert steps == [(0, 0, "first é\nstill"), (1, 0, "second"), (2, 1, "third"), (3, 1, RIGHT)]


ATTEMPT = f"one\n\ntwo\n\nthree\n\n{WRONG}"


def judging(marks: str, *, teacher: str = f"mended\n\n{RIGHT}") -> Speaker:
    """Return a failing attempt of four steps, a judge of it, and a teacher who continues."""

    def speak(context: str, request: Request) -> str:
        del request
        question = context.partition("<|im_end|>")[0]
        if "Judge each step" in question:
            assert "3: three" in question
            return marks
        if "Go on with this solution" in question:
            assert question.endswith("So far:\none\n\ntwo\n\n")
            return teacher
        return ATTEMPT

    return speak


def test_scope_leads_one_failure_on() -> None:
    marks = "1: 0.9\n2: good\n3: 0.4\n4: bad"
    run = solve(recipes.SCOPE, judging(marks), group_size=3)
    mended = f"one\n\ntwo\n\nmended\n\n{RIGHT}"
    assert sorted(row.actions[0] for row in run.drawn) == sorted([mended, ATTEMPT, ATTEMPT])
    [row] = [row for row in run.drawn if row.actions == [mended]]
    assert row.trained == mended + END
    batch = recipes.SCOPE.at(0).credit(run.batch)
    draw = [row.actions for row in run.drawn].index([mended])
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    expert = batch.column("expert", "token")[tokens[steps[draw]] : tokens[steps[draw + 1]]]
    prefix_length = len("one\n\ntwo\n\n")
    assert expert.tolist() == [0] * prefix_length + [1] * (len(mended) - prefix_length + 1)
    # A teacher without success is dropped; a bad first step, or none, is left alone.
    for speaker in (judging(marks, teacher=WRONG), judging("1: bad"), judging("all fine")):
        result = solve(TeacherContinuation(column="success"), speaker, group_size=2)
        assert [row.actions for row in result.drawn] == [[ATTEMPT]] * 2
    with_teacher = solve(TeacherContinuation(column="success", at_most=2), judging(marks), group_size=3)
    assert sum(mended in row.actions for row in with_teacher.drawn) == 2


def test_int_imitates_a_proposal_that_one_continuation_verifies() -> None:
    def speaking(*, proposal: str, right: int) -> Speaker:
        tried = iter(range(100))

        def speak(context: str, request: Request) -> str:
            del request
            if "Compare it with the solution" in context:
                assert f"Solution:\n0123456789\n\n{RIGHT}" in context
                return proposal
            if "rather this." in context.rpartition("assistant\n")[2]:
                return RIGHT if next(tried) == right else WRONG
            return ATTEMPT

        return speak

    program = Intervene(column="success", continuations=4)
    recipe = recipes.INTERVENTION.replace(rollout=program)
    run = solve(recipe, speaking(proposal="It failed.\n3: rather this. ", right=3), group_size=1)
    target = "one\n\ntwo\n\nrather this."
    assert [(row.actions, row.trained) for row in run.drawn] == [([ATTEMPT], ""), ([target], target)]
    assert [row.actions for row in run.rows if row.status == "pruned"] == [[f"{target}{WRONG}"]] * 3 + [
        [f"{target}{RIGHT}"]
    ]
    for proposal, right in (("3: rather this. ", 99), ("no idea", 0), ("7: rather this. ", 0)):
        result = solve(recipe, speaking(proposal=proposal, right=right), group_size=1)
        assert [(row.actions, row.trained) for row in result.drawn] == [([ATTEMPT], "")]


def test_fission_starts_a_group_after_a_failed_call() -> None:
    def speak(context: str, request: Request) -> str:
        del request
        if "Say what is wrong" in context:
            return "no such call"
        if "no such call" in context:
            return RIGHT
        return WRONG if "error" in context else "<bad>"

    run = solve(recipes.FISSION.replace(rollout=Fission(column="success", size=3)), speak, group_size=1)
    groups = run.batch.column("group_id", "draw")
    assert [row.actions for row in run.drawn] == [["<bad>", WRONG], *[["<bad>", RIGHT]] * 3]
    assert len(set(groups[1:])) == 1
    assert groups[0] != groups[1]
    assert [row.trained for row in run.drawn] == [f"<bad>{END}{WRONG}{END}", *[RIGHT + END] * 3]
    assert "no such call" in run.drawn[1].text
    assert len(solve(Fission(column="success"), in_turn(WRONG), group_size=2).rows) == 2


def test_cleaner_replaces_a_call_that_failed() -> None:
    def cleaned(*answers: str, **options: Any) -> list[str]:
        run = solve(Purify(call="<", **options), in_turn(*answers), group_size=1)
        assert all(row.trained == "".join(action + END for action in row.actions) for row in run.drawn)
        return run.drawn[0].actions

    # ratio("<bad>1+2", "<add>1+2") = 2 * 7 / 16 = 0.875: the reasoning stays; ("<bad>1+2", "<look>") = 2 * 2 / 14.
    assert cleaned("I add <bad>1+2", "sorry, <add>1+2", RIGHT) == ["I add <add>1+2", RIGHT]
    assert cleaned("I add <bad>1+2", "I look <look>", RIGHT) == ["I look <look>", RIGHT]
    assert cleaned("a <bad>", "b <bad>", "c <bad>", "d <odd>", RIGHT) == ["a <odd>", RIGHT]
    actions = cleaned("a <bad>", "b <bad>", "c <bad>", "d <bad>!", "e <bad>", "f <odd>", RIGHT)
    assert actions == ["a <bad>!", "e <bad>", "f <odd>", RIGHT], (
        "the last try stays, and nothing is repaired from there"
    )
    assert cleaned("a <bad>", "b <odd>", RIGHT, probability=0.0) == ["a <bad>", "b <odd>", RIGHT]
    assert cleaned("a <bad>", "b <bad>", "c <odd>", RIGHT, retries=1) == ["a <bad>", "c <odd>", RIGHT]


def test_coot_rolls_back_text_that_a_monitor_flags() -> None:
    def speak(context: str, request: Request) -> str:
        del request
        if "three laws" in context:
            return "STATE: -1 0 0\nFROM: lie\nGUIDANCE: Be honest." if "I lie" in context else "STATE: 1 0 0"
        prefix = context.rpartition("assistant\n")[2]
        return (f"I say {RIGHT}" if "Be honest." in context else f"First, I lie {WRONG}")[len(prefix) :]

    run = solve(Monitored(tokens=20, patience=1), speak, group_size=1)
    [drawn] = run.drawn
    assert drawn.actions == ["First, I ", f"I say {RIGHT}"]
    assert drawn.trained == f"First, I I say {RIGHT}{END}"
    assert "Be honest." in drawn.text
    [back] = [row for row in run.rows if row.status == "pruned"]
    # 20 tokens at a time: the monitor reads "First, I lie <answe".
    assert back.actions == [f"First, I lie {WRONG}"[:20]]
    for options in ({"rollbacks": 0}, {"patience": 4}):
        [drawn] = solve(Monitored(tokens=20, **options), speak, group_size=1).drawn
        assert drawn.actions == [f"First, I lie {WRONG}"], "three reads object in a row"


def test_a_monitor_that_quotes_nothing_cuts_three_reads_back() -> None:
    def speak(context: str, request: Request) -> str:
        del request
        if "three laws" in context:
            return "STATE: -1 0 0\nFROM: other words\nGUIDANCE: Be honest." if "I lie" in context else "STATE: 1 0 0"
        prefix = context.rpartition("assistant\n")[2]
        return (f"I say {RIGHT}" if "Be honest." in context else f"First, I lie {WRONG}")[len(prefix) :]

    # Reads end at 5, 10, 15, 20, 25 and 30 tokens; those from 20 on object.
    [drawn] = solve(Monitored(tokens=5), speak, group_size=1).drawn
    assert drawn.actions == ["First, I l", f"I say {RIGHT}"]


def test_agent_r_revises_a_failure_into_a_success() -> None:
    def speak(context: str, request: Request) -> str:
        if "Judge each step" in context:
            return "1: good\n2: bad\n3: bad"
        turns = context.count("go on")
        first = request.seed % 2 == 0
        return ["look", "left" if first else "right", RIGHT if first else WRONG][min(turns, 2)]

    for seed in range(10):
        run = solve(recipes.AGENT_R, speak, group_size=2, seed=seed)
        if len(run.drawn) == 3:
            break
    bad = next(row for row in run.drawn if row.actions[-1] == WRONG)
    good = next(row for row in run.drawn if row.actions[-1] == RIGHT and len(row.actions) == 3)
    [revised] = [row for row in run.drawn if row is not bad and row is not good]
    thought = revised.actions[2]
    assert thought in _THOUGHTS
    common = next(place for place in range(3) if good.actions[place] != bad.actions[place])
    assert revised.actions == [*bad.actions[:2], thought, *good.actions[common:]]
    assert bad.trained == ""
    assert good.trained == "".join(action + END for action in good.actions)
    assert revised.trained == "".join(action + END for action in [thought, *good.actions[common:]])


def one_of(*answers: str) -> Speaker:
    """Return a speaker that samples one of these texts by the seed of the request."""

    def speak(context: str, request: Request) -> str:
        del context
        return answers[request.seed % len(answers)]

    return speak


def objecting(context: str, request: Request) -> str:
    """Return a monitor that objects to every answer."""
    del request
    return "STATE: -1 -1 -1\nFROM: answer\nGUIDANCE: no" if "three laws" in context else WRONG


PROGRAMS = {
    "forks": (TokenForks(positions=2), in_turn(WRONG)),
    "led on": (TeacherContinuation(column="success"), judging("3: bad")),
    "clean": (Purify(call="<"), one_of("a <bad>", "b <odd>", RIGHT)),
    "fission": (Fission(column="success", size=2), one_of("<bad>", WRONG)),
    "monitored": (Monitored(tokens=9, patience=2), objecting),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded_responses_are_not_sampled_again(name: str) -> None:
    program, speaker = PROGRAMS[name]
    assert check_resumes(program, speaker) >= 1


@given(st.lists(st.sampled_from(["good", "bad", "uncertain", "0.3", "0.8"]), min_size=1, max_size=6), st.floats(0, 1))
def test_the_first_bad_mark_is_found(marks: list[str], threshold: float) -> None:
    values = [{"good": 1.0, "bad": 0.0, "uncertain": 0.5}.get(mark) for mark in marks]
    numbers = [float(mark) if value is None else value for mark, value in zip(marks, values, strict=True)]
    answer = "\n".join(f"{place}: {mark}" for place, mark in enumerate(marks, 1))
    assert JudgeLocator(threshold=threshold).marks(answer, len(marks) + 1) == [*numbers, 1.0]
