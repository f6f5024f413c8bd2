"""Worked examples of the paper files, computed by the recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import Case, run
from compared import column
from paper_files import FOLDER, Example, Paper
from pools import Story
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import Normalisation
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.a_star_po import LogMeanExp
from agentrl_core.recipes.digirl import ImitatedSteps
from agentrl_core.recipes.prime import LeaveOneOutProcess
from agentrl_core.recipes.rank_grpo import ItemRelative
from agentrl_core.reward import ImplicitProcess

Found = dict[str, Value]
Adapter = Callable[[Example], Found]
ADAPTERS: dict[tuple[str, str], Adapter] = {}


def of(system: str, name: str) -> Callable[[Adapter], Adapter]:
    """Register the function that computes an example by the recipe."""

    def register(adapter: Adapter) -> Adapter:
        ADAPTERS[system, name] = adapter
        return adapter

    return register


def computed(recipe: Recipe, names: Sequence[str], **iteration: Any) -> Mapping[str, Value]:
    """Numbers of one iteration, by the names that the cases of recipes have."""
    case = Case("", recipe, [{**iteration, "expect": dict.fromkeys(names, 0)}], {}, {})
    return run(case, recipe, "sequence", 0)[0]


def answers(lengths: Sequence[int], rewards: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    """One-step members of a group."""
    paths = [f"1 | 3*{length}" for length in lengths]
    return [{"path": path, "reward": reward, **more} for path, reward in zip(paths, rewards, strict=True)]


PRIME = recipes.PRIME.replace(
    reward=(recipes.PRIME.reward[0], ImplicitProcess()),
    advantage=recipes.PRIME.advantage[:-1],
)
"""Without the scale and the whitening, which the paper does not mention."""


def prime_group(d_a: Value, d_b: Value, d_c: Value) -> dict[str, Any]:
    """Three answers whose tokens have these log-ratios of the reward model."""
    ratios = np.concatenate([d_a, d_b, d_c])
    return {
        "members": answers([3, 2, 1], [1, 0, 1]),
        "columns": {
            "token": {"reward_reference_logprob": [-5.0] * 6, "reward_model_logprob": (ratios - 5.0).tolist()},
        },
        "reward_model": {"logprob": (ratios - 5.0).tolist()},
    }


@of("prime", "process rewards and PRM loss of a group of three")
def prime_rewards(example: Example) -> Found:
    group = prime_group(*(example.values[name] for name in ("d_a", "d_b", "d_c")))
    found = computed(PRIME, ["token.process_reward", "loss.reward_model"], **group)
    rewards = found["token.process_reward"]
    return {
        "process_reward_a": rewards[:3],
        "process_reward_b": rewards[3:5],
        "prm_loss": found["loss.reward_model"],
    }


@of("prime", "advantages of that group")
def prime_advantages(example: Example) -> Found:
    group = prime_group(*(example.values[name] / 0.05 for name in ("r_a", "r_b", "r_c")))
    found = computed(PRIME, ["token.advantage"], **group)["token.advantage"]
    return {"advantage_a": found[:3], "advantage_b": found[3:5], "advantage_c": found[5:]}


@of("prime", "the same rewards by the code's leave-one-out")
def prime_scaled(example: Example) -> Found:
    rewards = np.concatenate([example.values[name] for name in ("r_a", "r_b", "r_c")])
    batch = small([(0, [3]), (0, [2]), (0, [1])], draw_score=[1, 0, 1], token_process_reward=rewards)
    found = np.array(column(LeaveOneOutProcess()(batch), level="token"))
    return {"process_a": found[:3], "process_b": found[3:5]}


@of("prime", "the code's scale of process rewards, and whitening")
def prime_code(example: Example) -> Found:
    ratios = np.concatenate([example.values["q_a"], example.values["q_b"]])
    batch = small([(0, [3]), (0, [2])], token_reward_model_logprob=ratios, token_reward_reference_logprob=[0.0] * 5)
    white = small([(0, [3])], draw_score=[1], token_advantage=example.values["A"])
    scores = np.array(column(recipes.PRIME.reward[1](batch), "process_reward", "token"))
    return {"score_a": scores[:3], "whitened": np.array(column(recipes.PRIME.advantage[-1](white), level="token"))}


def ranks(hits: Value, items: Sequence[Sequence[int]], **options: Any) -> Value:
    """Advantages of the tokens of lists with these hits, `[lists, ranks]`."""
    columns = {f"draw_hit.{rank}": of_rank for rank, of_rank in enumerate(np.transpose(hits))}
    columns |= {"draw_score": [1.0] * len(items), "token_item": np.concatenate(items)}
    batch = small([(0, [len(each)]) for each in items], **columns)
    return np.array(column(replace(recipes.RANK_GRPO.advantage, **options)(batch), level="token"))


@of("rank_grpo", "DCG to go of two lists of three")
def rank_rewards(example: Example) -> Found:
    hits = np.array([example.values["hit_a"], example.values["hit_b"]])
    found = ranks(hits, [[1, 2, 3], [1, 2, 3]], normalisation=Normalisation(center="none", scale="none"))
    return {"reward_a": found[:3], "reward_b": found[3:]}


@of("rank_grpo", "advantages of each rank in a group of three")
def rank_advantages(example: Example) -> Found:
    hits = np.transpose([example.values[f"rank{rank}"] for rank in (1, 2, 3)])
    found = ranks(hits, [[1, 2, 3]] * 3, credit="independent").reshape(3, 3)
    return {f"advantage_rank_{rank}": found[:, rank - 1] for rank in (1, 2, 3)}


@of("rank_grpo", "a short list has no tokens for a rank but its 0 counts")
def rank_short(example: Example) -> Found:
    hits = np.transpose([[0.0, 0.0], example.values["rank2"]])
    first = ranks(hits, [[1, 2], [1]], credit="independent")[1]
    second = ranks(hits[::-1], [[1, 2], [1]], credit="independent")[1]
    return {"advantage_rank_2": np.array([first, second])}


@of("rank_grpo", "length shaping")
def rank_lengths(example: Example) -> Found:
    del example
    found = ranks(np.zeros((3, 2)), [[1, 2, 0], [1, 0], [1, 2, 3, 3, 0]])
    return {
        "end_token_a": found[2],
        "end_token_b": found[4],
        "overflow_tokens_c": found[7:9],
        "end_token_c": found[9],
    }


@of("rank_grpo", "ratios of two items and a separator")
def rank_loss(example: Example) -> Found:
    # Hits of 2 and -1 against 0 and 0 are advantages of 1 and -0.5; the other list is one token with a loss of 1.
    advantage = ItemRelative(credit="independent", normalisation=Normalisation(scale="none"))
    logprobs = [*(example.values["d"] - 1.0).tolist(), -1.0]
    found = computed(
        recipes.RANK_GRPO.replace(advantage=advantage),
        ["loss", "gradient.logprob"],
        members=answers([6, 1], [1, 1]),
        columns={
            "draw": {"hit.0": [2, 0], "hit.1": [-1, 0]},
            "token": {"item": [1, 1, 0, 2, 2, 2, 1], "reference_logprob": logprobs},
        },
        policy={"logprob": logprobs},
    )
    assert found["gradient.logprob"][2] == 0.0
    return {"loss_without_kl": 2 * found["loss"] - 1, "ratio_1": -10 * found["gradient.logprob"][:1]}


def regression(log_ratios: Sequence[Value], values: Value, rewards: Value) -> Mapping[str, Value]:
    """Numbers of A*-PO for responses with these log-ratios to the reference."""
    ratios = np.concatenate(log_ratios)
    paths = [f"1 | 3*{len(each)}" for each in log_ratios]
    return computed(
        recipes.A_STAR_PO,
        ["draw.advantage", "loss", "gradient.logprob"],
        members=[{"path": path, "reward": reward} for path, reward in zip(paths, rewards.tolist(), strict=True)],
        columns={
            "draw": {"task_value_star": values.tolist()},
            "token": {"reference_logprob": [-1.0] * len(ratios)},
        },
        policy={"logprob": (ratios - 1.0).tolist()},
    )


@of("a_star_po", "values of three prompts")
def optimal_values(example: Example) -> Found:
    story, tracker = Story(), LogMeanExp()
    rewards = {place: example.values[f"r_{name}"].tolist() for place, name in enumerate("abc")}
    state = tracker.next(tracker.initial_state(), story.visits(0, rewards, survey=True))
    found = tracker.estimate(state, story.candidates([0, 1, 2], 1))
    return {"value_a": found[:1], "value_b": found[1:2], "value_c": found[2:]}


@of("a_star_po", "the loss of two responses")
def regression_loss(example: Example) -> Found:
    log_ratios = [example.values["d_a"], example.values["d_b"]]
    found = regression(log_ratios, example.values["V"], example.values["r"])
    totals = np.array([each.sum() for each in log_ratios])
    return {
        "residual": 0.001 * totals - found["draw.advantage"],
        "loss": found["loss"],
        "gradient_by_logprob_of_each_token": found["gradient.logprob"][[0, -1]],
    }


@of("a_star_po", "no token of a tool enters the sum")
def regression_tools(example: Example) -> Found:
    d, mask = example.values["d"], example.values["mask"] == 1
    found = computed(
        recipes.A_STAR_PO,
        ["loss"],
        members=[{"path": "1 | 3*3", "reward": float(example.values["r"]), "trainable": mask.astype(int).tolist()}],
        columns={
            "draw": {"task_value_star": [float(example.values["V"])]},
            "token": {"reference_logprob": [-1.0] * 3},
        },
        policy={"logprob": (d - 1.0).tolist()},
    )
    return {"loss": found["loss"]}


@of("a_star_po", "two optimizer steps without a clip")
def regression_steps(example: Example) -> Found:
    value, reward = (np.atleast_1d(example.values[name]) for name in ("V", "r"))
    halves = [np.repeat(example.values[name] / 2, 2) for name in ("first", "second")]  # of two tokens
    losses = [regression([each], value, reward)["loss"] for each in halves]
    return {"first_loss": losses[0], "second_loss": losses[1]}


def self_play(rewards: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """Advantages of the solvers and of the proposer of each question."""
    paid = [recipes.SSP.rollout.paid(float(np.mean(each))) for each in rewards]
    members = [
        {"group": name, "path": "1 | 3", "reward": float(reward)}
        for place, each in enumerate(rewards)
        for name, reward in [*((f"solvers {place}", one) for one in each), (f"proposer {place}", paid[place])]
    ]
    found = computed(recipes.SSP, ["draw.advantage"], members=members)["draw.advantage"]
    questions = np.split(found, np.cumsum([len(each) + 1 for each in rewards])[:-1])
    return [each[:-1] for each in questions], [each[-1:] for each in questions]


@of("ssp", "a valid question of five attempts and one of three")
def self_play_rewards(example: Example) -> Found:
    solvers, proposers = self_play([example.values["r_a"], example.values["r_b"]])
    return {"solver_a": solvers[0], "solver_b": solvers[1], "proposer_a": proposers[0], "proposer_b": proposers[1]}


@of("ssp", "an unsolved and a fully solved question")
def self_play_extremes(example: Example) -> Found:
    solvers, proposers = self_play([example.values["r_none"], example.values["r_all"]])
    return {
        "solver_none": solvers[0],
        "proposer_none": proposers[0],
        "solver_all": solvers[1],
        "proposer_all": proposers[1],
    }


@of("ssp", "losses over tokens at ratio one")
def self_play_weights(example: Example) -> Found:
    mask = example.values["mask_solver"].astype(int).tolist()
    found = computed(
        recipes.SSP,
        ["gradient.logprob"],
        members=[
            {"path": "1 | 3*5", "reward": 1.0, "trainable": mask},
            {"path": "1 | 3", "reward": 0.0},
        ],
        columns={"token": {"reference_logprob": [-1.0] * 6}},
        policy={"logprob": [-1.0] * 6},
    )
    return {"solver_weight_of_a_token": -2 * found["gradient.logprob"][:1]}  # of two draws


@of("digirl", "step advantages of a success and of a failure")
def digirl_steps(example: Example) -> Found:
    success, failure = ({"path": "1 | 3 ~ 9 | 4 ~ 9 | 5", "reward": reward} for reward in (1, 0))
    found = computed(
        recipes.DIGIRL.replace(weight=ImitatedSteps(above=1 / 3)),
        ["step.advantage", "step.keep"],
        members=[{**success, "steps": [{"reward": 0}, {"reward": 0}, {"reward": 1}]}, failure],
        columns={"step": {"value": np.concatenate([example.values["V_s"], example.values["V_f"]]).tolist()}},
    )
    advantages, kept = found["step.advantage"], found["step.keep"]
    return {
        "advantage_success": advantages[:3],
        "keep_success": kept[:3],
        "advantage_failure": advantages[3:],
        "keep_failure": kept[3:],
    }


def best_draws(rewards: Value, values: Value) -> Value:
    """Which draws DigiRL keeps, of different tasks."""
    found = computed(
        recipes.DIGIRL.replace(weight=recipes.DIGIRL.weight[1]),
        ["draw.keep"],
        members=[{"group": f"{place}", "path": "1 | 3", "reward": reward} for place, reward in enumerate(rewards)],
        columns={"draw": {"task_advantage": (rewards - values).tolist()}, "step": {"value": [0.5] * len(rewards)}},
    )
    return found["draw.keep"]


@of("digirl", "trajectories by instruction advantage")
def digirl_draws(example: Example) -> Found:
    return {"keep": best_draws(example.values["R"], example.values["V"])}


@of("digirl", "a second iteration: the critic learnt the task, the kept set changes")
def digirl_second(example: Example) -> Found:
    return {f"keep_{at}": best_draws(example.values["R"], example.values[f"V_{at}"]) for at in ("first", "second")}


@of("digirl", "losses of the critics")
def digirl_critics(example: Example) -> Found:
    values, rewards = example.values["V"], example.values["r"]
    found = computed(
        recipes.DIGIRL,
        ["loss.critic"],
        members=[{"group": f"{place}", "path": "1 | 3", "reward": reward} for place, reward in enumerate(rewards)],
        columns={"draw": {"task_advantage": rewards.tolist()}, "step": {"value": values.tolist()}},
        critic={"value": np.log(values / (1 - values)).tolist()},
    )
    return {"critic_loss": found["loss.critic"]}


@of("cory", "shared rewards of three queries")
def cory_rewards(example: Example) -> Found:
    pairs = [(float(example.values[name][pair]), f"{pair}") for name in ("r1", "r2") for pair in range(3)]
    found = computed(
        recipes.CORY,
        ["draw.score"],
        members=[{"path": "1 | 3", "reward": reward, "facts": {"pair": pair}} for reward, pair in pairs],
        columns={"token": {"value": [0.0] * 6, "reference_logprob": [-1.0] * 6}},
    )["draw.score"]
    return {"reward_of_pioneer": found[:3], "reward_of_observer": found[3:]}


@of("cory", "GAE of the observer's tokens")
def cory_advantages(example: Example) -> Found:
    # The price on leaving the reference is 0.04, 0.08 and 0.02 of a shared reward of 1.5.
    kl = np.array([0.1, 0.2, 0.05])
    found = computed(
        recipes.CORY.replace(advantage=recipes.CORY.advantage[0]),
        ["token.advantage", "token.return"],
        members=[{"path": "1 | 3*3", "reward": 1.5, "facts": {"pair": "0"}}],
        columns={"token": {"value": example.values["V"].tolist(), "reference_logprob": (-1.0 - kl).tolist()}},
    )
    return {"advantage_before_whitening": found["token.advantage"], "value_target": found["token.return"]}


@of("rise", "advantages with gamma and lambda of one")
def rise_advantages(example: Example) -> Found:
    old, values = example.values["V_old"].tolist(), example.values["V"].tolist()
    found = computed(
        recipes.RISE.replace(advantage=recipes.RISE.advantage[0]),
        ["token.advantage", "token.return", "loss.critic"],
        members=answers([3], [-0.5]),
        columns={"token": {"value": old, "old_value": old, "reference_logprob": [-1.0] * 3}},
        critic={"value": values},
    )
    return {
        "advantage_before_whitening": found["token.advantage"],
        "value_target": found["token.return"],
        "critic_loss": 2 * found["loss.critic"],  # half of the paper's, as in the code
    }


@of("rise", "whitening runs over both tasks")
def rise_whitening(example: Example) -> Found:
    found = computed(
        recipes.RISE,
        ["token.advantage"],
        members=answers([1, 1, 1], example.values["all"].tolist()),
        columns={"token": {"value": [0.0] * 3, "reference_logprob": [-1.0] * 3}},
    )
    return {"advantage": found["token.advantage"]}


@of("rise", "where the verifications come from")
def rise_quotas(example: Example) -> Found:
    program = replace(recipes.RISE.rollout, verifications=int(example.values["verified"]))
    return {"from_each_group": np.array(program.quotas(int(example.values["groups"])))}


@pytest.mark.parametrize(("system", "name"), sorted(ADAPTERS))
def test_the_recipe_computes_the_example(system: str, name: str) -> None:
    example = next(each for each in Paper.read(FOLDER / f"{system}.toml").examples if each.name == name)
    found = ADAPTERS[system, name](example)
    assert found
    for key, value in found.items():
        np.testing.assert_allclose(np.ravel(value), np.ravel(example.expect[key]), rtol=1e-5, atol=1e-6, err_msg=key)
