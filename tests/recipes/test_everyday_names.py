"""Compare whole everyday recipes with verl and TRL: rollouts in, advantages, loss and gradient out.

verl adds 1e-8 to the token count of a sequence; its dual clip, which papers do not have, is set out of reach. Its ReMax
has neither the discount nor the divergence of the paper's scripts, and is compared in tests/operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from case_files import Case, agree, run
from torch import Tensor

from agentrl_core import recipes
from agentrl_core.advantage import Discounted, GroupRelative

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
verl_config = pytest.importorskip("verl.workers.config")

SIZES = (4, 3, 5)
FAR = 1e9

IN_VERL = {
    "reinforce_plus_plus": {
        "advantage": (
            Discounted(column="", outcome="score", level="token", kl_coefficient=0.001),
            GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
        )
    },
    "reinforce_plus_plus_baseline": {
        "advantage": (
            GroupRelative(scale="none"),
            GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
        )
    },
}
"""Parts of recipes that follow their authors' code, with verl's options."""


class Rollouts:
    """Answers of one turn, in groups of several sizes, as padded rows and as members of a case."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.uid = np.repeat(np.arange(len(SIZES)), SIZES)
        rows = len(self.uid)
        lengths = rng.integers(1, 7, rows)
        mask = np.arange(lengths.max()) < lengths[:, None]
        self.mask = torch.from_numpy(mask).double()
        self.scores = torch.from_numpy(rng.integers(0, 9, rows) / 8)
        self.scores[: SIZES[0]] = torch.tensor([1.0, 0.0, 0.5, 0.25])  # at least one group differs
        self.lengths = torch.from_numpy(lengths)
        self.pay(self.scores)

        def logprobs(around: Tensor, scale: float) -> Tensor:
            return (around + torch.from_numpy(rng.normal(scale=scale, size=mask.shape))).clamp(max=-0.02)

        self.old = logprobs(torch.full_like(self.mask, -2.0), 0.5)
        self.new, self.reference = logprobs(self.old, 0.3), logprobs(self.old, 0.3)
        self.values = torch.from_numpy(rng.normal(size=mask.shape))
        self.new_values = self.values + torch.from_numpy(rng.normal(scale=0.4, size=mask.shape))

    def pay(self, scores: Tensor) -> None:
        """Set the rewards: each answer's score at its last token."""
        self.scores = scores
        self.rewards = torch.zeros_like(self.mask).scatter(1, self.lengths[:, None] - 1, scores[:, None])

    def tokens(self, values: Tensor) -> list[float]:
        """Return a value of each sampled token, row after row."""
        return [float(value) for value in values[self.mask > 0]]

    def case(self, name: str, expected: Mapping[str, Any], **options: Any) -> Case:
        """Return the content of a case file."""
        lengths = self.lengths.tolist()
        members = [
            {
                "group": f"group {uid}",
                "path": f"{uid + 1} | {' '.join(str(3 + token) for token in range(length))}",
                "reward": float(score),
                "logprobs": [float(value) for value in old[:length]],
            }
            for uid, length, score, old in zip(self.uid.tolist(), lengths, self.scores, self.old, strict=True)
        ]
        columns = {"reference_logprob": self.tokens(self.reference), "value": self.tokens(self.values)}
        columns["old_value"] = columns["value"]
        iteration = {
            "members": members,
            "columns": {"token": columns},
            "policy": {"logprob": self.tokens(self.new)},
            **options,
            "expect": expected,
        }
        recipe = recipes.get(name).replace(epochs=1, minibatches=1, **IN_VERL.get(name, {}))
        return Case(name, recipe, [iteration], {}, {})

    def advantage(self, estimator: str, rewards: Tensor | None = None, **options: Any) -> Tensor:
        """Return the result of an estimator of verl."""
        token_rewards = self.rewards if rewards is None else rewards
        result: Tensor = core_algos.get_adv_estimator_fn(estimator)(
            token_rewards.clone(), response_mask=self.mask, **options
        )[0]
        return result

    def loss(self, name: str, advantage: Tensor, aggregate: str, low: float, high: float) -> Callable[[Tensor], Tensor]:
        """Return the loss of one of verl's policy losses."""
        config = verl_config.ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=low,
            clip_ratio_low=low,
            clip_ratio_high=high,
            clip_ratio_c=FAR,
        )
        config.global_batch_info["loss_scale_factor"] = 1
        policy = core_algos.get_policy_loss_fn(name)
        return lambda logprob: policy(self.old, logprob, advantage, self.mask, loss_agg_mode=aggregate, config=config)[
            0
        ]


def grpo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("grpo", index=rollouts.uid)
    return advantage, rollouts.loss("vanilla", advantage, "token-mean", 0.2, 0.2)


def dr_grpo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("grpo", index=rollouts.uid, norm_adv_by_std_in_grpo=False)
    return advantage, rollouts.loss("vanilla", advantage, "seq-mean-token-sum", 0.2, 0.2)


def dapo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("grpo", index=rollouts.uid)
    return advantage, rollouts.loss("vanilla", advantage, "token-mean", 0.2, 0.28)


def rloo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("rloo", index=rollouts.uid)
    return advantage, rollouts.loss("gpg", advantage, "seq-mean-token-sum", 0.2, 0.2)  # - A log p, as the paper has it


def reinforce_plus_plus(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    price = 0.001 * core_algos.kl_penalty(rollouts.old, rollouts.reference, "k1") * rollouts.mask
    advantage = rollouts.advantage("reinforce_plus_plus", rollouts.rewards - price, config=SimpleNamespace(gamma=1.0))
    return advantage, rollouts.loss("vanilla", advantage, "token-mean", 0.2, 0.2)


def reinforce_plus_plus_baseline(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("reinforce_plus_plus_baseline", index=rollouts.uid)
    policy = rollouts.loss("vanilla", advantage, "token-mean", 0.2, 0.2)

    def with_divergence(logprob: Tensor) -> Tensor:
        divergence = core_algos.kl_penalty(logprob, rollouts.reference, "k2")
        return policy(logprob) + 1e-5 * core_algos.agg_loss(divergence, rollouts.mask, "token-mean")

    return advantage, with_divergence


def gspo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("grpo", index=rollouts.uid)
    return advantage, rollouts.loss("gspo", advantage, "seq-mean-token-mean", 3e-4, 4e-4)


def cispo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("grpo", index=rollouts.uid)
    return advantage, rollouts.loss("cispo", advantage, "token-mean", 1.0, 0.2)


def sapo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("grpo", index=rollouts.uid)
    return advantage, rollouts.loss("sapo", advantage, "seq-mean-token-mean", 0.2, 0.2)


def gpg(rollouts: Rollouts) -> tuple[None, Callable[[Tensor], Tensor]]:
    # verl drops answers without a reward, the paper those without an advantage: here they are the same. The factor is
    # part of verl's advantage, and a weight of ours.
    scores = torch.tensor([1.0, 0.125, 0.5, 0.25, 0.25, 0.75, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    rollouts.pay(scores)
    advantage = rollouts.advantage("gpg", index=rollouts.uid)
    return None, rollouts.loss("gpg", advantage, "token-mean", 0.2, 0.2)


def opo(rollouts: Rollouts) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    advantage = rollouts.advantage("opo", index=rollouts.uid)
    return advantage, rollouts.loss("gpg", advantage, "seq-mean-token-sum", 0.2, 0.2)  # - A log p


THEIRS: dict[str, Callable[[Rollouts], tuple[Tensor | None, Callable[[Tensor], Tensor]]]] = {
    each.__name__: each
    for each in (
        grpo,
        dr_grpo,
        dapo,
        rloo,
        reinforce_plus_plus,
        reinforce_plus_plus_baseline,
        gspo,
        gpg,
        cispo,
        sapo,
        opo,
    )
}


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", THEIRS)
def test_advantages_and_losses_of_a_recipe_equal_those_of_verl(name: str, seed: int, layout: Any) -> None:
    rollouts = Rollouts(seed)
    advantage, objective = THEIRS[name](rollouts)
    logprob = rollouts.new.clone().requires_grad_()
    value = objective(logprob)
    (gradient,) = torch.autograd.grad(value, logprob)
    assert gradient.abs().max() > 1e-4
    expected: dict[str, Any] = {"loss": value.item(), "gradient": {"logprob": rollouts.tokens(gradient)}}
    if advantage is not None:
        expected["token"] = {"advantage": rollouts.tokens(advantage)}
    case = rollouts.case(name, expected)
    assert agree(run(case, case.recipe, layout, seed), case.expected) == ""


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize("seed", [1, 2])
def test_ppo_and_its_critic_equal_those_of_verl(seed: int, layout: Any) -> None:
    rollouts = Rollouts(seed)
    advantage, target = core_algos.get_adv_estimator_fn("gae")(
        rollouts.rewards, values=rollouts.values, response_mask=rollouts.mask, gamma=1.0, lam=0.95
    )
    logprob, value = rollouts.new.clone().requires_grad_(), rollouts.new_values.clone().requires_grad_()
    policy = rollouts.loss("vanilla", advantage, "token-mean", 0.2, 0.2)(logprob)
    critic, _ = core_algos.compute_value_loss(value, target, rollouts.values, rollouts.mask, 0.2)
    expected = {
        "token": {"advantage": rollouts.tokens(advantage)},
        "loss": {"policy": policy.item(), "critic": critic.item()},
        "gradient": {
            "logprob": rollouts.tokens(torch.autograd.grad(policy, logprob)[0]),
            "critic": {"value": rollouts.tokens(torch.autograd.grad(critic, value)[0])},
        },
    }
    case = rollouts.case("ppo", expected, critic={"value": rollouts.tokens(rollouts.new_values)})
    assert agree(run(case, case.recipe, layout, seed), case.expected) == ""


class Everything(SimpleNamespace):
    """The trainer of TRL, with the parts that its loss uses: one process, and only the standard loss."""

    def __init__(self) -> None:
        alone = SimpleNamespace(device="cpu", gather=lambda each: each, gather_for_metrics=lambda each: each)
        super().__init__(
            model=SimpleNamespace(training=True),
            accelerator=alone,
            aux_loss_enabled=False,
            ld_alpha=None,
            precompute_ref_logps=True,
            f_divergence_type="reverse_kl",
            loss_types=["sigmoid"],
            loss_weights=[1.0],
            label_smoothing=0.0,
            beta=0.1,
            use_weighting=False,
            _total_train_tokens=0,
            _tp_size=1,
            _metrics={"train": defaultdict(list)},
        )


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_loss_of_dpo_equals_that_of_trl(seed: int, layout: Any) -> None:
    trainer = pytest.importorskip("trl.trainer.dpo_trainer", reason="TRL is installed by `make test`").DPOTrainer
    rng = np.random.default_rng(seed)
    pairs, length = 3, 5
    logprob, reference = (torch.from_numpy(-rng.exponential(size=(2 * pairs, length))) for _ in range(2))
    prompt = torch.zeros(2 * pairs, 1, dtype=torch.int64)  # one token, without a score
    completions = torch.arange(3, 3 + length).expand(2 * pairs, length)
    totals = reference.sum(1)
    inputs = {
        "input_ids": torch.cat([prompt, completions], 1),
        "attention_mask": torch.ones(2 * pairs, 1 + length),
        "completion_mask": torch.cat([prompt, torch.ones_like(completions)], 1),
        "ref_chosen_logps": totals[:pairs],
        "ref_rejected_logps": totals[pairs:],
    }
    now = logprob.clone().requires_grad_()
    nothing = torch.zeros_like(logprob)
    answers = SimpleNamespace(log_probs=now, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())
    value = trainer._compute_loss(Everything(), lambda **_: answers, inputs, return_outputs=False)
    (gradient,) = torch.autograd.grad(value, now)
    rows = [row for pair in range(pairs) for row in (pair, pairs + pair)]  # chosen and rejected side by side
    members = [
        {"group": f"pair {place // 2}", "path": f"{1 + place // 2} | 3 4 5 6 7", "reward": 1 - place % 2}
        for place in range(2 * pairs)
    ]
    iteration = {
        "members": members,
        "columns": {"token": {"reference_logprob": reference[rows].flatten().tolist()}},
        "policy": {"logprob": logprob[rows].flatten().tolist()},
        "expect": {"loss": value.item(), "gradient": {"logprob": gradient[rows].flatten().tolist()}},
    }
    case = Case("dpo", recipes.DPO, [iteration], {}, {})
    assert agree(run(case, case.recipe, layout, seed), case.expected) == ""
