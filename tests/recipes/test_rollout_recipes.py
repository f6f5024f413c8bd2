"""Recipes with their own rollout program: golden trees by hand, and from collection to the optimizer step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riddles import RIGHT, WRONG, Riddles, Speaker, check_resumes, in_turn, rows_of, script, solve, step
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.env import ExtraColumn, StepResult
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.a2fm import FixedHint
from agentrl_core.recipes.active_vln import ResampleFailedGroups
from agentrl_core.recipes.ad_hint import HintsByDifficulty
from agentrl_core.recipes.ampo import TeacherReplacement
from agentrl_core.recipes.brorl import Pieces
from agentrl_core.recipes.icpo import OneDemonstration
from agentrl_core.recipes.xrpo import PriorityRounds
from agentrl_core.rollout import Branch, RolloutSpec

END = "<|im_end|>"


def by_chance(share: float, *, but: str = "\0") -> Speaker:
    """Return a speaker that is right by chance, from the request's seed, and always if a text is in its prompt."""

    def speak(context: str, request: Request) -> str:
        return RIGHT if but in context or request.seed % 997 / 997 < share else WRONG

    return speak


class RewardedRiddles(Riddles):
    """Riddles whose environment reports the facts that a recipe reads."""

    def __init__(self, **facts: float) -> None:
        super().__init__()
        self.reported = facts
        self.facts = {name: ExtraColumn("trajectory") for name in facts}

    def reset(self, task: Any, seed: int) -> Any:
        episode = super().reset(task, seed)
        answer = episode.step

        def step(action: str) -> StepResult:
            return replace(answer(action), facts=self.reported)

        episode.step = step
        return episode


def test_a2fm_forces_nine_members_into_three_modes() -> None:
    run = solve(recipes.A2FM, in_turn(WRONG), world=RewardedRiddles(**{"reward.mode": 0.0, "reward.format": 1.0}))
    tags = ["<instant>"] * 3 + ["<reasoning>"] * 3 + ["<agentic>"] * 3 + [""] * 3
    assert [row.actions for row in run.rows] == [[tag + WRONG] for tag in tags]
    assert {row.trained for row in run.rows} == {WRONG + END}, "tags are not trained"
    assert run.fact("reward.forced") == [1] * 9 + [0] * 3


def test_active_vln_resamples_a_failed_group_at_most_twice() -> None:
    def resampled(*answers: str, **options: Any) -> tuple[list[bool], list[list[str]]]:
        run = solve(ResampleFailedGroups(column="success", **options), in_turn(*answers), group_size=2)
        return [row.drawn for row in run.rows], [row.actions for row in run.drawn]

    assert resampled(WRONG, RIGHT) == ([True, True], [[WRONG], [RIGHT]])
    assert resampled(WRONG, WRONG, RIGHT) == ([False, False, True, True], [[RIGHT], [RIGHT]])
    assert resampled(WRONG) == ([False] * 4 + [True] * 2, [[WRONG], [WRONG]])
    expert = [["0123456789", RIGHT]]
    assert resampled(WRONG, expert=True) == ([False] * 4 + [True] * 3, [[WRONG], [WRONG], *expert])
    # The expert has 2 steps: the fifth is one more than 2 * 2; tolerance 1.4: int(2.8) and one more; turns 3: 3.
    assert resampled("look")[1] == [["look"] * 5] * 2
    assert resampled("look", tolerance=1.4)[1] == [["look"] * 3] * 2
    assert resampled("look", steps=1)[1] == [["look"] * 2] * 2
    assert resampled("look", turns=3)[1] == [["look"] * 3] * 2


def test_active_vln_counts_the_steps_of_a_turn() -> None:
    class Walk(Riddles):
        facts: ClassVar = {"steps": ExtraColumn("step")}

        def reset(self, task: Any, seed: int) -> Any:
            episode = super().reset(task, seed)
            answer = episode.step
            episode.step = lambda action: replace(answer(action), facts={"steps": 3.0})
            return episode

    run = solve(ResampleFailedGroups(column="success", attempts=0), in_turn("look"), world=Walk(), group_size=1)
    assert run.rows[0].actions == ["look"] * 2  # 6 steps are more than 2 * 2
    assert run.rows[0].status == "truncated"


def test_active_vln_starts_after_a_part_of_the_expert_trajectory() -> None:
    # 6 steps, W = 3: in iteration t = 1, f = log(1) / log(4) = 0, so n = 2 remain and 4 are given.
    world = Riddles((*"abcde", RIGHT))
    run = solve(
        ResampleFailedGroups(column="success", warm_up=3), in_turn(*["look"] * 5, RIGHT), world=world, group_size=1
    )
    # At most 2 * 2 steps of its own: the fifth is its last.
    assert [row.actions for row in run.rows if row.drawn] == [[*"abcd", RIGHT]]
    assert [row.trained for row in run.rows if row.drawn] == [RIGHT + END]
    # t = 2: f = (log 2 / log 4)^2 = 1/4, n = 2 + 4/4 = 3; t = 3: f = (log 3 / log 4)^2 = 0.628: n = floor(4.51) = 4.
    assert [ResampleFailedGroups(warm_up=3).left(6, iteration) for iteration in range(5)] == [2, 3, 4, 6, 6]
    scratch = solve(ResampleFailedGroups(warm_up=3, from_scratch=1.0), in_turn(RIGHT), world=world, group_size=1)
    assert scratch.rows[0].actions == [RIGHT]


def test_agent_rlvr_trains_guided_rollouts_without_the_guidance() -> None:
    def speak(context: str, request: Request) -> str:
        del request
        if "Give guidance" in context:
            assert f"An attempt that failed:\n{WRONG}" in context
            assert "Its solution:\n0123456789" in context
            return "it is right"
        return RIGHT if "it is right" in context else WRONG

    run = solve(recipes.AGENT_RLVR, speak, group_size=2)
    assert [(row.prompt, row.actions) for row in run.drawn] == [("riddle?", [WRONG])] * 2 + [("riddle?", [RIGHT])] * 2
    undrawn = [row for row in run.rows if not row.drawn]
    assert sorted(row.role for row in undrawn) == ["helper", "helper", "member", "member"]
    assert run.fact("attempt") == [1, 2, -1, -2]
    assert {row.prompt for row in undrawn if row.role == "member"} == {"it is right\n\nriddle?"}
    is_sampled = np.isfinite(run.batch.column("behaviour_logprob", "token"))
    assert is_sampled.tolist() == [True] * (2 * (len(WRONG) + 1)) + [False] * (2 * (len(RIGHT) + 1))
    credited = recipes.AGENT_RLVR.credit(run.batch)
    assert credited.column("pair", "draw").tolist() == [0, 1, 0, 1]
    assert credited.column("advantage", "draw").tolist() == [-1, -1, 1, 1]
    assert len(solve(recipes.AGENT_RLVR, in_turn(RIGHT), group_size=2).rows) == 2, "a solved task costs no more"
    mixed = solve(recipes.AGENT_RLVR, in_turn(RIGHT, WRONG, "guidance", WRONG), group_size=2)
    assert mixed.fact("attempt") == [1, 2, -2], "only what failed is repeated"
    assert recipes.AGENT_RLVR.credit(mixed.batch).column("pair", "draw").tolist() == [0, 0, -1]


def test_ad_hint_sets_the_hint_length_by_difficulty() -> None:
    world = Riddles(("0123456789",))
    program = HintsByDifficulty(noise=0.0)
    # One of four solved: D = 3/4, w = 0.5 * 3/4 + 0.1 = 0.475: floor(4.75) = 4 of 10 tokens.
    run = solve(program, in_turn(RIGHT, WRONG), world=world)
    assert [row.actions for row in run.rows] == [[RIGHT]] + [[WRONG]] * 3 + [["0123" + WRONG]] * 4
    assert run.fact("hinted") == [0] * 4 + [1] * 4
    assert {row.trained for row in run.rows[4:]} == {f"0123{WRONG}{END}"}
    # None: w = 0.6, 6 tokens. All: no second round.
    assert solve(program, in_turn(WRONG), world=world).rows[-1].actions == ["012345" + WRONG]
    assert solve(program, in_turn(RIGHT), world=world).num_requests == 4
    # The noise is 0.05 N(0, 1): at u = 0.975, N = 1.96.
    assert HintsByDifficulty().share(0.5, 0.9750021) == pytest.approx(0.35 + 0.05 * 1.96, abs=1e-6)


def test_ad_hint_compares_both_kinds_fairly() -> None:
    def speak(context: str, request: Request) -> str:
        del request
        return next(answers) if "01" not in context.rpartition("assistant")[2] else next(hinted)

    answers, hinted = iter([RIGHT, WRONG, WRONG, WRONG]), iter([RIGHT, RIGHT, RIGHT, WRONG])
    run = solve(HintsByDifficulty(noise=0.0), speak, world=Riddles(("0123456789",)))
    batch = run.batch.with_columns("token", current_entropy=np.ones(len(run.batch.column("token", "token"))))
    hint = ~np.isfinite(batch.column("behaviour_logprob", "token"))
    entropies = np.where(hint, 3.0, 2.0)
    recipe = recipes.AD_HINT.replace(rollout=HintsByDifficulty(noise=0.0))
    batch = recipe.credit(batch.with_columns("token", current_entropy=entropies))
    # Plain: mean 1/4, std with n - 1: 1/2, A = 1.5 and -0.5; 1.5 is multiplied by 1 + D = 1.75.
    # Hinted: mean 3/4, A = 0.5 and -1.5; -1.5 is multiplied by 1 + (1 - D_h) = 1.75.
    np.testing.assert_allclose(
        batch.column("advantage", "draw"), [2.625, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -2.625], rtol=1e-4
    )
    weights = batch.column("weight", "token")
    assert hint.sum() == 4 * 4
    assert (weights[~hint] == 1).all()
    # H = 3, and the policy's own are 2: exp(-1/2); no hint of a failure is trained.
    np.testing.assert_allclose(weights[hint], [np.exp(-0.5)] * 12 + [0.0] * 4, rtol=1e-6)


def after_one(recipe: Recipe, first: Speaker, second: Speaker, folder: Any, task_pool: int = 64, **options: Any) -> Any:
    """Return the rollouts of a recipe's second iteration, on a store that has the first."""
    with arl.Store.open(folder) as store:
        for iteration, speaker in enumerate((first, second)):
            recorder = RecordingEngine(script(speaker))
            collect = arl.Collector(recorder, Riddles(), recipe, store=store, task_pool=task_pool)
            batch = collect(**options)
            check_sampled(batch, recorder)
            if not iteration:
                collect.end_iteration(recipes.GRPO.credit(batch), {})
        return rows_of(batch), batch


def test_icpo_shows_a_demonstration_and_trains_without(tmp_path: Any) -> None:
    recipe = recipes.GRPO.replace(rollout=OneDemonstration(column="success"))

    def second(context: str, request: Request) -> str:
        del request
        return RIGHT if "by heart" in context else WRONG

    rows, batch = after_one(recipe, in_turn(f"by heart {RIGHT}"), second, tmp_path, tasks=1, group_size=8)
    draws = [row for row in rows if row.drawn]
    assert [(row.prompt, row.actions) for row in draws] == [("riddle?", [WRONG])] * 7 + [("riddle?", [RIGHT])]
    [demonstrated] = [row for row in rows if not row.drawn]
    assert demonstrated.prompt == f"by heart {RIGHT}\n\nriddle?"
    assert batch.column("shown", "draw").tolist() == [0] * 7 + [1]


def test_earlier_solutions_of_a_task_are_retrieved(tmp_path: Any) -> None:
    """Of the four rollouts that solved it in the iteration before, the newest three are shown; a failure never is."""
    texts = [f"{word} {RIGHT}" for word in ("one", "two", "three", "four")]
    speaker = in_turn(*texts, WRONG)
    rows, batch = after_one(recipes.RETRIEVAL, speaker, lambda *_: WRONG, tmp_path, task_pool=1, tasks=1, group_size=5)
    retrieved = "\n\n".join(texts[1:])
    assert [row.prompt for row in rows] == [f"{retrieved}\n\nriddle?"] * 5
    assert batch.column("retrieved", "draw").tolist() == [1] * 5
    alone = solve(recipes.RETRIEVAL, in_turn(RIGHT, WRONG), group_size=2)
    assert alone.fact("retrieved") == [0, 0], "nothing was solved yet"


def test_icpo_drops_failed_rollouts_that_had_a_demonstration() -> None:
    members = RolloutSpec(7) + RolloutSpec(1, hint=FixedHint("an example"), train_without_hint=True, fact="shown")
    for at_least, num_draws in ((1.0, 7), (None, 8)):
        program = OneDemonstration(members=members, column="success", at_least=at_least)
        run = solve(program, in_turn(*[RIGHT] * 7, WRONG))
        assert (run.num_requests, len(run.drawn)) == (8, num_draws)
    alone = solve(recipes.ICPO, in_turn(*[RIGHT] * 7, WRONG))
    assert alone.fact("shown") == [0] * 8, "nothing was solved yet, and so nothing is shown"


def test_xrpo_spends_where_the_interval_shrinks_most() -> None:
    program = PriorityRounds()
    # t of 0.975 with 3 and 4 degrees of freedom: 3.18245 and 2.77645. s = 0.5: 3.18245 / 4 - 2.77645 * 0.5 / sqrt(5)
    # = 0.795612 - 0.620833 = 0.174779; and 0.1 sqrt(ln(1 + 8) / 4) = 0.074116.
    assert program.priority(np.array([0.0, 0, 0, 1]), 8) == pytest.approx(0.174779 + 0.074116, abs=1e-5)
    # Without a spread only the second part is left.
    assert program.priority(np.zeros(4), 8) == pytest.approx(0.074116, abs=1e-6)
    assert program.priority(np.array([1.0]), 8) == np.inf
    requests: dict[str, int] = {}

    class NamedTasks(Riddles):
        def reset(self, task: Any, seed: int) -> Any:
            episode = super().reset(task, seed)
            episode.observation = task.task_id
            return episode

    names = [task.task_id for task in NamedTasks().tasks(64)]

    def speak(context: str, request: Request) -> str:
        del request
        name = max((name for name in names if f"{name}<" in context), key=len)
        requests[name] = requests.get(name, 0) + 1
        # The first requested task is mixed, the others are always solved.
        return WRONG if name == next(iter(requests)) and requests[name] % 2 else RIGHT

    run = solve(PriorityRounds(budget=6, per_round=2), speak, world=NamedTasks(), tasks=3)
    # 3 * 6 = 18: 4 each, then three rounds of 2. The mixed task comes first in each, the others share the rest.
    assert sum(requests.values()) == 18
    assert sorted(requests.values()) == [5, 6, 7]
    assert np.bincount(run.batch.column("group_id", "draw").astype(int)).sum() == 18


def test_dyna_mind_shows_half_of_a_group_the_results_of_their_plans() -> None:
    plan = "<plan>look\n<bad>\nlook</plan>"

    def speak(context: str, request: Request) -> str:
        del request
        return RIGHT if "leads to" in context else plan if "assistant\n<plan>" not in context else WRONG

    run = solve(recipes.DYNA_MIND, speak, group_size=3)
    assert run.fact("refined") == [1, 0, 0]
    refined, *plain = run.drawn
    assert refined.actions == [plan, RIGHT]
    assert "Your plan leads to:\nlook: go on\n<bad>: error\nlook: go on\nSay" in refined.text
    assert refined.trained == f"{plan}{END}{RIGHT}{END}"
    assert [row.actions for row in plain] == [[plan, WRONG]] * 2
    [aside] = [row for row in run.rows if not row.drawn]
    assert aside.actions[:3] == ["look", "<bad>", "look"]


def test_ampo_takes_the_clearest_teachers() -> None:
    recipe = recipes.AMPO.replace(rollout=TeacherReplacement(teachers=("a", "b", "c")))
    seeds: list[int] = []

    def speak(context: str, request: Request) -> str:
        del context
        seeds.append(request.seed)
        return WRONG if len(seeds) <= 4 else f"{len(seeds) - 4} {RIGHT}"

    def comprehension(paths: list[Any]) -> list[float]:
        assert len(paths) == 3
        return [0.2, 0.5, 0.3]

    run = solve(recipe, speak, models={"comprehension": comprehension})
    assert sorted(row.actions[0] for row in run.drawn) == [f"2 {RIGHT}", f"3 {RIGHT}", WRONG, WRONG]
    assert sorted(run.fact("taught")) == [0, 0, 1, 1]
    assert sum(row.role == "helper" for row in run.rows) == 3
    solved = solve(recipe, in_turn(RIGHT, WRONG), models={"comprehension": comprehension})
    assert (solved.num_requests, len(solved.drawn)) == (4, 4)


def test_brorl_trains_a_part_of_a_large_group() -> None:
    running, most = 0, 0

    class Counting(Pieces):
        async def branch(self, branch: Branch) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            await super().branch(branch)
            running -= 1

    run = solve(Counting(count=10, piece=4, trained=3), in_turn(RIGHT, WRONG))
    assert (run.num_requests, len(run.drawn), most) == (10, 10, 4)
    assert sum(bool(row.trained) for row in run.drawn) == 3
    scored = recipes.GRPO.credit(run.batch)
    # All ten vote: mean 1/10, std with n - 1: sqrt(0.09 * 10 / 9) = 0.316228; A = 0.9 / 0.316228 = 2.84604.
    assert scored.column("advantage", "draw").max() == pytest.approx(2.84604, rel=1e-4)


class Clustered(Riddles):
    """Riddles that report which answers are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = {"answer_cluster": ExtraColumn("trajectory"), "answer_parsed": ExtraColumn("trajectory")}

    def reset(self, task: Any, seed: int) -> Any:
        episode = super().reset(task, seed)
        answer = episode.step

        def step(action: str) -> StepResult:
            outcome = answer(action)
            return replace(outcome, facts={"answer_cluster": float(RIGHT in action), "answer_parsed": 1.0})

        episode.step = step
        return episode


def attempts(share: float) -> Speaker:
    """Return attempts of four steps, some right; judges of them find the third step bad, or propose another."""

    def speak(context: str, request: Request) -> str:
        if "step" in context:
            return "3: bad"
        answer = RIGHT if request.seed % 997 / 997 < share or "bad" in context else WRONG
        return f"one\n\ntwo\n\nthree {request.seed % 5}\n\n{answer}"

    return speak


def calls(context: str, request: Request) -> str:
    """Return a speaker: calls, some of which fail, and finally an answer."""
    if context.count("go on") > 1:
        return [RIGHT, WRONG][request.seed % 2]
    return ["so <bad>", "and <call>", "or <call>", RIGHT, WRONG][request.seed % 5]


def planning(context: str, request: Request) -> str:
    """Return a speaker that starts with a plan in half of the cases."""
    if "go on" in context or "leads" in context or request.seed % 2:
        return [RIGHT, WRONG][request.seed // 2 % 2]
    return "<plan>look\nlook</plan>"


@dataclass(frozen=True)
class Case:
    """A recipe on riddles: its speaker, and the largest number of draws of a group."""

    speaker: Speaker
    most: int
    world: Any = field(default_factory=Riddles)
    size: int = 4
    smaller: dict[str, Any] = field(default_factory=dict)
    """Options of the program, if those of the recipe do not suit the test."""

    def recipe(self, name: str) -> Recipe:
        recipe = recipes.get(name)
        return recipe.replace(rollout=replace(recipe.rollout, **self.smaller))


MODELS = {"comprehension": lambda paths: [1.0 / len(path) for path in paths]}
CASES = {
    "remax": Case(by_chance(0.5), 2),
    "temp_samp": Case(by_chance(0.3), 4),
    "ghpo": Case(by_chance(0.1, but="0123"), 4),
    "dars": Case(by_chance(0.2), 32),
    "v05": Case(by_chance(0.7), 16),
    "a2fm": Case(by_chance(0.5), 12, RewardedRiddles(**{"reward.mode": 0.0, "reward.format": 1.0})),
    "active_vln": Case(by_chance(0.2), 4),
    "agent_rlvr": Case(by_chance(0.05, but="teacher"), 8),
    "brorl": Case(by_chance(0.3), 16, smaller={"count": 16, "piece": 5, "trained": 8}),
    "ampo": Case(by_chance(0.3, but="teacher"), 4),
    "ettrl": Case(by_chance(0.5), 25, Clustered(), 28),
    "icpo": Case(by_chance(0.4), 8),
    "dyna_mind": Case(planning, 8, size=8),
    "xrpo": Case(by_chance(0.4), 48),
    "scope": Case(attempts(0.3), 4),
    "intervention": Case(attempts(0.3), 8, smaller={"continuations": 4}),
    "fission": Case(calls, 4),
    "cleaner": Case(calls, 4),
    "coot": Case(by_chance(0.5), 4, smaller={"tokens": 64}),
    "agent_r": Case(attempts(0.5), 8),
    "ad_hint": Case(by_chance(0.3), 8, Riddles(("0123456789",))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_runs_to_the_step_of_its_optimizer(name: str) -> None:
    case = CASES[name]
    speaker = case.speaker
    for seed in range(20):  # until some group has both outcomes
        run = solve(
            case.recipe(name), speaker, world=case.world, tasks=3, group_size=case.size, models=MODELS, seed=seed
        )
        if np.unique(run.batch.column("score", "draw")).size > 1:
            break
    assert step(recipes.get(name), run.batch) >= 1


@pytest.mark.parametrize("name", CASES)
def test_recorded_responses_are_not_sampled_again(name: str) -> None:
    case = CASES[name]
    assert (
        check_resumes(
            case.recipe(name),
            case.speaker,
            every=3 if case.most < 4 else 5,
            world=case.world,
            group_size=case.size,
            models=MODELS,
        )
        >= 1
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.floats(0, 1), st.integers(1, 3), st.integers(0, 1000))
def test_no_group_is_larger_than_its_budget(name: str, share: float, tasks: int, seed: int) -> None:
    case = CASES[name]
    speaker = by_chance(2 * share) if share < 0.5 else case.speaker
    run = solve(
        case.recipe(name), speaker, world=case.world, tasks=tasks, group_size=case.size, models=MODELS, seed=seed
    )
    groups = np.bincount(run.batch.column("group_id", "draw").astype(int), minlength=tasks)
    assert groups.max() <= case.most
    assert run.num_requests > 0
