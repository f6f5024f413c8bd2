"""A run in the form that training stores."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import agentrl_core as arl
from agentrl_core import engine, recipes, warm_start
from agentrl_core.engine.scripted import ScriptedReply

ITERATIONS = ("arpo", "gigpo", "grpo")
"""Recipes of the iterations; the computed columns differ."""


def record(run: Path, world: object) -> None:
    """Write a run of three iterations, with a tokenizer beside it."""
    _, tokenizer = warm_start.build(world, seed=0)
    answers = {task.question: task.payload.entry["answer"] for task in world.tasks(64)}
    chat = engine.Chat(tokenizer)
    prompts = {tuple(chat.prompt(question).tolist()): answer for question, answer in answers.items()}
    num_replies = 0

    def reply(tokens):
        """An episode that starts with a tool call, sometimes wrong, and ends with an answer, sometimes wrong."""
        nonlocal num_replies
        num_replies += 1
        chance = hashlib.sha256(bytes(str(num_replies), "ascii")).digest()[0]
        answer = prompts.get(tuple(tokens.tolist()))
        if answer is not None:
            text = "<call>6*7</call>" if chance < 200 else "<call>6**</call>"
        else:
            solved = next(
                solution for prompt, solution in prompts.items() if tuple(tokens[: len(prompt)].tolist()) == prompt
            )
            text = f"<answer>{solved if chance < 128 else 0}</answer>"
        count = len(chat.action(text))
        rng = np.random.default_rng(num_replies)
        return ScriptedReply(text, logprobs=(-rng.random(count)).tolist(), entropies=rng.random(count).tolist())

    generate = engine.Scripted(tokenizer, reply)
    limits = {"sampling": engine.Sampling(max_tokens=24), "context_tokens": 160, "task_pool": 64}
    with arl.Store.open(run) as store:
        for name in ITERATIONS:
            recipe = recipes.get(name)
            collect = arl.Collector(generate, world, recipe, store=store, allow_changes=True, **limits)
            batch = recipe.credit(collect(tasks=3, group_size=6))
            batch = batch.with_columns("node_token", value=np.arange(batch.offsets("node_token")[-1]) / 8)
            collect.end_iteration(batch, {})
    tokenizer.save_pretrained(run / "start")
