"""A step of a small language model (forward, loss, backward) over trees: the tree layout beside sequences and padding.

    python bench/tree_step.py [--family llama] [--width 256] [--layers 4] [--vocabulary 4096] [--runs 3]
                              [--stored RUN ...] [--iterations 0 5 20]

Padding is the model's own forward over right-padded rows with an attention mask, logits of all tokens, in micro-batches
of as many tokens as our packs. Losses and gradients of all three are compared before anything is timed. For each shape
of tree, the table has the number of tokens that each layout computes.

Each RUN is the folder of a stored run, by `agentrl train` on the demo or by `bench/learning.py --stored` on games of
TextWorld. The bench repeats the update of each of the iterations with the run's initial model: as sequences of all
draws, and as the real update, a tree of equal prefixes without draws of zero gradient.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import Bench
from stored import compared
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl_core import Batch, Forest, Recipe, loss, recipes

FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


class GrowingForest:
    """A forest of random tokens that grows trajectory by trajectory."""

    def __init__(self, vocabulary: int) -> None:
        self.forest = Forest()
        self._rng = np.random.default_rng(0)
        self._vocabulary = vocabulary
        self._groups = 0

    def group(self) -> int:
        """Start a new group."""
        self._groups += 1
        self.forest.add_group(self._groups - 1, f"task {self._groups - 1}")
        return self._groups - 1

    def start(self, group: int, member: int, prompt: list[int]) -> int:
        """Start a new trajectory after a prompt."""
        trajectory = self.forest.start(group, member)
        self.forest.append(trajectory, prompt, kind="prompt")
        return trajectory

    def words(self, count: int) -> list[int]:
        """Return random tokens."""
        return self._rng.integers(0, self._vocabulary, count).tolist()

    def turn(self, trajectory: int, observed: int, sampled: int) -> None:
        """Append an observation, then an action."""
        if observed:
            self.forest.append(trajectory, self.words(observed), kind="observation")
        logprobs = -self._rng.uniform(7.0, 9.0, sampled)  # near those of a random model, so that few are clipped
        self.forest.append(trajectory, self.words(sampled), kind="action", logprobs=logprobs)
        self.forest.step(trajectory)

    def finish(self, trajectory: int) -> None:
        """End the trajectory with a random reward."""
        self.forest.finish(trajectory, reward=float(self._rng.normal()))


def apart(grown: GrowingForest) -> None:
    """Return 24 rollouts, each of a task of its own."""
    for _ in range(24):
        trajectory = grown.start(grown.group(), 0, grown.words(192))
        grown.turn(trajectory, 0, 128)
        grown.finish(trajectory)


def prompts(grown: GrowingForest) -> None:
    """Return 4 prompts of 512 tokens with 8 rollouts each."""
    for _ in range(4):
        group, prompt = grown.group(), grown.words(512)
        for member in range(8):
            trajectory = grown.start(group, member, prompt)
            grown.turn(trajectory, 0, 96)
            grown.finish(trajectory)


def forks(grown: GrowingForest) -> None:
    """Return 3 prompts with 4 rollouts of 4 turns each, which fork once before their second and third turn."""
    for _ in range(3):
        group, prompt = grown.group(), grown.words(160)
        for member in range(4):
            running = [grown.start(group, member, prompt)]
            for number in range(4):
                if number in (1, 2):
                    running.append(grown.forest.fork(running[0]))
                for trajectory in running:
                    grown.turn(trajectory, 48 if number else 0, 48)
            for trajectory in running:
                grown.finish(trajectory)


def chain(grown: GrowingForest) -> None:
    """Return one task of 20 turns, with a branch of two turns off each of the first 19."""
    trunk = grown.start(grown.group(), 0, grown.words(192))
    trajectories = [trunk]
    for number in range(20):
        grown.turn(trunk, 40 if number else 0, 24)
        if number < 19:
            branch = grown.forest.fork(trunk)
            for _ in range(2):
                grown.turn(branch, 40, 24)
            trajectories.append(branch)
    for trajectory in trajectories:
        grown.finish(trajectory)


# Each with its target ratio against both.
SHAPES: dict[str, tuple[Callable[[GrowingForest], None], float]] = {
    "no sharing": (apart, 0.8),
    "8 rollouts a prompt": (prompts, 2.5),
    "forks as in ARPO": (forks, 1.4),
    "a deep chain, many branches": (chain, 3.0),
}


def padded_rows(batch: Batch, recipe: Recipe, most: int) -> Iterator[dict[str, Tensor]]:
    """Yield micro-batches of right-padded rows, one per draw, longest first, with at most `most` tokens each."""
    plans = [batch.plan([draw], max_tokens=2**31 - 1)[0] for draw in range(batch.num_draws)]
    # A plan leaves out the last token, which is predicted but never an input.
    paths = [np.append(plan.input_ids, plan.target[-1]) for plan in plans]
    steps, bounds = batch.offsets("step"), batch.offsets("token")
    position = batch.column("position", "token")
    weight = batch.token_weights(np.arange(batch.num_draws), denominator=recipe.losses()[0].loss.denominator)
    columns = {
        "advantage": np.asarray(batch.column("advantage", "token"), np.float32),
        "old_logprob": batch.column("behaviour_logprob", "token"),
        "weight": weight.astype(np.float32),
    }
    order = np.argsort([-len(path) for path in paths], kind="stable")
    while len(order):
        longest = len(paths[order[0]])
        members, order = np.split(order, [max(1, most // longest)])
        rows: dict[str, Tensor] = {"input_ids": torch.zeros(len(members), longest, dtype=torch.int64)}
        rows["attention_mask"] = torch.zeros_like(rows["input_ids"])
        rows |= {name: torch.zeros(len(members), longest) for name in columns}
        for row, draw in enumerate(members):
            rows["input_ids"][row, : len(paths[draw])] = torch.from_numpy(paths[draw])
            rows["attention_mask"][row, : len(paths[draw])] = 1
            span = slice(bounds[steps[draw]], bounds[steps[draw + 1]])
            for name, values in columns.items():
                rows[name][row, position[span]] = torch.from_numpy(values[span])
        yield rows


def padded_loss(model: PreTrainedModel, rows: dict[str, Tensor]) -> Tensor:
    """Return PPO's clipped objective, written out."""
    logits = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits[:, :-1].float()
    logprob = logits.log_softmax(-1).gather(2, rows["input_ids"][:, 1:, None]).squeeze(2)
    weight, advantage = rows["weight"][:, 1:], rows["advantage"][:, 1:]
    trained = weight > 0
    ratio = torch.where(trained, logprob - rows["old_logprob"][:, 1:], 0.0).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -(weight * objective).sum()


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="llama")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--stored", nargs="*", default=[], metavar="RUN")
    parser.add_argument("--iterations", type=int, nargs="+", default=[0, 5, 20])
    options = parser.parse_args()
    config, kind = FAMILIES[options.family]
    torch.manual_seed(0)
    model = kind(
        config(
            vocab_size=options.vocabulary,
            hidden_size=options.width,
            intermediate_size=3 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 32,
            num_key_value_heads=options.width // 64,
            head_dim=32,
            max_position_embeddings=4096,
        )
    )
    recipe = recipes.GRPO.replace(loss=loss.Policy(clip=loss.Clip(0.2, 0.2), aggregate="token_mean"))
    bench = Bench("tree_step")
    counts = {}
    for name in options.shapes:
        shape, goal = SHAPES[name]
        grown = GrowingForest(options.vocabulary)
        shape(grown)
        batch = grown.forest.freeze()
        scores = np.random.default_rng(1).normal(size=batch.num_draws)
        batch = batch.with_columns("draw", score=scores, advantage=scores)
        tokens: dict[str, int] = {}

        def step(layout: str, batch: Batch = batch, tokens: dict[str, int] = tokens) -> list[Tensor]:
            model.zero_grad()
            (update,) = recipe.updates(batch)
            total, tokens[layout] = torch.zeros(()), 0
            for pack in update.pack(max_tokens=options.max_tokens, layout=layout):
                value = update.loss(pack.run(model), pack)
                value.backward()
                total += value.detach()
                tokens[layout] += len(pack.input_ids)
            return [total, *(parameter.grad for parameter in model.parameters())]

        def padded(batch: Batch = batch, tokens: dict[str, int] = tokens) -> list[Tensor]:
            model.zero_grad()
            total, tokens["padded"] = torch.zeros(()), 0
            for rows in padded_rows(batch, recipe, options.max_tokens):
                value = padded_loss(model, rows)
                value.backward()
                total += value.detach()
                tokens["padded"] += rows["input_ids"].numel()
            return [total, *(parameter.grad for parameter in model.parameters())]

        def in_tree() -> list[Tensor]:
            return step("tree")

        def in_sequences() -> list[Tensor]:
            return step("sequence")

        def read(tensors: list[Tensor]) -> np.ndarray:
            # Loss and gradients, in units of the largest entry of each.
            return np.concatenate([(part / part.abs().max()).flatten().numpy() for part in tensors])

        for peer, call in (("sequence layout", in_sequences), ("transformers, padded", padded)):
            bench.against(name, peer, in_tree, call, runs=options.runs, goal=goal, read=read, tolerance=1e-3)
        counts[name] = tokens
        print(f"{'':<44} tokens: tree {tokens['tree']}, sequences {tokens['sequence']}, padded {tokens['padded']}")
    for run in map(Path, options.stored):
        counts |= compared(bench, run, options.iterations, options.runs)
    # Only the run's name: its whole path describes the machine, not the figures.
    bench.write(tokens=counts, **vars(options) | {"stored": [Path(run).name for run in options.stored]})


if __name__ == "__main__":
    main()
