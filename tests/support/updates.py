"""Rollouts with branches, and the losses of an update on them, packed and all at once."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.component import Where
from agentrl_core.model.pack import Pack, PackOutput
from agentrl_core.update.optimizer_step import Update

BINS = 5


@functools.cache
def grow(seed: int) -> Batch:
    """Return four groups of four draws (in pairs, one draw unpaired), with forks and rewritten contexts."""
    rng = np.random.default_rng(seed)
    forest = Forest(seed=seed)

    def words(count: int) -> list[int]:
        return rng.integers(0, 37, size=count).tolist()

    def act(trajectory: int) -> None:
        count = int(rng.integers(1, 5))
        trainable = (rng.random(count) < 0.8).astype(np.uint8)
        forest.append(
            trajectory,
            words(count),
            kind="action",
            logprobs=-rng.uniform(0.5, 4.0, count),
            trainable=trainable,
            temperature=float(rng.uniform(0.7, 1.3)),
        )
        forest.step(trajectory)

    for group in range(4):
        forest.add_group(group, f"task {group}")
        prompt = words(3)
        for member in range(3):
            running = [forest.start(group, member)]
            forest.append(running[0], prompt, kind="prompt")
            act(running[0])
            if member == 0:
                running.append(forest.fork(running[0]))
            for trajectory in running:
                for turn in range(int(rng.integers(1, 4))):
                    if turn == 1:
                        forest.rewrite(trajectory, prompt + words(2))  # another sequence of the same draw
                    else:
                        forest.append(trajectory, words(2), kind="observation")
                    act(trajectory)
                rewarded = (group, member) != (2, 1)
                forest.finish(trajectory, reward=float(rng.normal()) if rewarded else None)
    return forest.freeze()


def columns(batch: Batch, seed: int, *, per: str) -> Batch:
    """Return every column that any loss reads, at random."""
    rng = np.random.default_rng(seed)
    count, draws = len(batch.column("token", "token")), batch.num_draws
    batch = batch.with_columns("draw", score=batch.column("reward", "draw"), pair=np.arange(draws) // 2)
    batch = batch.with_columns("draw", demonstrated=np.arange(draws) % 2, proposer=np.arange(draws) % 2)
    token_columns = {
        name: -rng.uniform(0.5, 4.0, count)
        for name in (
            "reference_logprob",
            "recomputed_logprob",
            "proximal_logprob",
            "other_logprob",
            "old_mean_logprob",
            "reward_reference_logprob",
        )
    }
    names = ("imitation", "dependency", "clip_low", "clip_high", "entropy_history", "return", "old_value")
    token_columns |= {name: rng.uniform(0.1, 0.9, count) for name in names}
    token_columns["expert"] = rng.integers(0, 2, count)
    token_columns["item"] = rng.integers(0, 4, count)
    token_columns["stratum"] = rng.choice([3, 7, 12], count)
    token_columns["teacher_logprob"] = -np.random.default_rng(seed + 2).uniform(0.5, 4.0, count)
    more = np.random.default_rng(seed + 3)
    token_columns |= {name: more.uniform(0.1, 0.9, count) for name in ("trust", "slope", "worse_members")}
    token_columns["gain"] = np.random.default_rng(seed + 1).normal(size=count)
    if per == "draw":
        sign = np.where(np.arange(draws) % 2, -1.0, 1.0)  # of a pair one is preferred
        return batch.with_columns("draw", advantage=sign * rng.uniform(0.2, 1.0, draws)).with_columns(
            "token", **token_columns
        )
    return batch.with_columns("token", advantage=rng.normal(size=count), **token_columns)


def of_groups(policy: loss.Loss) -> bool:
    """Return whether it compares the answers of a pair or group, whose tokens then have one advantage."""
    return not {"pair", "group"}.isdisjoint(policy.streams)


@dataclass
class Rollouts:
    """A batch with columns, and given model outputs for each of its tokens."""

    batch: Batch
    leaves: dict[str, Tensor]

    @classmethod
    def random(cls, policy: loss.Loss, seed: int) -> Rollouts:
        batch = columns(grow(seed), seed, per="draw" if of_groups(policy) else "token")
        make = torch.Generator().manual_seed(seed)
        old = torch.from_numpy(batch.column("behaviour_logprob", "token")).double()

        def noise(*shape: int) -> Tensor:
            return torch.randn(len(old), *shape, generator=make, dtype=torch.float64)

        leaves = {
            "logprob": (old + 0.3 * noise()).clamp(max=-0.01),
            "entropy": noise().abs(),
            "value": noise(2) if "soft_minimum" in repr(policy) else noise(),
            "value_logits": noise(BINS),
            "top_p_entropy": noise().abs(),
            "mean_logprob": noise() - 5.0,
            "full_kl": noise().abs(),
            "soft_value": noise(),
            "max_logprob": -noise().abs(),
            "divergence": noise().abs(),
        }
        return cls(batch, {name: leaf.requires_grad_() for name, leaf in leaves.items()})

    def update(self, policy: loss.Loss) -> Update:
        (update,) = recipes.GRPO.replace(loss=policy).updates(self.batch)
        return update

    def outputs(self, rows: Tensor) -> PackOutput:
        return PackOutput(**{name: leaf[rows] for name, leaf in self.leaves.items()})

    def gradients(self, value: Tensor) -> tuple[Tensor, list[Tensor]]:
        leaves = list(self.leaves.values())
        return value.detach(), list(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True))

    def by_packs(self, update: Update, packs: list[Pack]) -> tuple[Tensor, list[Tensor]]:
        return self.gradients(sum(update.loss(self.outputs(pack.token), pack) for pack in packs))

    def at_once(self, policy: loss.Loss, where: Where | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of all rows together, in loops over draws, steps and tokens; `where`: of these draws only."""
        if isinstance(policy, loss.Sum) and policy.own_rows:
            (first, of_first), (second, of_second) = (self.at_once(*term) for term in policy.terms)
            left, right = policy.first_coefficient, policy.second_coefficient
            both = zip(of_first, of_second, strict=True)
            return left * first + right * second, [left * one + right * other for one, other in both]
        batch, rows = self.batch, []
        steps, tokens = batch.offsets("step"), batch.offsets("token")
        valid = np.isfinite(batch.column("score", "draw")) | (not policy.needs_score)
        if where is not None:
            valid = valid & where.holds(batch)
        pair = batch.column("pair", "draw")
        for draw in range(batch.num_draws):
            partners = [other for other in range(batch.num_draws) if pair[other] == pair[draw] and valid[other]]
            if not valid[draw] or ("pair" in policy.streams and len(partners) < 2):
                continue
            for step in range(steps[draw], steps[draw + 1]):
                rows += [(draw, step, token) for token in range(tokens[step], tokens[step + 1])]
        trainable = batch.column("trainable", "token")
        rows = [row for row in rows if trainable[row[2]]]
        if not rows:
            return torch.zeros((), dtype=torch.float64), [torch.zeros_like(leaf) for leaf in self.leaves.values()]
        if policy.of_steps:
            rows = list({step: (draw, step, token) for draw, step, token in reversed(rows)}.values())[::-1]
        of_draw, of_turn = Counter(draw for draw, _, _ in rows), Counter(step for _, step, _ in rows)
        turns = Counter(draw for draw, _ in {(draw, step) for draw, step, _ in rows})
        weights = []
        for draw, step, _ in rows:
            each = {"token_mean": 1 / len(rows), "sequence_mean": 1 / of_draw[draw] / len(of_draw)}
            each["turn_mean"] = 1 / of_turn[step] / turns[draw] / len(of_draw)
            each["step_mean"] = 1 / of_turn[step] / len(of_turn)
            each["sequence_mean_sum"] = 1 / of_draw[draw] / (policy.denominator_constant or 1.0)
            each["constant"] = 1 / (policy.denominator_constant or 1.0) / len(of_draw)
            weights.append(each[policy.denominator])
        chosen = np.array([token for _, _, token in rows])
        if policy.normaliser is not None:  # the mean by that column, if it would otherwise be one by tokens
            column = np.asarray(batch.column(policy.normaliser, "token"), np.float64)[chosen]
            weights = np.array(weights) * sum(weights) / (np.array(weights) @ column)
        group = batch.keys("group_id", "draw")
        if policy.equal_groups:
            of_group = Counter[int]()
            for (draw, _, _), each_weight in zip(rows, weights, strict=True):
                of_group[group[draw]] += each_weight
            mean = sum(weights) / len(of_group)
            weights = [each * mean / of_group[group[row[0]]] for row, each in zip(rows, weights, strict=True)]
        weight = torch.tensor(weights, dtype=torch.float32)
        streams: dict[str, Tensor] = {}
        numbers = {
            "sequence": [draw for draw, _, _ in rows],
            "step": [step for _, step, _ in rows],
            "pair": [pair[draw] for draw, _, _ in rows],
            "group": [group[draw] for draw, _, _ in rows],
            "stratum": batch.column("stratum", "token")[chosen].tolist(),
        }
        for name in (*policy.streams, "weight_kl"):
            if name in numbers:
                distinct = sorted(set(numbers[name]))
                streams[name] = torch.tensor([distinct.index(number) for number in numbers[name]])
            elif name in ("weight_kl", "weight_entropy"):
                streams[name] = weight
            elif name in ("advantage_positive", "advantage_negative"):
                advantage = torch.from_numpy(np.asarray(batch.column("advantage", "token"))[chosen]).float()
                sign = {"min": 0.0} if name == "advantage_positive" else {"max": 0.0}
                streams[name] = weight * advantage.clamp(**sign)
            else:
                column = "behaviour_logprob" if name == "old_logprob" else name
                streams[name] = torch.from_numpy(np.asarray(batch.column(column, "token"))[chosen]).float()
        outputs = self.outputs(torch.from_numpy(chosen))
        return self.gradients(policy.evaluate(loss.Tokens(outputs.logprob, outputs.entropy, streams, outputs))[0])


def largest_unit(batch: Batch, update: Update, unit: str) -> int:
    """Return the tokens of the largest unit, or of the longest sequence if it may lie in several packs."""
    # Tokens after the last one that counts are not run.
    (plan,) = batch.plan(update.draws, max_tokens=10**6, trained=update.prepared.weights(update.draws)[0] > 0)
    lengths = np.diff(plan.cu_seqlens)
    if unit in ("token", "step"):
        return int(lengths.max())
    names = {"pair": batch.column("pair", "draw"), "group": batch.keys("group_id", "draw")}
    names["update"] = np.zeros(batch.num_draws, np.int64)
    of_draw = names.get(unit, np.arange(batch.num_draws))
    return int(np.bincount(of_draw[plan.draw], weights=lengths).max())


def close(actual: tuple[Tensor, list[Tensor]], right: tuple[Tensor, list[Tensor]], tolerance: float) -> bool:
    pairs = [(actual[0], right[0]), *zip(actual[1], right[1], strict=True)]
    return all(torch.allclose(one, other, rtol=tolerance, atol=tolerance * other.abs().max()) for one, other in pairs)
