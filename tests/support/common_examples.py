"""Worked examples that many paper files share: group advantages, unscored rollouts, tool tokens, clip ranges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Tokens, Train
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore
from agentrl_core.select import DynamicSampling


def plain_reward(recipe: Recipe) -> Recipe:
    """Score each rollout with its reward, without shaping."""
    return recipe.replace(reward=OutcomeScore())


def given_advantages(recipe: Recipe, **options: Any) -> Recipe:
    """Keep only the policy loss: the reward of a rollout is its advantage, and a batch is one optimizer step.

    Args:
        recipe: the recipe.
        options: replacements for options of its policy loss.
    """
    links = [link.loss if isinstance(link, Train) else link for link in recipe.chain("loss")]
    policy = next(link for link in links if isinstance(link, Policy))
    return recipe.replace(
        reward=OutcomeScore(),
        advantage=GroupRelative(center="none", scale="none"),
        weight=None,
        loss=replace(policy, **options),
        replay=None,
        hooks=None,
        old_logprob="behaviour",
        epochs=1,
        minibatches=1,
    )


def advantages(recipe: Recipe, *groups: Sequence[float], **member: Any) -> list[Value]:
    """Return advantages of groups of one-token rollouts; an unscored rollout has reward `nan` and gets `nan`."""
    members = [
        {"group": f"{place}", "path": "1 | 3", **({} if np.isnan(reward) else {"reward": float(reward)}), **member}
        for place, rewards in enumerate(groups)
        for reward in np.atleast_1d(rewards)
    ]
    tokens = {"reference_logprob": [-1.0] * len(members), "entropy": [0.0] * len(members)}
    values = computed(recipe, ["token.advantage"], members=members, columns={"token": tokens})["token.advantage"]
    unscored = np.array(["reward" not in each for each in members])
    assert not values[unscored].any()
    bounds = np.cumsum([np.size(rewards) for rewards in groups])[:-1]
    return np.split(np.where(unscored, np.nan, values), bounds)


def path_of(mask: Value) -> str:
    """Return a rollout whose tokens with mask 0 come from a tool."""
    words, last = ["1"], None
    for sampled in mask:
        words += [("|" if sampled else "~")] * int(sampled != last) + ["3" if sampled else "9"]
        last = sampled
    return " ".join(words)


def single_tokens(
    recipe: Recipe,
    old: Value,
    new: Value,
    given: Value,
    *,
    outputs: Mapping[str, list[float]] | None = None,
    **columns: Value,
) -> Mapping[str, Value]:
    """Return the loss, and its gradient by log-prob, of one-token rollouts with these advantages and token columns.

    `outputs` are further outputs of the policy, such as `entropy`.
    """
    members = [
        {**member, "logprobs": [float(logprob)]}
        for member, logprob in zip(answers([1] * len(old), given.tolist()), old, strict=True)
    ]
    return computed(
        recipe,
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"reference_logprob": new, **columns}},
        policy={"logprob": new.tolist(), **(outputs or {})},
    )


def one_rollout(recipe: Recipe, old: Value, new: Value, given: Value, own: Value | None = None) -> Mapping[str, Value]:
    """Return the loss, and its gradient by log-prob, of one rollout with an advantage per token.

    Args:
        recipe: result of `given_advantages`; its advantages are replaced.
        old: log-probs when the tokens were sampled.
        new: log-probs now.
        given: advantages.
        own: 0 for tokens of tools, whose other numbers are not used; None: the policy sampled all tokens.
    """
    own = np.ones(len(given)) if own is None else own
    old, new, given = (each[own > 0] for each in (old, new, given))
    return computed(
        recipe.replace(advantage=GroupRelative(column="given", level="token", center="none", scale="none")),
        ["loss", "gradient.logprob"],
        members=[{"path": path_of(own), "reward": 1, "logprobs": old.tolist()}],
        columns={"token": {"given": given.tolist(), "reference_logprob": new.tolist()}},
        policy={"logprob": new.tolist()},
    )


def pairs(
    recipe: Recipe, answers: Sequence[tuple[Sequence[float], Sequence[float]]], scored: int | None = None
) -> Mapping[str, Value]:
    """Return the loss, and its gradient by log-prob, of pairs of answers: chosen and rejected log-ratios per token.

    Tokens of a tool lie between the tokens of an answer.

    Args:
        recipe: a recipe whose loss compares pairs.
        answers: log-ratios to the reference.
        scored: number of pairs with a preference; None: all.
    """
    members = [
        {
            "group": str(place),
            "path": "1 " + " ~ 9 ".join(["| 3"] * len(answer)),
            **({"reward": reward} if scored is None or place < scored else {}),
        }
        for place, pair in enumerate(answers)
        for reward, answer in zip((1, 0), pair, strict=True)
    ]
    away = np.concatenate([answer for pair in answers for answer in pair])
    return computed(
        recipe,
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"reference_logprob": (-1.0 - away).tolist()}},
        policy={"logprob": [-1.0] * len(away)},
    )


def ratios_of_one_token(losses: Recipe, example: Example) -> Found:
    """Return the loss of one token, and minus its derivative by the log-prob, for each ratio `u` and advantage `A`."""
    old = np.full(1, -1.0)
    results = [
        single_tokens(losses, old, old + np.log(ratio), np.array([advantage]))
        for ratio, advantage in zip(example.values["u"], example.values["A"], strict=True)
    ]
    return {
        "loss": np.concatenate([each["loss"] for each in results]),
        "minus_derivative_by_log_pi": -np.concatenate([each["gradient.logprob"] for each in results]),
    }


def live_groups(recipe: Recipe, example: Example) -> Found:
    """Return the groups of rewards `R_a`, `R_b` and `R_c` that dynamic sampling keeps."""
    admit = recipe.admit
    assert isinstance(admit, DynamicSampling)
    groups = [example.values[name] for name in ("R_a", "R_b", "R_c")]
    return {"kept": admit(np.concatenate(groups), np.repeat(np.arange(3), [len(group) for group in groups]))}


def weighted_tokens(logprobs: Value, advantage: Value) -> Tokens:
    """Return tokens of the current policy with these log-probs and advantages, all of weight 1."""
    streams = {
        "weight_kl": np.ones(len(advantage)),
        "advantage_positive": np.maximum(advantage, 0.0),
        "advantage_negative": np.minimum(advantage, 0.0),
    }
    tensors = {name: torch.from_numpy(each) for name, each in streams.items()}
    return Tokens(torch.from_numpy(np.asarray(logprobs)), None, tensors)


class CommonExamples:
    """Register examples of a paper file that many files share.

    Args:
        examples: the examples of the paper file.
        recipe: the recipe whose advantages are compared.
        but: names of examples that the test computes itself, or from which the recipe differs.
        losses: the recipe whose loss is compared; None: `given_advantages(recipe)`.
    """

    def __init__(
        self, examples: PaperExamples, recipe: Recipe, *, but: Collection[str] = (), losses: Recipe | None = None
    ) -> None:
        self._recipe = plain_reward(recipe)
        self._losses = given_advantages(recipe) if losses is None else losses
        adapters: dict[str, Callable[[Example], Found]] = {
            "groups of five and of three": self._groups,
            "groups of five and of three without std": self._groups,
            "one rollout of four has no score (convention)": self._unscored,
            "a group of one": self._alone,
            "two rollouts of two turns with tool tokens": self.tool_tokens,
            "tokens that another policy sampled": self.off_policy,
            "tokens that another policy sampled, with the KL": self.off_policy,
            "the second optimizer step of a batch clips": self.second_step,
        }
        for name in but:
            del adapters[name]
        names = [name for name in adapters if name in examples.all_names]
        for name in names:
            examples.by(name)(adapters[name])

    def _groups(self, example: Example) -> Found:
        values = example.values
        first, second = ("R_a", "R_b") if "R_a" in values else ("R", "S")
        one, other = advantages(self._recipe, values[first], values[second])
        end = next((name[len("advantage_a") :] for name in example.expect if name.startswith("advantage_a")), "")
        return {f"advantage_a{end}": one, f"advantage_b{end}": other}

    def _unscored(self, example: Example) -> Found:
        return {"advantage": advantages(self._recipe, [*example.values["R"], np.nan])[0]}

    def _alone(self, example: Example) -> Found:
        return {"advantage": advantages(self._recipe, np.ravel(example.values["R"]).tolist())[0]}

    def tool_tokens(self, example: Example, losses: Recipe | None = None) -> Found:
        """Compute loss and weights of two rollouts with tokens of tools, by another recipe's loss if one is given."""
        values = example.values
        masks = [values[f"mask_{name}"] for name in "ab"]
        members = [
            {"path": path_of(mask), "reward": reward} for mask, reward in zip(masks, values["A"].tolist(), strict=True)
        ]
        count = int(sum(map(np.sum, masks)))
        result = computed(
            losses or self._losses,
            ["loss", "gradient.logprob"],
            members=members,
            columns={"token": {"reference_logprob": [-1.0] * count}},
        )
        one, other = np.split(result["gradient.logprob"], [int(masks[0].sum())])
        weights = [-one / values["A"][0], -other / values["A"][1]]
        for weight in weights:
            np.testing.assert_allclose(weight, weight[0], rtol=1e-6)
        firsts = {"token_weight_a": weights[0][:1], "token_weight_b": weights[1][:1]}
        if "token_weight" in example.expect:  # one number for all tokens
            np.testing.assert_allclose(*firsts.values(), rtol=1e-6)
            firsts = {"token_weight": weights[0][:1]}
        return {"loss": result["loss"], **firsts}

    def off_policy(self, example: Example, losses: Recipe | None = None) -> Found:
        """Compute the loss of tokens with other log-probs, and the objective of each.

        Another recipe computes the loss if one is given. The loss includes the divergence from `ref` if the example
        gives it; the objectives do not.
        """
        losses = losses or self._losses
        vectors = [example.values[name] for name in ("old", "new", "A")]
        alone = [single_tokens(losses, *(each[[at]] for each in vectors)) for at in range(len(vectors[0]))]
        objective = -np.concatenate([found["loss"] for found in alone])
        reference = {"reference_logprob": example.values["ref"]} if "ref" in example.values else {}
        found = {"loss": single_tokens(losses, *vectors, **reference)["loss"], "objective": objective}
        return {name: value for name, value in found.items() if name in example.expect}

    def second_step(self, example: Example, losses: Recipe | None = None) -> Found:
        """Compute the losses of two optimizer steps of a batch, and which tokens have a gradient at the second.

        Steps are log-probs to compare with those of `old`, or log-ratios; those of the second may be called `d`.
        Another recipe computes the loss if one is given.
        """
        losses, values = losses or self._losses, example.values
        zero = np.zeros(len(values["A"]))
        first, second = (zero, values["d"]) if "d" in values else (values.get("first", zero), values["second"])
        old = values.get("old", zero - 1.0)
        base = 0.0 if "old" in values else old
        moved = single_tokens(losses, old, base + second, values["A"])
        losses_of = {"first": single_tokens(losses, old, base + first, values["A"])["loss"], "second": moved["loss"]}
        result = {f"{name}{end}": loss for name, loss in losses_of.items() for end in ("", "_loss")}
        moves = np.abs(moved["gradient.logprob"]) > 1e-7  # the reference is stored in 32 bits
        result |= {"second_has_gradient": moves, "has_gradient": moves, "loss": moved["loss"]}
        return {name: value for name, value in result.items() if name in example.expect}
