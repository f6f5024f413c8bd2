"""Recipes in verl's registries: the credit of one as an advantage estimator, its loss as a policy loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core import recipes
from agentrl_core._util.lazy_torch import torch
from agentrl_core.component.state import Stateful
from agentrl_core.exceptions import MissingDependencyError, RecipeError
from agentrl_core.integrations import padded
from agentrl_core.integrations.sequences import Sequences
from agentrl_core.rollout import Independent

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.recipe import Recipe

PREFIX = "agentrl_"
"""Prefix of agentrl_core's names in verl's registries, which no name of verl has."""

DERIVED = ("reward", "group_id", "trajectory_id", "task_id", "iteration", "step", "turn")
"""The facts that can be derived from verl's arguments of an estimator: rewards, mask and group of each row."""

_CREDIT = ("reward", "advantage", "weight")

rows_of_trainer: ContextVar[dict[str, Any] | None] = ContextVar("rows_of_trainer", default=None)
"""Further columns of the credited rows, set by `integrations.verl.trainer`; None: only the arguments are known."""


@contextmanager
def extra_columns(**rows: Any) -> Iterator[None]:
    """Pass further columns of the rows to estimators that are called inside the block."""
    token = rows_of_trainer.set(rows)
    try:
        yield
    finally:
        rows_of_trainer.reset(token)


def needs_of_trainer(recipe: Recipe) -> tuple[str, ...]:
    """Return the inputs of a recipe's credit that verl does not pass to an estimator, but the trainer does.

    Raises:
        RecipeError: verl cannot compute the credit of this recipe at all.
    """
    name = f"recipe {recipe.name!r}"
    if recipe.advantage is None:
        raise RecipeError(
            f"{name} has no advantage phase and cannot be an estimator of verl; give it one: "
            "recipe.replace(advantage=advantage.GroupRelative()), or another component of agentrl_core.advantage"
        )
    if type(recipe.rollout) is not Independent:
        raise RecipeError(
            f"{name}: its credit is for rollouts of {recipe.rollout.title()}, but verl samples independent rollouts; "
            "use a Collector"
        )
    made_columns: set[str] = set()
    needed: dict[str, None] = {}
    for link in (link for phase in _CREDIT for link in recipe.chain(phase)):
        if isinstance(link, Stateful) or list(link.changing()):
            reason = "keeps a state across iterations" if isinstance(link, Stateful) else "changes with the iteration"
            raise RecipeError(
                f"{name}: {link.title()} {reason}, but verl does not report iterations to an estimator; use a Collector"
            )
        needed |= dict.fromkeys(column.name for column in link.needs if column.name not in (*DERIVED, *made_columns))
        made_columns |= {column.name for column in link.makes}
    if "keep" in made_columns:
        raise RecipeError(
            f"{name} takes tokens out of the loss (column 'keep'), but an estimator of verl cannot change the mask; "
            "use a recipe without that column"
        )
    return tuple(needed)


def register(recipe: Recipe, name: str | None = None) -> tuple[str, ...]:
    """Register a recipe in verl, as far as it fits: its credit as an advantage estimator, its loss as a policy loss.

    Both get the name `agentrl_<recipe>`. The estimator runs phases reward, advantage and weight, on rows with rewards,
    masks and groups; a recipe that reads more is registered too, but needs the trainer (`integrations.verl.trainer`).
    The loss is the recipe's, with the denominator of verl's `loss_agg_mode` and the importance weights of its rollout
    correction. verl still adds its own terms (`use_kl_loss`, `entropy_coeff`); a loss with its own reference is
    refused. Selection, rollouts, admission and replay are those of verl.

    Call it in a module named in `VERL_USE_EXTERNAL_MODULES`, so that driver and workers register the recipe.

    Args:
        recipe: the recipe.
        name: the name without the prefix `agentrl_`; None: the recipe's name.

    Returns:
        The registered parts: `advantage`, `loss` or both.

    Raises:
        RecipeError: neither part can be used in verl; the message has the reason.
        MissingDependencyError: verl is not installed.

    Example:
        With `algorithm.adv_estimator=agentrl_mine` in verl's configuration:

        >>> from agentrl_core import advantage, recipes
        >>> from agentrl_core.integrations import verl
        >>> verl.register(recipes.GRPO.replace(name="mine", advantage=advantage.GroupRelative(scale="none")))
        ('advantage', 'loss')
    """
    core = _core_algos()
    key = PREFIX + (recipe.name if name is None else name)
    registered: list[str] = []
    refused: list[str] = []
    try:
        needs_of_trainer(recipe)
        core.ADV_ESTIMATOR_REGISTRY[key] = Estimator(recipe)
        registered.append("advantage")
    except RecipeError as error:
        refused.append(str(error))
    try:
        core.POLICY_LOSS_REGISTRY[key] = PolicyLoss(recipe)
        registered.append("loss")
    except RecipeError as error:
        refused.append(str(error))
    if not registered:
        raise RecipeError(". ".join(refused))
    return tuple(registered)


def register_all() -> dict[str, tuple[str, ...]]:
    """Register all recipes of `recipes.names()` in verl, as far as possible.

    Returns:
        The registered parts of each registered recipe, by its name.

    Raises:
        MissingDependencyError: verl is not installed.
    """
    registered = {}
    for name in recipes.names():
        try:
            registered[name] = register(recipes.get(name))
        except RecipeError:
            continue
    return registered


class Estimator:
    """Advantage estimator for verl that computes the credit of a recipe.

    Args:
        recipe: the recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.needs = needs_of_trainer(recipe)

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,  # noqa: ARG002 - verl gives it by name
        index: Sequence[Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns (equal), `[B, T]` each, 0 at tokens that were not sampled."""
        known = rows_of_trainer.get()
        if known is None and self.needs:
            raise RecipeError(
                f"recipe {self.recipe.name!r} needs {', '.join(map(repr, self.needs))}, which verl does not pass to "
                "an estimator; use the trainer: VERL_USE_EXTERNAL_MODULES=agentrl_core.integrations.verl.trainer and "
                "trainer.v1.trainer_mode=agentrl_sync"
            )
        if "success" in self.needs and known is not None and known.get("success") is None:
            raise RecipeError(
                f"recipe {self.recipe.name!r} needs to know which rollouts succeeded; let the reward function "
                "return 'success' or 'acc' in its reward_extra_info"
            )
        if index is None:
            raise RecipeError(
                f"index is None, but recipe {self.recipe.name!r} compares the rows of a group; give index=, the group "
                "(uid) of each row"
            )
        rewards = token_level_rewards.detach().cpu().double().numpy()
        mask = response_mask.detach().cpu().numpy() != 0
        # After the last token that was sampled or has a reward, there is padding.
        ends = ((mask | (rewards != 0)) * np.arange(1, mask.shape[1] + 1)).max(axis=1, initial=0)
        lengths = ends.tolist()
        rows: dict[str, Any] = {
            "prompts": [[0]] * len(lengths),
            "responses": [np.zeros(end, np.int32) for end in lengths],
            **({} if known is None else known),
        }
        for name in ("responses", "logprobs"):
            if rows.get(name) is not None:
                rows[name] = [values[:end] for values, end in zip(rows[name], lengths, strict=True)]
        rows["columns"] = {
            name: [values[:end] for values, end in zip(column, lengths, strict=True)]
            for name, column in rows.get("columns", {}).items()
        }
        sequences = Sequences(
            masks=[values[:end] for values, end in zip(mask, lengths, strict=True)],
            rewards=[values[:end] for values, end in zip(rewards, lengths, strict=True)],
            groups=list(index),
            **rows,
        )
        batch = self.recipe.credit(sequences.batch)
        credit = np.asarray(batch.column("advantage", "token"), np.float64)
        if batch.has("weight", "token"):
            credit = credit * batch.column("weight", "token")
        table = np.zeros(mask.shape)
        for row, values in enumerate(sequences.spread(credit)):
            table[row, : len(values)] = values
        advantages = torch.from_numpy(table).to(token_level_rewards)
        return advantages, advantages


class PolicyLoss:
    """Policy loss for verl that computes the loss of a recipe.

    Args:
        recipe: the recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.loss = padded.row_loss(recipe)

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss and its metrics, which are named `actor/<recipe>/...`."""
        value, metrics = padded.evaluate(
            self.loss,
            log_prob,
            response_mask,
            weight=_weights(response_mask, log_prob, loss_agg_mode, config),
            advantage=advantages,
            columns={"old_logprob": old_log_prob},
            factor=rollout_is_weights,
        )
        return value, {f"actor/{self.recipe.name}/{name}": number for name, number in metrics.items()}


def _weights(mask: Tensor, like: Tensor, mode: str, config: Any) -> Tensor:
    """Return the weight of each token in verl's aggregation, as its derivatives, since it is linear."""
    with torch.enable_grad():
        terms = torch.zeros_like(like, requires_grad=True)
        info = {} if config is None else dict(config.global_batch_info)
        total = _core_algos().agg_loss(loss_mat=terms, loss_mask=mask, loss_agg_mode=mode, **info)
        return torch.autograd.grad(total, terms)[0]


def _core_algos() -> Any:
    try:
        from verl.trainer.ppo import core_algos
    except ImportError as error:
        raise MissingDependencyError(
            f"verl cannot be imported ({error}); install verl 0.9 by its own instructions"
        ) from error
    return core_algos
