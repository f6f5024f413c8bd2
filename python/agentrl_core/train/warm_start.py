"""Build a small language model that uses a tool poorly, the default start of reinforcement learning.

Nothing is downloaded: the tokenizer is trained on the text of the tasks, the model starts from random weights, and it
learns from scripts played in the real environment. Held-out tasks are never used.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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

Family = Literal["qwen3", "llama"]

_TASKS = 4096
_TRACES_A_STEP = 16
_LEARNING_RATE = 2e-3
_RAMP_STEPS = 20
# Copying digits emerges quickly from correct traces and slowly from a mixture with wrong ones, so the model first
# learns to copy and then to fail.
_CORRECT_ONLY_SHARE = 0.75
_CORRECT = {"correct": 1.0}
_MIXTURE = {"correct": 0.26, "guess": 0.28, "malformed": 0.23, "wrong_digit": 0.23}

_PAD, _END = "<pad>", "<end>"
_SPECIAL_TOKENS = (
    *(_PAD, _END, "<user>", "<assistant>"),
    *("<call>", "</call>", "<result>", "</result>", "<answer>", "</answer>"),
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<end>"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WARM_START = "agentrl_warm_start"
"""Key in the configuration of models built here."""

# Texts that the environment may return besides numbers.
_REPLIES = (
    "syntax error",
    "too long",
    "too large",
    "too deep",
    "division by zero",
    "not an integer",
    "no such tool",
    "no call or answer",
)
_ARITHMETIC = re.compile(r"[0-9]+(?: [-+*] [0-9]+)+")


def warm_start(
    environment: Environment,
    *,
    seed: int,
    steps: int = 480,
    family: Family = "qwen3",
    progress: Callable[[int, float], None] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Train a tiny model (float32, on the CPU) briefly with supervision, and return it with its tokenizer.

    A step minimises, over the action tokens T of 16 traces of training tasks,

        L = -(1 / |T|) sum_{t in T} log p(token_t | tokens before t)

    with AdamW (learning rate 2e-3: linear ramp over 20 steps, cosine to a quarter, then linear to 0). The first 75 % of
    the steps use correct traces (call the tool with the problem, answer with its result). The others use a mixture: 26
    % correct, 28 % answers guessed without the tool, 23 % calls that do not parse, 23 % calls with one wrong digit.

    Args:
        environment: its tasks must be of the domains chain_sum, products or lcm.
        seed: seed of the weights and of the traces.
        steps: number of steps; 0 keeps the random weights.
        family: architecture, "qwen3" or "llama".
        progress: called after each step with the number of steps done and the loss.

    Returns:
        The model in evaluation mode, and a tokenizer with a chat template.

    Raises:
        InvalidInputError: steps is negative, or the family is unknown.
        UnsupportedError: a task has another domain.
    """
    if steps < 0:
        raise InvalidInputError(f"warm_start: steps is {steps}; give 0 or more")
    model, tokenizer = build(environment, seed=seed, family=family)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    traces = _TraceWriter(environment, Chat(tokenizer), random.Random(seed))  # noqa: S311 -- no secret
    for step in range(steps):
        mixture = _CORRECT if step < _CORRECT_ONLY_SHARE * steps else _MIXTURE
        written = [traces.write(mixture) for _ in range(_TRACES_A_STEP)]
        loss = _imitate(model, optimizer, written, _LEARNING_RATE * _schedule(step, steps))
        if progress is not None:
            progress(step + 1, loss)
    return model, tokenizer


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
    """Show a pretrained model how the tool is used: train it with supervision on correct traces, in place.

    Each step minimises the loss of `warm_start` on 16 traces of training tasks, with AdamW at a constant rate after a
    linear ramp over 4 steps. A few steps are enough for a model that does not know the forms of call and answer; more
    of them leave reinforcement learning nothing to do.

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
    traces = _TraceWriter(environment, Chat(tokenizer), random.Random(seed))  # noqa: S311 -- no secret
    for step in range(steps):
        written = [traces.write(_CORRECT) for _ in range(_TRACES_A_STEP)]
        loss = _imitate(model, optimizer, written, learning_rate * min(1.0, (step + 1) / 4), at_once=4)
        if progress is not None:
            progress(step + 1, loss)


def _imitate(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    traces: Sequence[_Trace],
    learning_rate: float,
    *,
    at_once: int = _TRACES_A_STEP,
) -> float:
    """Make one step on traces, of which some at a time are in memory; return the loss before it."""
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


def build(
    environment: Environment, *, seed: int, family: Family = "qwen3"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Build a model of 1.1 million random parameters, and train a tokenizer on the environment's training tasks.

    Hidden size 128, 4 layers, 4 heads of width 32, feed-forward 512, tied embeddings. The tokenizer is a byte-level BPE
    that keeps digits apart and may merge across words: the fixed text of a question is one or two tokens.

    Args:
        environment: source of the text.
        seed: seed of the weights; the tokenizer depends on the environment alone.
        family: architecture, "qwen3" or "llama".

    Raises:
        InvalidInputError: the family is unknown.
        UnsupportedError: a task has a domain other than chain_sum, products and lcm.
    """
    import transformers

    kinds: dict[str, tuple[Any, Any]] = {
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    }
    if family not in kinds:
        raise InvalidInputError(f"warm_start: family is {family!r}; give one of {sorted(kinds)}")
    make_config, make_model = kinds[family]
    tokenizer: Any = _tokenizer(environment)
    config = make_config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=512,
        max_position_embeddings=512,
        # Contexts are short: with the usual base of 10 000 most dimensions hardly turn, and copying comes later.
        rope_parameters={"rope_type": "default", "rope_theta": 30.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    setattr(config, WARM_START, True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = make_model(config)
    model.eval()  # type: ignore[no-untyped-call]
    return model, tokenizer


@dataclass(frozen=True)
class _Trace:
    tokens: NDArray[np.int32]
    is_action: NDArray[np.bool_]


class _TraceWriter:
    """Play scripts in the environment, so that traces have real observations."""

    def __init__(self, environment: Environment, chat: Chat, generator: random.Random) -> None:
        self._environment = environment
        self._chat = chat
        self._random = generator
        self._tasks = environment.tasks(_TASKS)

    def write(self, mixture: dict[str, float]) -> _Trace:
        """Write a trace of a random task and a random kind."""
        task = self._random.choice(self._tasks)
        [kind] = self._random.choices(list(mixture), list(mixture.values()))
        expression = _expression(task)
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
        return _Trace(
            np.concatenate([tokens for tokens, _ in pieces]),
            np.concatenate([np.full(len(tokens), is_action) for tokens, is_action in pieces]),
        )

    def _guess(self, task: Task) -> str:
        """Return a number with as many digits as the right one."""
        right = Calculator(max_digits=40)(_expression(task)).text
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


def _loss(model: PreTrainedModel, traces: Sequence[_Trace]) -> torch.Tensor:
    """Return the summed cross-entropy of the action tokens. Padding is on the right, which causal models ignore."""
    shape = (len(traces), max(len(trace.tokens) for trace in traces))
    ids, is_action = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for row, trace in enumerate(traces):
        ids[row, : len(trace.tokens)] = trace.tokens
        is_action[row, : len(trace.tokens)] = trace.is_action
    tokens, wanted = torch.from_numpy(ids), torch.from_numpy(is_action)[:, 1:]
    hidden = model.base_model(tokens[:, :-1], use_cache=False).last_hidden_state
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return nn.functional.cross_entropy(head(hidden[wanted]), tokens[:, 1:][wanted], reduction="sum")


def _schedule(step: int, steps: int) -> float:
    """Return the learning-rate factor: linear ramp and cosine from 1 to 0.25 for correct traces, then linear to 0."""
    copying = _CORRECT_ONLY_SHARE * steps
    if step < copying:
        return min(1.0, (step + 1) / _RAMP_STEPS) * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * step / copying)))
    return 0.25 * (steps - step) / (steps - copying)


def _expression(task: Task) -> str:
    """Return the calculator's input for a question."""
    if task.domain == "lcm":
        return "lcm(" + task.question.rpartition(":")[2].replace(" ", "") + ")"
    if task.domain in ("chain_sum", "products") and (match := _ARITHMETIC.search(task.question)):
        return match.group().replace(" ", "")
    raise UnsupportedError(
        f"warm_start: task {task.task_id!r} has domain {task.domain!r}, but warm starts support only chain_sum, "
        f"products and lcm; use those families, or give a model (any causal Hugging Face model with a chat template), "
        f"if needed after training with loss.Imitation"
    )


def _tokenizer(environment: Environment) -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tasks = environment.tasks(_TASKS)
    texts = [*(task.question for task in tasks), *(_expression(task) for task in tasks), *_REPLIES]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    make: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerBase = make(tokenizer_object=core, eos_token=_END, pad_token=_PAD)
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer
