"""CJ-GRPO: a decode step is a step whose context is the state that it decodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from hand_made import tiny_model
from riddles import TOKENIZER, Riddles, check_resumes, solve, step
from torch import Tensor

from agentrl_core import recipes
from agentrl_core.engine import Request, Sampling
from agentrl_core.env import StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Branch, Rollout

MASK = "_"
WORDS = {3: ("ab", "cd", "ef"), 2: ("abc", "def")}
"""The letters that are unmasked at each decode step, by number of steps."""


class Masked(Riddles):
    """An episode on a text of six letters; each action unmasks some, and the reward comes when no mask is left."""

    def reset(self, task: Task, seed: int) -> Any:
        del task
        return Masked.Episode(seed)

    class Episode:
        observation = MASK * 6

        def __init__(self, seed: int) -> None:
            self.seed, self.text = seed, ""

        def step(self, action: str) -> StepResult:
            self.text += action
            if len(self.text) == 6:
                right = self.seed % 2 == 1
                return StepResult(reward=float(right), terminated=True, success=right)
            return StepResult(self.text + MASK * (6 - len(self.text)))

        def state_key(self) -> bytes:
            return self.text.encode()


@dataclass(frozen=True)
class Unmasking(Rollout):
    """A program that decodes step by step: the context of each step is only the state."""

    async def branch(self, branch: Branch) -> None:
        turn = await branch.turn()
        while not branch.over:
            await branch.rewrite([turn.observation or ""])
            turn = await branch.turn()


def decoder(context: str, request: Request) -> str:
    """Unmask two letters of a state or three, depending on its first steps."""
    state = context.split("<|im_start|>user\n", 1)[1].split("<|im_end|>", 1)[0]
    unmasked = len(state.rstrip(MASK))
    words = WORDS[3 if unmasked in {2, 4} or (unmasked == 0 and request.seed % 3) else 2]
    return {sum(map(len, words[:place])): word for place, word in enumerate(words)}[unmasked]


RECIPE: Recipe = recipes.CJ_GRPO.replace(rollout=Unmasking())


def test_the_context_of_each_decode_step_is_its_state() -> None:
    run = solve(RECIPE, decoder, world=Masked(), tasks=2, group_size=4)
    contexts, offsets = run.batch.contexts(), run.batch.offsets("step")
    texts = [TOKENIZER.decode(contexts.tokens[first:last]) for first, last in pairwise(contexts.offsets)]
    lengths = np.diff(offsets).tolist()
    assert set(lengths) == {2, 3}, "some decode in two steps, some in three"
    expected = []
    for length in lengths:
        unmasked = ""
        for word in WORDS[length]:
            state = unmasked + MASK * (6 - len(unmasked))
            expected.append(f"<|im_start|>user\n{state}<|im_end|>\n<|im_start|>assistant\n{word}<|im_end|>")
            unmasked += word
    assert [text[text.index("<|im_start|>user") :].rstrip("\n") for text in texts] == expected
    numbers = pl.DataFrame(run.batch.steps)["step"].to_list()
    assert sorted(numbers) == sorted(place for length in lengths for place in range(length)), "it has its number"


def test_ratios_use_the_state_of_their_step_and_steps_have_equal_weights() -> None:
    """Compare with a plain forward pass of each state and its unmasked letters."""
    run = solve(RECIPE, decoder, world=Masked(), tasks=2, group_size=4, sampling=Sampling(max_tokens=8))
    policy = tiny_model("llama", torch.float64, vocab_size=len(TOKENIZER), max_position_embeddings=256)
    batch = RECIPE.credit(run.batch)
    advantage = batch.column("advantage", "draw").astype(np.float64)
    assert (advantage != 0).any(), "the groups are mixed"
    offsets, places = batch.offsets("step"), batch.offsets("token")
    old = batch.column("behaviour_logprob", "token").astype(np.float64)
    reference = old - 0.5
    batch = batch.with_columns("token", reference_logprob=reference)
    tokens = batch.column("token", "token")
    expected: Tensor = torch.zeros((), dtype=torch.float64)
    draws = len(offsets) - 1
    for draw in range(draws):
        steps = range(offsets[draw], offsets[draw + 1])
        states = [MASK * 6, *WORDS[len(steps)]]
        unmasked = ""
        for place, step_ in enumerate(steps):
            state = unmasked + MASK * (6 - len(unmasked))
            prompt = TOKENIZER.apply_chat_template(
                [{"role": "user", "content": state}], add_generation_prompt=True, return_dict=False
            )
            span = slice(places[step_], places[step_ + 1])
            action = tokens[span].tolist()
            logits = policy(torch.tensor([[*prompt, *action]])).logits[0, len(prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits, -1).gather(-1, torch.tensor(action)[:, None])[:, 0]
            ratio = (logprobs - torch.from_numpy(old[span])).exp()
            a = float(advantage[draw])
            clipped = torch.minimum(ratio * a, ratio.clamp(0.5, 1.5) * a)
            away = torch.from_numpy(reference[span]) - logprobs
            expected = expected + (0.04 * (away.exp() - away - 1) - clipped).mean() / len(steps) / draws
            unmasked += states[place + 1]
    [update] = RECIPE.replace(epochs=1).updates(batch)
    packs = list(update.pack(max_tokens=4096))
    total = sum(update.loss(pack.run(policy), pack) for pack in packs)
    torch.testing.assert_close(torch.as_tensor(total), expected, rtol=1e-5, atol=1e-7)


def test_the_recipe_resumes_and_takes_optimizer_steps() -> None:
    assert check_resumes(RECIPE, decoder, world=Masked()) > 1
    assert step(RECIPE, solve(RECIPE, decoder, world=Masked(), tasks=2, group_size=4).batch) == 12
