"""Options of `agentrl train`."""

from __future__ import annotations

import importlib
import inspect
import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from agentrl_core import env
from agentrl_core.env.base import Environment
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.train.warm_start import WARM_START


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


ENVIRONMENTS = ("reasoning_gym", "textworld")
_CHOICES = {
    "engine": ("transformers", "vllm"),
    "instructions": ("auto", "on", "off"),
    "schedule": ("cosine", "constant"),
    "precision": ("fp32", "bf16"),
    "loggers": ("tensorboard", "wandb"),
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a run; each is a flag of `agentrl train` and a key of the table `[train]` in a recipe file."""

    run: str = _option("runs/demo", "directory of the run")
    seed: int = _option(0, "seed of everything")
    engine: str = _option("transformers", "what generates: transformers or vllm")
    model: str = _option("", "directory of a local Hugging Face model; empty: a small one is built and warmed up")
    teacher: str = _option(
        "", "directory of a local Hugging Face model with the same tokenizer, which recipes of distillation learn from"
    )
    device: str = _option("cpu", "where the policy is trained: cpu or cuda")
    env: str = _option(
        "reasoning_gym",
        "tasks: reasoning_gym with a calculator, textworld, or module:function of yours, which returns an environment",
    )
    families: tuple[str, ...] = _option(("chain_sum", "products", "lcm"), "families of reasoning-gym tasks")
    max_turns: int = _option(3, "most actions of an episode of reasoning_gym")
    instructions: str = _option(
        "auto", "whether a system message describes how to call and answer: on, off, or auto (for pretrained models)"
    )
    iterations: int = _option(40, "iterations of reinforcement learning")
    rollouts: int = _option(256, "trajectories per iteration")
    staleness: int = _option(0, "how many iterations are rolled out ahead, while the policy is trained")
    group_size: int = _option(8, "trajectories per task, unless the recipe's rollout has a budget of its own")
    learning_rate: float = _option(
        -1.0,
        "highest learning rate, after a warm-up of 4 iterations; -1: 5e-4 for the small model, 1e-5 for a pretrained "
        "one, 1e-4 for an adapter",
    )
    schedule: str = _option("cosine", "the learning rate after its warm-up: cosine, to a tenth, or constant")
    lora: int = _option(0, "rank of a LoRA adapter on all linear layers, which is trained alone; 0: all weights")
    precision: str = _option("fp32", "what the policy computes in, with fp32 weights: fp32 or bf16")
    recompute: bool = _option(default=False, text="compute layers again in the backward pass, to save memory")
    replay_routes: bool = _option(
        default=False, text="route tokens of a mixture of experts in training to the experts that the engine used"
    )
    gradient_clip: float = _option(0.5, "largest norm of the gradient")
    turn_tokens: int = _option(32, "most tokens of one turn")
    context_tokens: int = _option(256, "most tokens of a trajectory")
    task_pool: int = _option(16_384, "training tasks to choose from; the warm start has seen the first 4096")
    pack_tokens: int = _option(16_384, "most tokens of one forward and backward pass")
    warm_start_steps: int = _option(
        -1,
        "supervised steps before reinforcement learning, on scripts that call the calculator; -1: 480 for the small "
        "model, none for a pretrained one",
    )
    held_out: int = _option(384, "held-out tasks that success is measured on")
    evaluate_every: int = _option(0, "evaluate after every n iterations and keep the best weights; 0: at the end only")
    loggers: tuple[str, ...] = _option((), "where metrics go besides the store: tensorboard, wandb")
    resume: bool = _option(default=False, text="go on with the run in the directory")

    def __post_init__(self) -> None:
        for option in fields(self):
            _check_type(option.name, getattr(self, option.name), option.default)
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                if each not in choices:
                    raise InvalidInputError(f"{name}={each!r}; use {', '.join(choices[:-1])} or {choices[-1]}")
        module, _, function = self.env.partition(":")
        if self.env not in ENVIRONMENTS and not (module and function):
            raise InvalidInputError(
                f"env={self.env!r}; use {', '.join(ENVIRONMENTS)}, or module:function with a function that returns an "
                "environment"
            )
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InvalidInputError(f"device={self.device!r}, but torch sees no GPU here; use cpu")
        for name in ("model", "teacher"):
            folder = getattr(self, name)
            if folder and not (Path(folder) / "config.json").is_file():
                raise InvalidInputError(f"{name}={folder!r} has no config.json; give the directory of a saved model")
        if self.teacher and not self.model:
            raise InvalidInputError(
                f"teacher={self.teacher!r} needs a policy with the same tokenizer; give --model, the policy's directory"
            )
        if self.replay_routes and not self.model:
            raise InvalidInputError(
                "replay_routes=True, but the small model has no experts; give --model, the directory of a mixture of "
                "experts"
            )
        for name in (
            "iterations",
            "rollouts",
            "group_size",
            "turn_tokens",
            "context_tokens",
            "task_pool",
            "pack_tokens",
            "held_out",
            "max_turns",
        ):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name}={getattr(self, name)} is not possible; give at least 1")
        for name in ("staleness", "lora", "evaluate_every"):
            if getattr(self, name) < 0:
                raise InvalidInputError(f"{name}={getattr(self, name)} is not possible; give at least 0")
        if self.warm_start_steps < -1:
            raise InvalidInputError(f"warm_start_steps={self.warm_start_steps} is not possible; give at least 0, or -1")
        if self.warm_start_steps > 0 and self.env != "reasoning_gym":
            raise InvalidInputError(
                f"warm_start_steps={self.warm_start_steps}: env={self.env!r} has no demonstrations; use 0"
            )
        if (self.learning_rate < 0 and self.learning_rate != -1) or self.gradient_clip <= 0:
            if self.gradient_clip <= 0:
                raise InvalidInputError(f"gradient_clip={self.gradient_clip} is not possible; give a number above 0")
            raise InvalidInputError(f"learning_rate={self.learning_rate} is not possible; give at least 0, or -1")

    @property
    def is_pretrained(self) -> bool:
        """Whether `model` was pretrained elsewhere: not the small model that this package builds, even if trained."""
        if not self.model:
            return False
        config = json.loads((Path(self.model) / "config.json").read_text(encoding="utf-8"))
        return not config.get(WARM_START)

    @property
    def is_instructed(self) -> bool:
        """Whether prompts explain the answer format, which a warmed-up model does not need."""
        return self.is_pretrained if self.instructions == "auto" else self.instructions == "on"

    @property
    def supervised_steps(self) -> int:
        """Number of supervised steps before reinforcement learning."""
        if self.warm_start_steps >= 0:
            return self.warm_start_steps
        return 0 if self.model else 480

    @property
    def highest_rate(self) -> float:
        """Highest learning rate of the run: the option, or the default for the kind of model."""
        if self.learning_rate >= 0:
            return self.learning_rate
        if self.lora:
            return 1e-4
        return 1e-5 if self.is_pretrained else 5e-4

    def environment(self) -> Environment:
        """Create the environment that the options name.

        Raises:
            InvalidInputError: a custom module or function does not exist, or does not return an environment.
        """
        if self.env == "textworld":
            return env.TextWorld(seed=self.seed)
        if self.env != "reasoning_gym":
            return _environment_of(self.env)
        return env.ReasoningGym(
            list(self.families),
            seed=self.seed,
            max_turns=self.max_turns,
            held_out=self.held_out,
            instructions=self.is_instructed,
        )


def _environment_of(name: str) -> Environment:
    """Create an environment by a call of the function that is named as `module:function`."""
    module, _, function = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
        inspect.signature(make).bind()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"env={name!r}: {error}; give module:function of a function without arguments that can be imported"
        ) from error
    world = make()
    missing = [method for method in ("tasks", "reset") if not callable(getattr(world, method, None))]
    if missing:
        raise InvalidInputError(
            f"env={name!r} returned {type(world).__name__}, which has no {' and no '.join(missing)}; return an "
            "environment, with tasks(count) and reset(task, seed)"
        )
    environment: Environment = world
    return environment


KEPT = {option.name for option in fields(TrainOptions)} - {"run", "resume", "iterations", "device"}
"""Options that stay fixed when a run resumes."""


def _check_type(name: str, value: object, default: object) -> None:
    """Require that an option, which may come from a file, has the type of its default."""
    if isinstance(default, tuple):
        fits = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    elif isinstance(default, float):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    else:
        fits = type(value) is type(default)
    if not fits:
        kinds = {tuple: "a list of strings", float: "a finite number", str: "a text", bool: "a boolean"}
        expected = kinds.get(type(default), "a whole number")
        raise InvalidInputError(f"{name}={value!r} is not possible; give {expected}")
