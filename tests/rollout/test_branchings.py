"""Programs that branch at turns, segments and tokens, and one that prunes; compared with trees by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mazes import END, Babbler, Maze
from number_world import Numbers, SumWorld
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Sampling
from agentrl_core.exceptions import AgentRLError, InvalidInputError, RecipeError
from agentrl_core.recipes.aepo import PremonitoredBranching
from agentrl_core.recipes.arrol import PruneRunning, systematic
from agentrl_core.recipes.branch_grpo import FixedDepthBranching
from agentrl_core.recipes.latr import LookaheadBranching
from agentrl_core.recipes.tree_grpo import TreeExpansion
from agentrl_core.recipes.tree_po import SegmentTree
from agentrl_core.rollout import Branch, Group, Rollout

FORK = 1
FINISHED, PRUNED = 0, 3
LINE: dict[str, dict[int, str | float]] = {
    "a": {3: "b", 4: "b"},
    "b": {3: "c", 4: "c"},
    "c": {3: "d", 4: "d"},
    "d": {3: 1.0, 4: 0.0},
}


def by_seed(seed: int, place: str, number: int) -> tuple[int, float]:
    """Go through either door, by the seed."""
    del place, number
    return 3 + seed % 2, -0.7


def roll_out(program: Rollout, world: Any = None, *, size: int = 1, check: bool = True, **options: Any) -> arl.Batch:
    world = Maze(LINE, by_seed) if world is None else world
    engine = RecordingEngine(world)
    recipe = recipes.GRPO.replace(rollout=program)
    batch = arl.Collector(engine, world, recipe, task_pool=1, **options)(tasks=1, group_size=size)
    assert not check or check_sampled(batch, engine)
    return batch


def rows(batch: arl.Batch, name: str = "trajectories") -> pl.DataFrame:
    return pl.DataFrame(getattr(batch, name))


def forks(batch: arl.Batch) -> list[tuple[int, int]]:
    """Return for each fork the trajectory that it left, and the number of turns before it."""
    steps = rows(batch, "steps")
    inherited = steps.filter(pl.col("trajectory_id") != pl.col("origin_trajectory_id"))
    counts = dict(inherited.group_by("trajectory_id").len().iter_rows())
    of = rows(batch).filter(pl.col("branch_node").is_not_null())
    return [
        (row["parent_trajectory"], counts.get(row["trajectory_id"], 0))
        for row in of.sort("trajectory_id").iter_rows(named=True)
    ]


def test_branches_split_at_fixed_depths() -> None:
    batch = roll_out(FixedDepthBranching(splits=3, every=1))
    # Two from the prompt; each splits after one turn, and all four after two.
    assert batch.num_draws == 8 == FixedDepthBranching(splits=3, every=1).final_group_size(1)
    assert sorted(turns for _, turns in forks(batch)) == [1, 1, 2, 2, 2, 2]
    assert rows(batch)["branch_node"].is_null().sum() == 2
    assert sorted(turns for _, turns in forks(roll_out(FixedDepthBranching(splits=2, every=3, ways=3)))) == [3] * 6
    assert roll_out(FixedDepthBranching(splits=4, every=4)).num_draws == 2, "it ended before"


def test_which_branches_are_trained() -> None:
    scores, families = np.array([1.0, 3.0, 2.0, np.nan, 0.0, 0.5]), np.array([0, 0, 0, 0, 1, 1])
    best = FixedDepthBranching(keep="best", ratio=0.5)
    assert best.kept(scores, families).tolist() == [False, True, True, False, False, True]
    # A third of four is one, of two it is none: at least one.
    assert FixedDepthBranching(keep="best", ratio=0.34).kept(scores, families).tolist() == [0, 1, 0, 0, 0, 1]
    # Half of six: one and a half, rounded to two, of the best and of the worst; a branch without a score is the worst.
    extremes = FixedDepthBranching(keep="extremes", ratio=0.5).kept(scores, families)
    assert extremes.tolist() == [False, True, True, True, True, False]
    one = FixedDepthBranching(keep="extremes", ratio=0.1).kept(scores, families)
    assert one.sum() == 2
    batch = roll_out(FixedDepthBranching(splits=2, every=2, keep="best", ratio=0.5), seed=3)
    assert batch.num_draws == 4
    trained = [batch.column("trainable", "token")[slice(*span)].any() for span in draws(batch)]
    assert sum(trained) == 2, "of each pair one"
    scores = batch.column("reward", "draw")
    assert all(max(scores[pair : pair + 2]) == scores[pair + trained[pair : pair + 2].index(True)] for pair in (0, 2))


def draws(batch: arl.Batch) -> list[tuple[int, int]]:
    """Return the place of each draw's tokens."""
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    return [(int(tokens[begin]), int(tokens[end])) for begin, end in itertools.pairwise(steps)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": 0}, "splits=0"),
        ({"every": 0}, "every=0"),
        ({"ways": 1}, "ways=1"),
        ({"ratio": 0.0}, "ratio=0"),
    ],
)
def test_options_of_fixed_depths(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        FixedDepthBranching(**options)


def saying(length: int) -> Babbler:
    """Return actions of a number of tokens and the end of the turn, each token one of two."""
    return Babbler(lambda tokens: [(END, 1.0)] if len(tokens) >= length else [(3, 0.5), (4, 0.5)])


def test_segments_split_until_the_group_is_full() -> None:
    # Five tokens and the end, in segments of two: one becomes two after two tokens, the first of these two becomes two
    # after four, and then the group has its three.
    batch = roll_out(SegmentTree(budget=3, tokens=2), saying(5), sampling=Sampling(max_tokens=16))
    assert batch.num_draws == 3
    assert [len(tokens) for tokens in rows(batch, "nodes").filter(pl.col("kind") == 1)["tokens"]].count(2) >= 5
    assert forks(batch) == [(0, 0), (0, 0)]
    decisions = rows(batch, "decisions").filter(pl.col("operation") == FORK)
    assert decisions["trajectory_id"].to_list() == [0, 0]
    starts = dict(rows(batch, "nodes").select("node_id", "start").iter_rows())
    # The prompt has two tokens, so nodes of two tokens that begin at 2 and at 4 end at the places.
    assert sorted(starts[node] for node in decisions["node_id"]) == [2, 4]


def test_a_group_of_segments_falls_back() -> None:
    # In segments of four, two branches end in their second one; the third leaves after the first segment.
    batch = roll_out(SegmentTree(budget=3, tokens=4), saying(5), sampling=Sampling(max_tokens=16))
    decisions = rows(batch, "decisions").filter(pl.col("operation") == FORK)
    assert (batch.num_draws, len(decisions)) == (3, 2)
    assert len(set(decisions["node_id"])) == 1
    # If all end in their first segment, the prompt is the only place.
    batch = roll_out(SegmentTree(budget=3, tokens=16), saying(5), sampling=Sampling(max_tokens=16))
    assert rows(batch)["branch_node"].is_null().all()
    assert batch.num_draws == 3


def test_trees_are_expanded_at_turns_drawn_by_chance() -> None:
    places: list[tuple[int, ...]] = []

    class PlaceRecorder(TreeExpansion):
        async def group(self, group: Group) -> None:
            await super().group(group)
            places.extend(branch.key for branch in group.branches)

    program = PlaceRecorder(trees=2, rounds=2, expansions=2)
    batch = roll_out(program, seed=5)
    # A chain of four turns has four nodes: the prompt and the ends of three turns.
    assert batch.num_draws == program.final_group_size(1) == 10
    trees = [key[1] for key in places]
    assert (trees.count(0), trees.count(1)) == (5, 5), "each tree grows by two a round"
    turns = [turns for _, turns in forks(batch)]
    assert set(turns) <= {0, 1, 2, 3}
    assert len(set(turns)) > 1
    assert len(set(places)) == 10
    first = [key for key in places if len(key) == 4]
    assert len({key[2] for key in first if key[1] == 0}) >= 1
    again = roll_out(PlaceRecorder(trees=2, rounds=2, expansions=2), seed=5)
    assert places[:10] == places[10:]
    assert rows(again, "steps").equals(rows(batch, "steps"), null_equal=True)
    # A tree of one turn has one node, the prompt; places that do not exist are not drawn.
    short = roll_out(TreeExpansion(trees=1, rounds=1, expansions=3), saying(2))
    assert short.num_draws == 2


def nearly_equal(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
    """Return two first tokens that are nearly as likely, then always the same one; eighty in all."""
    if not tokens:
        return [(3, 0.4), (4, 0.35), (5, 0.1)]
    return [(END, 1.0)] if len(tokens) >= 80 else [(6, 0.9), (7, 0.1)]


def unlike(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
    if not tokens:
        return nearly_equal(tokens)
    return [(END, 1.0)] if len(tokens) >= 80 else [(6 if tokens[0] == 3 else 8, 0.9), (7, 0.1)]


def test_lookahead_drops_a_branch_similar_to_its_parent() -> None:
    # The second candidate has 0.35 > 0.25 and trails by 0.05 < 0.15; the third is not likely enough. At 20 tokens
    # parent and child differ in one: 1 / 20 < 0.4.
    batch = roll_out(
        LookaheadBranching(),
        Babbler(nearly_equal),
        size=2,
        check=False,
        sampling=Sampling(max_tokens=128),
        context_tokens=256,
    )
    status = rows(batch)["status"].to_list()
    assert (status.count(FINISHED), status.count(PRUNED)) == (2, 1)
    pruned = rows(batch).filter(pl.col("status") == PRUNED)
    assert pruned["info"][0].count("lookahead") == 1
    assert batch.num_draws == 2


def test_lookahead_keeps_a_branch_that_differs() -> None:
    batch = roll_out(
        LookaheadBranching(),
        Babbler(unlike),
        size=2,
        check=False,
        sampling=Sampling(max_tokens=128),
        context_tokens=256,
    )
    assert rows(batch)["status"].to_list() == [FINISHED, FINISHED]
    tokens = [batch.column("token", "token")[slice(*span)].tolist() for span in draws(batch)]
    first, second = sorted(tokens)
    assert first[:50] == [3, *[6] * 49], "greedy while the tree grows: two of two, and the child 50 tokens old"
    assert second[:50] == [4, *[8] * 49]
    # The child's first token was chosen and not sampled; the others of the tree are greedy, with log-prob 0.
    logprobs = [batch.column("behaviour_logprob", "token")[slice(*span)] for span in draws(batch)]
    [child] = [numbers for numbers, row in zip(logprobs, tokens, strict=True) if row[0] == 4]
    assert np.isnan(child[0])
    assert (child[1:50] == 0).all()
    # Then both are sampled: 30 tokens with 0.9 or 0.1.
    rest = np.exp(child[50:80].astype(np.float64))
    assert set(np.round(rest, 6)) <= {0.9, 0.1, 1.0}


def test_lookahead_is_within_its_group() -> None:
    def busy(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        return [(END, 1.0)] if len(tokens) >= 40 else [(3, 0.4), (4, 0.3), (5, 0.28)]

    for size in (1, 3, 8):
        program = LookaheadBranching(children=2, distance=0.0, tokens=30)
        batch = roll_out(program, Babbler(busy), size=size, check=False, sampling=Sampling(max_tokens=64))
        assert batch.num_draws == size
        plain = roll_out(LookaheadBranching(share=0.5, tokens=30), Babbler(busy), size=size, check=False)
        assert plain.num_draws == size
    first = rows(batch, "decisions").filter(pl.col("operation") == FORK)
    assert len(first) == 7
    with pytest.raises(InvalidInputError, match=r"does not report the likeliest tokens; use one"):
        roll_out(LookaheadBranching(), check=False)


def test_similarity_of_two_branches() -> None:
    tokens, other = np.array([1, 2, 3, 4, 5], np.int32), np.array([9, 2, 3, 4, 5], np.int32)
    # One edit of five; four in common at the end and in order.
    assert LookaheadBranching(distance=0.21).are_similar(tokens, other)
    assert not LookaheadBranching(distance=0.2).are_similar(tokens, other)
    assert LookaheadBranching(distance=0.0, suffix=0.75).are_similar(tokens, other)
    assert not LookaheadBranching(distance=0.0, suffix=0.8).are_similar(tokens, other)
    assert LookaheadBranching(distance=0.0, rouge=0.75).are_similar(tokens, other)
    assert not LookaheadBranching(distance=0.0, rouge=0.8).are_similar(tokens, other)


class Judged(PruneRunning):
    """A program that estimates the quality of a branch by its number."""

    async def quality(self, group: Group, branches: Sequence[Branch]) -> Any:
        del group
        return np.array([(0.9, 0.8, 0.1, 0.05, 0.5, 0.5)[branch.key[1]] for branch in branches])


def test_branches_are_pruned_while_they_run() -> None:
    program = Judged(tokens=2, keep=0.5, begin=1)
    collect = {"sampling": Sampling(max_tokens=16), "seed": 1}
    assert roll_out(program, saying(5), size=6, **collect).num_draws == 6, "iteration 0 prunes nothing"
    batch = roll_out(Judged(tokens=2, keep=0.5, begin=0), saying(5), size=6, **collect)
    status = rows(batch)["status"].to_list()
    assert (status.count(FINISHED), status.count(PRUNED)) == (3, 3)
    assert batch.num_draws == 3
    pruned = rows(batch).filter(pl.col("status") == PRUNED)["trajectory_id"]
    actions = rows(batch, "nodes").filter(pl.col("kind") == 1)["tokens"].list.len().to_list()
    assert sorted(actions) == [2] * 6 + [4] * 3, "the pruned ones have their first two tokens"
    assert len(pruned) == 3
    # Branches that ended before are kept, and at least two.
    short = roll_out(Judged(tokens=16, keep=0.5, begin=0), saying(5), size=6, **collect)
    assert short.num_draws == 6
    two = roll_out(PruneRunning(tokens=2, keep=0.01, begin=0), saying(5), size=6, **collect)
    assert two.num_draws == 2


def test_the_predictions_of_a_head_decide_which_branches_are_pruned() -> None:
    last_tokens: list[list[int]] = []

    def head(paths: list[Any]) -> list[float]:
        last_tokens.append([int(path[-1]) for path in paths])
        return [float(path[-1] % 2) for path in paths]  # those whose second token is 3 will succeed

    program = PruneRunning(tokens=2, keep=0.5, balance=1.0, begin=0, head="will_succeed")
    world = Babbler(lambda tokens: [(END, 1.0)] if len(tokens) >= 6 else [(3, 0.5), (4, 0.5)])
    batch = roll_out(program, world, size=6, sampling=Sampling(max_tokens=16), models={"will_succeed": head})
    [seconds] = last_tokens
    assert len(seconds) == 6
    assert set(seconds) == {3, 4}
    # Three survive: those that will succeed, as far as there are enough.
    survivors = [int(batch.column("token", "token")[begin + 1]) for begin, _ in draws(batch)]
    assert len(survivors) == 3
    assert survivors.count(3) == min(seconds.count(3), 3)
    assert rows(batch)["status"].to_list().count(PRUNED) == 3
    with pytest.raises(AgentRLError, match="will_succeed"):
        roll_out(program, world, size=6)


def test_survival_by_hand() -> None:
    program = PruneRunning(balance=0.5)
    # 0.9 three times, 0.1 once: 3 * 0.9 s + 0.1 t = 1 (one is right) and 3 s + t = 2 give s = 1/3, t = 1.
    np.testing.assert_allclose(program.survival(np.array([0.9, 0.9, 0.9, 0.1]), 2), [1 / 3, 1 / 3, 1 / 3, 1], atol=1e-9)
    np.testing.assert_allclose(program.survival(np.array([0.5, 0.5]), 1), [0.5, 0.5])
    # If none is ever right, the best ones survive, whatever the balance.
    assert program.survival(np.zeros(3), 2).sum() == pytest.approx(2)
    np.testing.assert_array_equal(program.survival(np.array([0.2, 0.4]), 2), [1, 1])
    with pytest.raises(InvalidInputError, match=r"quality\[0\] is 1\.5; give a probability"):
        program.survival(np.array([1.5]), 1)
    with pytest.raises(InvalidInputError, match="count is 2; give a number from 0 to 1"):
        program.survival(np.array([0.5]), 2)


@settings(max_examples=200, deadline=None)
@given(
    quality=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    balance=st.floats(0, 1),
    share=st.floats(0, 1),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_the_number_of_survivors_equals_the_requested_count(
    quality: list[float], balance: float, share: float, uniform: float
) -> None:
    count = int(share * len(quality))
    numbers = np.array(quality)
    program = PruneRunning(balance=balance)
    chances = program.survival(numbers, count)
    assert ((chances >= 0) & (chances <= 1 + 1e-9)).all()
    assert chances.sum() == pytest.approx(count)
    most, least = np.sort(numbers)[::-1][:count].sum(), np.sort(numbers)[:count].sum()
    assert least - 1e-6 <= chances @ numbers <= most + 1e-6
    assert systematic(chances, uniform).sum() == count
    # The closest balance that l1 and l2 allow; between their ends it is exact.
    ends = [PruneRunning(balance=end).survival(numbers, count) @ numbers for end in (0.0, 1.0)]
    if ends[0] + 1e-6 < balance * count < ends[1] - 1e-6:
        assert chances @ numbers == pytest.approx(balance * count, abs=1e-5)


def test_each_survives_with_its_chance() -> None:
    chances = np.array([0.2, 0.7, 0.4, 0.7])
    grid = np.array([systematic(chances, uniform) for uniform in (np.arange(1000) + 0.5) / 1000])
    np.testing.assert_allclose(grid.mean(axis=0), chances, atol=1e-3)


def test_a_probe_determines_how_many_branches_start() -> None:
    program = PremonitoredBranching(budget=16)
    # sigmoid(0.4) = 0.5987: int(9.58) + 1 = 10; sigmoid(0) = 0.5: 9; sigmoid(-20) = 0: 1; sigmoid(40): 16, not 17.
    assert [program.starting(*pair) for pair in ((0.9, 0.1), (0.5, 0.5), (0.0, 40.0), (80.0, 0.0))] == [10, 9, 1, 16]
    with pytest.raises(InvalidInputError, match="use an engine that reports entropies"):
        program.starting(float("nan"), 0.5)


def test_copies_become_rarer() -> None:
    def turn(*, follows_tool: bool = True, failed: str | None = None) -> Any:
        branch = SimpleNamespace(name="0.0/0.0")
        number = SimpleNamespace(index=1, branch=branch, uniform=lambda _: 0.6)
        return SimpleNamespace(**vars(number), follows_tool=follows_tool, failed=failed)

    program = PremonitoredBranching(budget=16, probability=0.5, entropy_weight=1.0, penalty=0.05)
    # u is 0.6: 0.6 >= 0.5; after four copies 0.6 * 0.8 < 0.5; after five (0.6 + 0.1) * 0.75 >= 0.5.
    assert program.penalised([turn()], np.zeros(1), 0, 9) == [1]
    assert program.penalised([turn()], np.zeros(1), 4, 9) == [0]
    assert program.penalised([turn()], np.array([0.1]), 5, 9) == [1]
    assert program.penalised([turn()] * 5, np.zeros(5), 0, 9) == [1, 1, 1, 1, 0], "each makes the next rarer"
    assert program.penalised([turn()] * 2, np.zeros(2), 0, 1) == [1, 0], "the room is kept"
    away = [turn(follows_tool=False), turn(failed="it broke")]
    assert program.penalised(away, np.zeros(2), 0, 9) == [0, 0]
    with pytest.raises(InvalidInputError, match="not known"):
        program.penalised([turn()], np.array([np.nan]), 0, 9)


@pytest.mark.parametrize("seed", range(4))
def test_a_probe_is_kept_and_not_drawn(seed: int) -> None:
    program = PremonitoredBranching(budget=7, initial=7, beam=3, entropy_weight=0.5)
    engine, world = RecordingEngine(Numbers()), SumWorld()
    recipe = recipes.GRPO.replace(rollout=program)
    batch = arl.Collector(engine, world, recipe, seed=seed, task_pool=8, context_tokens=200)(tasks=2, group_size=2)
    assert check_sampled(batch, engine)
    assert batch.num_draws == 14
    assert rows(batch)["role"].to_list().count(2) == 2
    drawn = set(rows(batch, "draws")["trajectory_id"])
    assert not drawn & set(rows(batch).filter(pl.col("role") == 2)["trajectory_id"])
