"""GRPO and GiGPO learn a game of TextWorld from a weak warm start: success before and after, three seeds.

    python bench/learning.py [--seeds 0 1 2] [--iterations 24] [--games 24] [--level 2] [--turns 5] [--folder DIR]

The games are coin collectors: go through `level - 1` rooms and take the coin; admissible commands are shown. The warm
start imitates random play, so it writes commands but wins by chance alone. Both recipes start from the same weights of
a seed. Success is measured with the seeds of evaluation, on training games and on held-out games, with bootstrap
intervals over games. The bench needs no download and runs on CPUs. Both recipes have the loss of GRPO, without the KL
term of GiGPO.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Bench
from torch import nn

import agentrl_core as arl
from agentrl_core import engine, env, recipes
from agentrl_core.recipe import Recipe

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% else %}<assistant>{{ message['content'] }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SAMPLING = engine.Sampling(max_tokens=8)
Play = list[tuple[str, bool]]
"""Texts of an episode, and a flag for each: whether it is an action."""


def played(world: env.TextWorld, task: env.Task, rng: random.Random) -> Play:
    """Play an episode of random commands."""
    episode = world.reset(task, 0)
    observation = str(episode.observation)
    texts = [(observation, False)]
    while True:
        command = rng.choice(observation.rpartition("Commands: ")[2].split("; "))
        texts.append((command, True))
        outcome = episode.step(command)
        if outcome.observation is None:
            episode.close()
            return texts
        observation = str(outcome.observation)
        texts.append((observation, False))


def made_tokenizer(plays: list[Play]) -> Any:
    """Return a byte-level BPE tokenizer of the texts of some games."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<pad>", "<end>", "<user>", "<assistant>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([text for play in plays for text, _ in play], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")  # noqa: S106
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def warm_start(plays: list[Play], tokenizer: Any, seed: int, steps: int) -> Any:
    """Return a small model that plays at random, trained with cross-entropy on commands of random play."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    chat, rng = engine.Chat(tokenizer), random.Random(seed)  # noqa: S311
    traces = []
    for play in plays:
        pieces = [(chat.prompt(play[0][0]), False)]
        pieces += [(chat.action(text) if action else chat.observation(text), action) for text, action in play[1:]]
        tokens = np.concatenate([piece for piece, _ in pieces])
        traces.append((tokens, np.concatenate([np.full(len(piece), action) for piece, action in pieces])))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20) * (0.05 + 0.95 * (1 - step / steps))
        some = rng.sample(traces, 16)
        width = max(len(tokens) for tokens, _ in some)
        ids = torch.tensor(np.array([np.pad(tokens, (0, width - len(tokens))) for tokens, _ in some])).long()
        is_action = torch.tensor(np.array([np.pad(action, (0, width - len(action))) for _, action in some]))[:, 1:]
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[is_action], ids[:, 1:][is_action])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def measured(collect: arl.Collector, games: int) -> dict[str, list[float]]:
    """Return the success on both splits, each with its interval."""
    scores = {}
    for split in ("train", "held_out"):
        evaluation = collect.evaluate(tasks=games, split=split, samples=8)  # type: ignore[arg-type]
        scores[split] = [evaluation.success, *evaluation.interval()]
    return scores


def learned(
    model: Any, tokenizer: Any, world: env.TextWorld, recipe: Recipe, options: Any, seed: int
) -> dict[str, Any]:
    """Return the success before and after training with one recipe."""
    generate, store = engine.Transformers(model, tokenizer), None
    if options.stored:
        run = Path(options.stored) / f"{recipe.name}-{seed}"
        store = arl.Store.open(run)
        model.save_pretrained(run / "start")
    collect = arl.Collector(
        generate, world, recipe, store=store, seed=seed, task_pool=options.games, sampling=SAMPLING, context_tokens=1000
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    begin, before = time.perf_counter(), measured(collect, options.games)
    success = []
    for iteration in range(options.iterations):
        batch = collect(tasks=8, group_size=8)
        success.append(float(np.mean(batch.column("success", "draw"))))
        batch = recipe.credit(batch)
        updates = recipe.updates(batch, seed=seed + iteration)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(1.0, (iteration + 1) / 4)
        for update in updates:
            for pack in update.pack(max_tokens=16_384):
                update.loss(pack.run(model), pack).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        generate.update_weights(model, version=iteration + 1)
        collect.end_iteration(batch, updates.metrics)
    after = measured(collect, options.games)
    collect.close()
    generate.close()
    if store is not None:
        store.close()
    return {"before": before, "after": after, "success": success, "seconds": time.perf_counter() - begin}


def format_estimate(estimate: list[float]) -> str:
    """Format a share and its interval."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*estimate)


def main() -> None:
    """Train with both recipes and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--games", type=int, default=24)
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of the warm start")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--folder", help="where games are kept")
    parser.add_argument(
        "--stored", metavar="FOLDER", help="where a run for each seed and recipe is kept; none is if not given"
    )
    options = parser.parse_args()
    bench = Bench("learning")
    world = env.TextWorld(
        "coin_collector",
        {"level": options.level},
        show_commands=True,
        max_turns=options.turns,
        held_out=options.games,
        folder=options.folder or tempfile.mkdtemp(),
    )
    rng = random.Random(0)  # noqa: S311
    tasks = world.tasks(options.games)
    plays = [played(world, task, rng) for task in tasks for _ in range(400 // len(tasks))]
    tokenizer = made_tokenizer(plays)
    for seed in options.seeds:
        start = warm_start(plays, tokenizer, seed, options.steps)
        for recipe in (recipes.GRPO, recipes.GIGPO.replace(loss=recipes.GRPO.loss)):
            figures = learned(copy.deepcopy(start), tokenizer, world, recipe, options, seed)
            bench.lines.append({"seed": seed, "recipe": recipe.name, **figures})
            for split in ("train", "held_out"):
                before, after = format_estimate(figures["before"][split]), format_estimate(figures["after"][split])
                print(f"seed {seed} {recipe.name:<6} {split:<8} before {before} after {after}", flush=True)
            assert not math.isnan(figures["success"][-1])
            bench.write()
    world.close()


if __name__ == "__main__":
    main()
