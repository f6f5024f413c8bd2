"""Compare components of values over time and along trees with loops over nested lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rollouts import Draw, plain, ragged, small

from agentrl_core import Batch
from agentrl_core.advantage import Gae, GroupRelative, Normalisation, TreeRelative
from agentrl_core.advantage.baseline import OptimalTokenBaseline
from agentrl_core.exceptions import InvalidInputError, RecipeError


def advantages(batch: Batch, level: str, name: str = "advantage") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def naive_gae(
    rewards: list[float], values: list[float], gamma: float, lam: float, after: float = 0.0
) -> tuple[list[float], list[float]]:
    out = [0.0] * len(rewards)
    following, ahead = 0.0, after
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * ahead - values[t] + gamma * lam * following
        out[t], ahead = following, values[t]
    return out, [a + v for a, v in zip(out, values, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_gae_of_tokens_skips_untrained_tokens(seed: int) -> None:
    batch = ragged(seed)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=len(batch.column("token", "token")))
    batch = batch.with_columns("token", value=values, reference_logprob=rng.normal(size=len(values)))
    expected, returned = np.zeros(len(values)), np.zeros(len(values))
    for draw in plain(batch):
        rows = [token.row for token in draw.tokens if token.trained]
        if not draw.valid:
            continue
        distance = batch.column("behaviour_logprob", "token") - batch.column("reference_logprob", "token")
        rewards = [-0.1 * float(distance[row]) for row in rows]
        rewards[-1] += draw.score
        expected[rows], returned[rows] = naive_gae(rewards, values[rows].tolist(), 0.9, 0.8)
    result = Gae(gamma=0.9, lam=0.8, kl_coefficient=0.1)(batch)
    close(advantages(result, "token"), expected)
    close(advantages(result, "token", "return"), returned)


@pytest.mark.parametrize("rule", ["terminate", "bootstrap", "repeat", "drop"])
def test_gae_where_an_episode_was_cut_off(rule: str) -> None:
    batch = small(
        [(0, [1, 1, 1]), (0, [1, 1])],
        draw_score=[0.0, 0.0],
        step_reward=[1.0, 2.0, 3.0, 1.0, 1.0],
        step_value=[0.5, 0.25, 2.0, 1.0, 0.5],
        step_truncated=[0, 0, 1, 0, 0],
        step_next_value=[9.0, 9.0, 4.0, 9.0, 9.0],
    )
    after = {"terminate": 0.0, "bootstrap": 4.0, "repeat": 2.0, "drop": 0.0}[rule]
    expected, _ = naive_gae([1.0, 2.0, 3.0], [0.5, 0.25, 2.0], 0.9, 0.8, after)
    if rule == "drop":
        # The last step has no advantage and passes none on; the one before it uses its value.
        last = 2.0 + 0.9 * 2.0 - 0.25
        expected = [1.0 + 0.9 * 0.25 - 0.5 + 0.72 * last, last, 0.0]
    other, _ = naive_gae([1.0, 1.0], [1.0, 0.5], 0.9, 0.8)
    result = Gae(level="step", gamma=0.9, lam=0.8, column="reward", outcome="", at_truncation=rule)(batch)
    close(advantages(result, "step"), expected + other)
    if rule == "drop":
        close(advantages(result, "step", "return")[2:3], [2.0])  # steps without a score are not trained either


def test_gae_along_the_agents_of_an_episode() -> None:
    # Two views of one episode, whose steps alternate.
    batch = small(
        [(0, [1, 1]), (0, [1, 1])],
        draw_score=[0.0, 1.0],
        draw_episode_id=[5, 5],
        draw_agent=[0, 1],
        step_value=[0.1, 0.2, 0.3, 0.4],
    )
    order = [0, 2, 1, 3]
    expected = np.zeros(4)
    expected[order] = naive_gae([0.0, 0.0, 0.0, 1.0], [0.1, 0.3, 0.2, 0.4], 0.9, 0.5)[0]
    close(advantages(Gae(level="agent", gamma=0.9, lam=0.5)(batch), "step"), expected)


def uneven_agents(**columns: object) -> Batch:
    """Return an episode: the first agent moves twice, then the second; paid 0, 0.25 and 1, values 0."""
    return small(
        [(0, [1, 1]), (0, [1])],
        draw_score=[0.0, 0.0],
        draw_episode_id=[5, 5],
        draw_agent=[0, 1],
        step_value=[0.0] * 3,
        step_reward=[0.0, 0.25, 1.0],
        **columns,
    )


def test_agents_that_do_not_move_by_turns_are_ordered_by_their_moves() -> None:
    """By hand, gamma 0.99 and lambda 0.95: g = 0.9405; the last move 1, the second 0.25 + g, the first g (0.25 + g)."""
    gae = Gae(level="agent", gamma=0.99, lam=0.95, column="reward", outcome="")
    values = advantages(gae(uneven_agents(step_joint_move=[0.0, 1.0, 2.0])), "step")
    close(values, [0.9405 * 1.1905, 1.1905, 1.0])


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [({}, r"collect with rollout\.SelfPlay"), ({"step_joint_move": [0.0, np.nan, 2.0]}, "record it for every step")],
)
def test_an_unknown_order_of_agents_is_refused(columns: dict[str, object], remedy: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"joint_move of step . is missing .*; {remedy}"):
        Gae(level="agent", outcome="", column="reward")(uneven_agents(**columns))


def below(draws: list[Draw], draw: Draw, depth: int) -> list[Draw]:
    """Return the draws that share the first `depth` steps with a draw."""
    path = [step.physical for step in draw.steps[:depth]]
    return [
        other
        for other in draws
        if other.group == draw.group and other.valid and [step.physical for step in other.steps[:depth]] == path
    ]


def spread(value: float, votes: list[float]) -> float:
    if len(votes) < 2 or np.std(votes, ddof=1) <= 1e-6:
        return 0.0
    return float(np.clip((value - np.mean(votes)) / (np.std(votes, ddof=1) + 1e-8), -5.0, 5.0))


FUSED = {"leaves": np.mean, "max": np.max, "min": np.min, "sum": np.sum}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["depth", "sibling", "none"])
@pytest.mark.parametrize("fuse", FUSED)
def test_steps_of_a_tree(fuse: str, kind: str, seed: int) -> None:
    batch = ragged(seed)
    draws = plain(batch)
    nodes: dict[tuple, tuple[float, tuple]] = {}
    for draw in draws:
        for depth in range(1, len(draw.steps) + 1):
            path = (draw.group, *(step.physical for step in draw.steps[:depth]))
            scores = [other.score for other in below(draws, draw, depth)]
            if scores:
                peers = (draw.group, depth) if kind == "depth" else path[:-1]
                nodes[path] = float(FUSED[fuse](scores)), peers
    expected = []
    for draw in draws:
        for depth in range(1, len(draw.steps) + 1):
            if not draw.valid:
                expected.append(0.0)
                continue
            value, peers = nodes[(draw.group, *(step.physical for step in draw.steps[:depth]))]
            votes = [other for other, theirs in nodes.values() if theirs == peers]
            expected.append(value if kind == "none" else spread(value, votes))
    values = advantages(TreeRelative(fuse=fuse, kind=kind)(batch), "step")
    close(values, expected, 1e-4)
    tokens = advantages(TreeRelative(fuse=fuse, kind="none", level="token")(batch), "token")
    if kind == "none":
        flat = [expected[step.row] for draw in draws for step in draw.steps for _ in step.tokens]
        close(tokens, flat, 1e-4)


def branched(column: list[float], logprobs: tuple[float, float] = (-1.0, -1.0)) -> Batch:
    """Return two branches of two leaves, and their values."""
    from agentrl_core import Forest

    forest = Forest()
    forest.add_group(0, "task")
    trunks = []
    for member, logprob in enumerate(logprobs):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1], kind="prompt")
        forest.append(trajectory, [2], kind="action", logprobs=[logprob])
        forest.step(trajectory)
        trunks.append(trajectory)
    leaves = [leaf for trunk in trunks for leaf in (trunk, forest.fork(trunk))]
    for leaf in leaves:
        forest.append(leaf, [3], kind="observation")
        forest.append(leaf, [4], kind="action", logprobs=[-1.0])
        forest.step(leaf)
        forest.finish(leaf, reward=0.0)
    return forest.freeze().with_columns("draw", score=np.array(column))


@pytest.mark.parametrize(("ddof", "size"), [(0, 1.0), (1, 0.707107)])
def test_branch_grpo(ddof: int, size: float) -> None:
    component = TreeRelative(normalisation=Normalisation(ddof=ddof, eps=0.0, scale_above=1e-6, at_most=5.0))
    values = advantages(component(branched([1.0, 0.0, 1.0, 1.0])), "step")
    leaf = spread(1.0, [1.0, 0.0, 1.0, 1.0]) * (math.sqrt(4 / 3) if ddof == 0 else 1.0)
    close([values[0], values[4]], [-size, size])
    close([values[2], values[1]], [-size, leaf])


def test_branches_by_their_probability() -> None:
    # V(root) is not compared; V of the branches is that of their own leaves, which are equally likely.
    batch = branched([1.0, 0.0, 1.0, 1.0], (-1.0, -2.0))
    values = advantages(TreeRelative(fuse="path", kind="none")(batch), "step")
    close(values, [0.5, 1.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("of_node", ["sum", "mean"])
def test_leaves_by_the_probability_of_their_paths(of_node: str, seed: int) -> None:
    batch = ragged(seed)
    draws = plain(batch)

    def path(draw: Draw) -> float:
        steps = ([token.logprob for token in step.tokens if token.trained] for step in draw.steps)
        return sum(sum(values) / (len(values) if of_node == "mean" else 1) for values in steps)

    expected = []
    for draw in draws:
        for depth in range(1, len(draw.steps) + 1):
            leaves = below(draws, draw, depth) if draw.valid else []
            weights = [math.exp(0.5 * path(leaf)) for leaf in leaves]
            mean = sum(weight * leaf.score for weight, leaf in zip(weights, leaves, strict=True))
            expected.append(mean / sum(weights) if leaves else 0.0)
    component = TreeRelative(fuse="leaf_path", alpha=0.5, node_logprob=of_node, kind="none")
    close(advantages(component(batch), "step"), expected)


def test_hard_attribution_of_advantages() -> None:
    batch = GroupRelative(scale="none")(branched([1.0, 0.0, 1.0, 1.0]))
    values = advantages(TreeRelative(column="advantage", kind="none")(batch), "step")
    close(values, [-0.25, 0.25, -0.25, -0.75, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighting", ["average", "group_size"])
@pytest.mark.parametrize("drop_constant", [False, True])
def test_ancestors(drop_constant: bool, weighting: str, seed: int) -> None:
    batch = ragged(seed)
    draws = plain(batch)
    expected = []
    for draw in draws:
        total = weight = 0.0
        for depth in range(len(draw.steps) + 1):
            scores = [other.score for other in below(draws, draw, depth)]
            left_out = len(scores) < 2 or (drop_constant and max(scores) == min(scores))
            if not draw.valid or (depth and left_out):
                continue
            share = 1.0 if weighting == "average" else len(scores)
            total, weight = total + share * (draw.score - np.mean(scores)), weight + share
        expected.append(total / weight if weight else 0.0)
    component = TreeRelative(kind="ancestors", weighting=weighting, drop_constant=drop_constant)
    close(advantages(component(batch), "draw"), expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fuse", ["leaves", "max", "min"])
def test_starts_as_baselines(fuse: str, seed: int) -> None:
    batch = ragged(seed)
    draws = plain(batch)

    def gain(draw: Draw) -> float:
        inherited = next((depth for depth, step in enumerate(draw.steps) if step.own), len(draw.steps))
        return draw.score - 0.5 * float(FUSED[fuse]([other.score for other in below(draws, draw, inherited)]))

    expected = []
    for draw in draws:
        members = [gain(other) for other in draws if other.group == draw.group and other.valid]
        expected.append(gain(draw) - np.mean(members) if draw.valid else 0.0)
    component = TreeRelative(kind="baseline", fuse=fuse, normalisation=Normalisation(scale="none"))
    close(advantages(component(batch), "draw"), expected)


def test_order_of_starts() -> None:
    # Starts: root, the first branch, root, the second branch, in the order of draws.
    batch = branched([0.0, 1.0, 1.0, 0.0])
    values = advantages(TreeRelative(kind="order", radius="none")(batch), "draw")
    # The root has two draws of mean .5; below it, 1 may stay and 0 may not: (2 * .5 + 0) / 3.
    close(values, [1 / 3, 1.0, 1 / 3, 1 / 3])
    soft = advantages(TreeRelative(kind="order", radius="soft", margin=1.0)(batch), "draw")
    assert soft[1] - soft[0] >= 1.0 - 1e-6
    assert soft[3] - soft[0] >= 1.0 - 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_optimal_baseline_of_tokens(seed: int) -> None:
    batch = ragged(seed)
    rng = np.random.default_rng(seed)
    count = len(batch.column("token", "token"))
    batch = batch.with_columns(
        "token", sum_probability_squared=rng.uniform(0.5, 1.0, size=count), ratio=np.full(count, 2.0)
    )
    draws = plain(batch)
    squares = batch.column("sum_probability_squared", "token")

    def weights(draw: Draw) -> list[float]:
        energy = [
            4.0 * (1.0 - 2.0 * math.exp(token.logprob) + float(squares[token.row]))
            for token in draw.tokens
            if token.trained
        ]
        return np.cumsum(energy).tolist()

    expected = np.zeros(count)
    for draw in draws:
        if not draw.valid:
            continue
        members = [weights(other) for other in draws if other.group == draw.group and other.valid]
        scores = [other.score for other in draws if other.group == draw.group and other.valid]
        for place, token in enumerate(token for token in draw.tokens if token.trained):
            there = [(w[place], r) for w, r in zip(members, scores, strict=True) if len(w) > place]
            baseline = sum(w * r for w, r in there) / (sum(w for w, _ in there) + 1e-8) if len(there) > 1 else 0.0
            expected[token.row] = draw.score - baseline
    close(advantages(OptimalTokenBaseline(ratio="ratio")(batch), "token"), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gae(lam=1.5), "lam=1.5"),
        (lambda: Gae(level="step", kl_coefficient=0.1), "kl_coefficient=0.1"),
        (lambda: TreeRelative(trace=2.0), "trace=2.0"),
        (lambda: TreeRelative(margin=-1.0), "margin=-1.0"),
        (lambda: OptimalTokenBaseline(eps=-1.0), "eps=-1.0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
