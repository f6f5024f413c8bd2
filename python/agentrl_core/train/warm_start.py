"""Build a small language model that uses a tool poorly, the default start of reinforcement learning.

Nothing is downloaded: the tokenizer is trained on the text of the tasks, the model starts from random weights, and it
learns from scripts played in the real environment. Held-out tasks are never used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from agentrl_core.engine.chat import Chat
from agentrl_core.env.base import Environment
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.train.calculator_demonstrations import (
    CORRECT,
    TASKS,
    TRACES_A_STEP,
    TraceWriter,
    expression_of,
    imitation_step,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Family = Literal["qwen3", "llama"]

_LEARNING_RATE = 2e-3
_RAMP_STEPS = 20
# Copying digits emerges quickly from correct traces and slowly from a mixture with wrong ones, so the model first
# learns to copy and then to fail.
_CORRECT_ONLY_SHARE = 0.75
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
    traces = TraceWriter(environment, Chat(tokenizer), random.Random(seed))  # noqa: S311 -- no secret
    for step in range(steps):
        mixture = CORRECT if step < _CORRECT_ONLY_SHARE * steps else _MIXTURE
        examples = [traces.write(mixture) for _ in range(TRACES_A_STEP)]
        loss = imitation_step(model, optimizer, examples, _LEARNING_RATE * _schedule(step, steps))
        if progress is not None:
            progress(step + 1, loss)
    return model, tokenizer


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
        # Contexts are short: with the usual base of 10 000 most dimensions hardly rotate, which delays copying.
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


def _schedule(step: int, steps: int) -> float:
    """Return the learning-rate factor: linear ramp and cosine from 1 to 0.25 for correct traces, then linear to 0."""
    copying = _CORRECT_ONLY_SHARE * steps
    if step < copying:
        return min(1.0, (step + 1) / _RAMP_STEPS) * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * step / copying)))
    return 0.25 * (steps - step) / (steps - copying)


def _tokenizer(environment: Environment) -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tasks = environment.tasks(TASKS)
    texts = [*(task.question for task in tasks), *(expression_of(task) for task in tasks), *_REPLIES]
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
