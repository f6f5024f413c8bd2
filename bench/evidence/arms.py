"""Arms: a recipe and the settings of its run. Every recipe is an arm of its own name; the others are named here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentrl_core import Batch, recipes
from agentrl_core.component import BatchComponent, Rows, Where, draw
from agentrl_core.loss import Clip, Policy, TopTokens
from agentrl_core.recipe import Recipe
from agentrl_core.replay import GroupFailed, Inject, Memory
from agentrl_core.reward import OutcomeScore
from agentrl_core.select import DynamicSampling

GRPO = recipes.GRPO
SHORT = 0.25
"""Budget of the A/A comparisons and of the arm with few tokens."""
SLOW = 0.25
"""Learning rate of the arms `<name>@slow`."""
FEW_TASKS = 64
"""Training tasks of arms whose mechanism needs to see a task again."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Attributes:
        recipe: the recipe that is trained.
        tokens: budget of generated tokens, as a factor of the world's.
        learning_rate: of AdamW, after four iterations of warm-up.
        rollouts: trajectories of an iteration, unless the recipe's program decides.
        group_size: trajectories of a task, unless the recipe's program decides.
        staleness: iterations that rollouts may run ahead.
        tasks: training tasks to choose from; None: those of the world.
        reseed: added to the seed of sampling, not to that of the warm start: other samples from the same start.
    """

    recipe: Recipe
    tokens: float = 1.0
    learning_rate: float = 3e-4
    rollouts: int = 64
    group_size: int = 8
    staleness: int = 0
    tasks: int | None = None
    reseed: int = 0


@dataclass(frozen=True)
class Negated(BatchComponent):
    """Invert the score: success is paid like failure."""

    phase: ClassVar[str] = "reward"
    needs: ClassVar = (draw("score"),)
    makes: ClassVar = (draw("score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with negative scores."""
        rows = Rows(batch, "draw")
        return rows.write(score=-rows.values("score"))


def arm(name: str) -> Arm:
    """Return the arm of a name: one of `ARMS`, the recipe of that name as it is, or one of both with another seed.

    `grpo@short+3` is `grpo` with a quarter of the tokens and the third other seed of sampling; `grpo@slow` has a
    quarter of the learning rate.

    Raises:
        KeyError: there is no such arm or recipe.
    """
    if "+" in name:
        base, _, number = name.rpartition("+")
        return replace(arm(base), reseed=10_000 * int(number))
    if name.endswith("@short"):
        return replace(arm(name.removesuffix("@short")), tokens=SHORT)
    if name.endswith("@slow"):
        usual = arm(name.removesuffix("@slow"))
        return replace(usual, learning_rate=SLOW * usual.learning_rate)
    if name in ARMS:
        return ARMS[name]()
    if name not in recipes.names():
        raise KeyError(f"arm: {name!r} is neither in arms.ARMS nor a recipe; write one of these")
    recipe = recipes.get(name)
    if any("pair" in training.loss.streams for training in recipe.losses()):
        return Arm(recipe, group_size=2)
    return Arm(recipe)


def _grpo(**phases: Any) -> Recipe:
    """Return GRPO with other components."""
    return GRPO.replace(**phases)


_SEVERAL_STEPS: dict[str, Any] = {"minibatches": 8}
"""Optimizer steps of a batch in arms whose mechanism acts on ratios."""

ARMS: dict[str, Callable[[], Arm]] = {
    "grpo_negated": lambda: Arm(_grpo(reward=(OutcomeScore(), Negated()))),
    "grpo_8_steps": lambda: Arm(_grpo(**_SEVERAL_STEPS)),
    "grpo_clip_higher": lambda: Arm(_grpo(loss=Policy(clip=Clip(0.2, 0.28)), **_SEVERAL_STEPS)),
    "grpo_forking_tokens": lambda: Arm(
        _grpo(loss=Policy(clip=Clip(0.2, 0.2), mask=TopTokens("entropy", 0.2, denominator="kept")), **_SEVERAL_STEPS)
    ),
    "grpo_dynamic_sampling": lambda: Arm(_grpo(admit=DynamicSampling())),
    "gigpo_credit": lambda: Arm(_grpo(advantage=recipes.GIGPO.advantage)),
    "tree_rollouts": lambda: Arm(_grpo(rollout=recipes.TREE_GRPO.rollout, advantage=recipes.TREE_GRPO.advantage)),
    "grpo_group_16": lambda: Arm(_grpo(), group_size=16),
    "arpo_rollouts": lambda: Arm(_grpo(rollout=recipes.ARPO.rollout)),
    "grpo_few_tasks": lambda: Arm(_grpo(), tasks=FEW_TASKS),
    "mopps_selection": lambda: Arm(_grpo(select=recipes.MOPPS.select), tasks=FEW_TASKS),
    "inject_successes": lambda: Arm(
        _grpo(
            replay=Inject(
                Memory(per_task=8, where=Where(column="reward", above=0.1)),
                GroupFailed("reward", best_at_most=None, mean_below=0.2, std_below=0.05),
                replaces="first",
                old_logprob="recomputed",
            )
        ),
        tasks=FEW_TASKS,
    ),
    "stale_grpo": lambda: Arm(_grpo(**_SEVERAL_STEPS), staleness=4),
    "stale_areal_loss": lambda: Arm(_grpo(loss=recipes.AREAL.loss, **_SEVERAL_STEPS), staleness=4),
    "shorter_better_reward": lambda: Arm(_grpo(reward=recipes.SHORTER_BETTER.reward)),
}
