"""Demonstrations of calculator calls, and supervised steps on them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from agentrl_core.engine.chat import Chat
from agentrl_core.env.base import Environment, Task
from agentrl_core.env.calculator import Calculator
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TASKS = 4096
"""Number of training tasks that demonstrations use."""
TRACES_A_STEP = 16
CORRECT = {"correct": 1.0}
_ARITHMETIC = re.compile(r"[0-9]+(?: [-+*] [0-9]+)+")


@dataclass(frozen=True)
class Trace:
    """Tokens of a demonstration, with a mask of the tokens that the model has to generate."""

    tokens: NDArray[np.int32]
    is_action: NDArray[np.bool_]


class TraceWriter:
    """Plays scripts in the environment, so that traces have real observations."""

    def __init__(self, environment: Environment, chat: Chat, generator: random.Random) -> None:
        self._environment = environment
        self._chat = chat
        self._random = generator
        self._tasks = environment.tasks(TASKS)

    def write(self, mixture: dict[str, float]) -> Trace:
        """Return a trace of a random task, of a kind drawn from `mixture`."""
        task = self._random.choice(self._tasks)
        [kind] = self._random.choices(list(mixture), list(mixture.values()))
        expression = expression_of(task)
        if kind == "malformed":
            expression = self._broken(expression)
        elif kind == "wrong_digit":
            expression = self._with_wrong_digit(expression)
        episode: Any = self._environment.reset(task, seed=0)
        pieces = [(self._chat.prompt(episode.observation), False)]
        answer = self._guess(task)
        if kind != "guess":
            call = f"<call>{expression}</call>"
            observation = episode.step(call).observation
            reply = observation if isinstance(observation, str) else ""
            pieces += [(self._chat.action(call), True), (self._chat.observation(reply, self._chat.end_of_turn), False)]
            result = reply.removeprefix("<result>").removesuffix("</result>")
            if re.fullmatch(r"-?[0-9]+", result):
                answer = result
        pieces.append((self._chat.action(f"<answer>{answer}</answer>"), True))
        return Trace(
            np.concatenate([tokens for tokens, _ in pieces]),
            np.concatenate([np.full(len(tokens), is_action) for tokens, is_action in pieces]),
        )

    def _guess(self, task: Task) -> str:
        """Return a random number with as many digits as the task's solution."""
        right = Calculator(max_digits=40)(expression_of(task)).text
        digits = len(right.lstrip("-"))
        number = self._random.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        return f"-{number}" if right.startswith("-") else str(number)

    def _broken(self, expression: str) -> str:
        """Return the expression with an extra character, so that it does not parse."""
        places = [index for index, character in enumerate(expression) if not character.isdigit()]
        place = self._random.choice([*places, len(expression)])
        return expression[:place] + self._random.choice(["(", ")", "+*"]) + expression[place:]

    def _with_wrong_digit(self, expression: str) -> str:
        place = self._random.choice([index for index, character in enumerate(expression) if character.isdigit()])
        digit = self._random.choice([digit for digit in "0123456789" if digit != expression[place]])
        return expression[:place] + digit + expression[place + 1 :]


def imitate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    environment: Environment,
    *,
    seed: int,
    steps: int,
    learning_rate: float = 2e-5,
    progress: Callable[[int, float], None] | None = None,
) -> None:
    """Teach a pretrained model to use the calculator: supervised training on correct traces, in place.

    Each step minimises the loss of `warm_start` on 16 traces of training tasks, with AdamW at a constant rate after a
    linear ramp over 4 steps. A few steps are enough for a model to learn the format of call and answer; more steps
    leave nothing for reinforcement learning to improve.

    Args:
        model: a causal model; all its parameters that require gradients are trained.
        tokenizer: its tokenizer, with a chat template.
        environment: its tasks must be of the domains chain_sum, products or lcm.
        seed: seed of the traces.
        steps: number of steps, at least 0.
        learning_rate: the highest learning rate.
        progress: called after each step with the number of steps done and the loss.

    Raises:
        InvalidInputError: steps is negative.
        UnsupportedError: a task has another domain.
    """
    if steps < 0:
        raise InvalidInputError(f"imitate: steps is {steps}; give 0 or more")
    weights = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.0)
    traces = TraceWriter(environment, Chat(tokenizer), random.Random(seed))  # noqa: S311 -- no secret
    for step in range(steps):
        examples = [traces.write(CORRECT) for _ in range(TRACES_A_STEP)]
        loss = imitation_step(model, optimizer, examples, learning_rate * min(1.0, (step + 1) / 4), at_once=4)
        if progress is not None:
            progress(step + 1, loss)


def imitation_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    traces: Sequence[Trace],
    learning_rate: float,
    *,
    at_once: int = TRACES_A_STEP,
) -> float:
    """Make one optimizer step on traces, `at_once` traces per forward pass; return the loss before the step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    model.train()
    count, total = sum(int(trace.is_action.sum()) for trace in traces), 0.0
    for begin in range(0, len(traces), at_once):
        loss = _loss(model, traces[begin : begin + at_once]) / count
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    model.eval()  # type: ignore[no-untyped-call]
    return total


def _loss(model: PreTrainedModel, traces: Sequence[Trace]) -> torch.Tensor:
    """Return the summed cross-entropy of the action tokens. Padding is on the right, which causal models ignore."""
    shape = (len(traces), max(len(trace.tokens) for trace in traces))
    ids, is_action = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for row, trace in enumerate(traces):
        ids[row, : len(trace.tokens)] = trace.tokens
        is_action[row, : len(trace.tokens)] = trace.is_action
    tokens, is_target = torch.from_numpy(ids), torch.from_numpy(is_action)[:, 1:]
    hidden = model.base_model(tokens[:, :-1], use_cache=False).last_hidden_state
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return nn.functional.cross_entropy(head(hidden[is_target]), tokens[:, 1:][is_target], reduction="sum")


def expression_of(task: Task) -> str:
    """Return the calculator's input for a question."""
    if task.domain == "lcm":
        return "lcm(" + task.question.rpartition(":")[2].replace(" ", "") + ")"
    is_sum = task.domain in ("chain_sum", "products")
    if is_sum and (match := _ARITHMETIC.search(task.question)):
        return match.group().replace(" ", "")
    problem = f"domain {task.domain!r}, but warm starts support only chain_sum, products and lcm"
    if is_sum:
        problem = f"question {task.question!r:.80}, but warm starts need an expression of integers with +, - or *"
    raise UnsupportedError(
        f"warm_start: task {task.task_id!r} has {problem}; use such tasks of env.ReasoningGym, or a pretrained causal "
        "Hugging Face model with a chat template (if it never succeeds, train it with loss.Imitation first)"
    )
