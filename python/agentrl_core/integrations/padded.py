"""Losses on the padded tensors of trainers: the inputs with which verl, TRL and slime call a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.lazy_torch import torch
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.loss import Train

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.loss import Loss
    from agentrl_core.recipe import Recipe

_KNOWN = ("advantage_positive", "advantage_negative", "weight_kl", "old_logprob", "sequence", "step")
_COMPARED = ("ratio", "clip_fraction", "approximate_kl")  # metrics of tokens that have an old log-prob
_WHOLE = ("token", "step", "trajectory")  # a row of a micro batch is one trajectory, and always whole


def row_loss(recipe: Recipe, *, columns: tuple[str, ...] = (), entropy: bool = False) -> Loss:
    """Return the loss of a recipe; refuse a recipe whose loss needs more than the rows of one micro batch.

    Args:
        recipe: the recipe.
        columns: further token columns that the trainer has, such as `reference_logprob`.
        entropy: whether the trainer has the entropies of the tokens.

    Raises:
        RecipeError: the recipe has several losses or none, a loss that changes with the iteration, or one that needs
            more than the rows: another model output, a group, a pair or all rows of an update at once.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.integrations.padded import row_loss
        >>> row_loss(recipes.GSPO).unit
        'trajectory'
        >>> row_loss(recipes.DPO)
        Traceback (most recent call last):
            ...
        agentrl_core.exceptions.RecipeError: recipe 'dpo': its loss needs 'pair', ...
    """
    name = f"recipe {recipe.name!r}"
    links: tuple[Any, ...] = recipe.chain("loss")
    if len(links) != 1:
        raise RecipeError(f"{name} has {len(links)} losses, but a trainer minimises one; use recipe.replace(loss=...)")
    if isinstance(links[0], Train) and (links[0].model, links[0].stage, links[0].where) != ("policy", "update", None):
        raise RecipeError(
            f"{name} has loss.Train(model={links[0].model!r}, stage={links[0].stage!r}, where={links[0].where!r}), but "
            "the trainer trains the policy on all rows; use collect.Collector"
        )
    loss: Loss = links[0].loss if isinstance(links[0], Train) else links[0]
    changing = next(iter(loss.changing()), None)
    if changing is not None:
        place, option = changing
        raise RecipeError(
            f"{name}: loss option {place[1:]!r} is a {type(option).__name__}, but this trainer does not report "
            "iterations; give a constant"
        )
    known_streams = (*_KNOWN, *columns, *(("weight_entropy",) if entropy else ()))
    missing = [stream for stream in loss.streams if stream not in known_streams]
    missing += [*loss.outputs, *(() if loss.unit in _WHOLE else (f"a whole {loss.unit}",))]
    missing += ["normaliser"] if loss.normaliser is not None else []
    if not missing and not entropy and _reads_entropy(loss):
        missing = ["entropy"]
    if missing:
        raise RecipeError(
            f"{name}: its loss needs {', '.join(map(repr, missing))}, which the trainer does not give to a loss; take "
            "another loss, or train with collect.Collector and recipe.updates(batch)"
        )
    return loss


def _reads_entropy(loss: Loss) -> bool:
    """Return whether a loss depends on the entropy of the rows, by evaluating it with two entropies."""
    if loss.needs_entropy_gradient:
        return True
    rng = np.random.default_rng(0)
    numbers = torch.from_numpy(rng.random((4, 8, 8)))
    logprob, advantage = -3.0 * numbers[0] - 0.01, numbers[1] - 0.5
    columns = {name: logprob + 0.3 * (numbers[2] - 0.5) for name in loss.streams if name.endswith("logprob")}
    values = [
        evaluate(
            loss,
            logprob,
            torch.ones_like(logprob),
            weight=torch.full_like(logprob, 1 / 64),
            advantage=advantage,
            entropy=entropy,
            columns=columns,
        )[0]
        for entropy in (numbers[3], 2.0 - numbers[3])  # other sizes, in another order
    ]
    return bool(values[0] != values[1])


def evaluate(
    loss: Loss,
    logprob: Tensor,
    mask: Tensor,
    *,
    weight: Tensor,
    advantage: Tensor,
    columns: dict[str, Tensor],
    entropy: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return a loss on padded rows of tokens, and the means of its metrics.

    Args:
        loss: the result of `row_loss`.
        logprob: `[B, T]`, log-prob of each token under the trained policy, with gradient.
        mask: `[B, T]`, 1 for tokens that the policy sampled; each run of them is a step.
        weight: `[B, T]`, loss weight of each token, including the denominators.
        advantage: `[B, T]`, advantage of each token.
        columns: `[B, T]` each: `old_logprob`, and further columns that the loss reads.
        entropy: `[B, T]`, entropy of each token, or None.
        factor: `[B, T]`, factor of the advantage: weights of an importance correction; or None.
    """
    inside = mask.bool()
    rows = inside.nonzero()[:, 0]
    pushed = weight * advantage if factor is None else weight * advantage * factor
    begins = inside & ~torch.nn.functional.pad(inside, (1, 0))[:, :-1]  # where a run of sampled tokens begins
    streams = {
        "weight_kl": weight[inside],
        "weight_entropy": weight[inside],
        "advantage_positive": pushed.clamp(min=0.0)[inside],
        "advantage_negative": pushed.clamp(max=0.0)[inside],
        "sequence": torch.unique(rows, return_inverse=True)[1],
        "step": begins.flatten().long().cumsum(0)[inside.flatten()] - 1,
        **{name: values[inside] for name, values in columns.items()},
    }
    value, sums = loss.of_rows(logprob[inside], cast("Tensor", None if entropy is None else entropy[inside]), streams)
    means = {
        name: (total / sums["compared" if name in _COMPARED and "compared" in sums else "tokens"].clamp(min=1)).item()
        for name, total in sums.items()
        if name not in ("tokens", "compared") and (name != "entropy" or entropy is not None)
    }
    return value, means


def token_rewards(
    mask: Any, reward: float, steps: Sequence[float] | None, *, where: str = "the row"
) -> NDArray[np.float64]:
    """Return the reward at each token of a row: the rewards of turns at their ends, and the row's at its end.

    Args:
        mask: 1 for the sampled tokens of the row.
        reward: reward of the row.
        steps: reward of each turn, or None.
        where: name of the row in errors.

    Raises:
        InvalidInputError: the number of turns differs from that of `steps`.
    """
    sampled = np.asarray(mask) != 0
    rewards = np.zeros(len(sampled))
    if steps is not None:
        ends = np.flatnonzero(sampled & ~np.append(sampled[1:], False))
        if len(ends) != len(steps):
            raise InvalidInputError(
                f"step_rewards of {where} has {len(steps)} numbers for {len(ends)} turns; give one number for each turn"
            )
        rewards[ends] = steps
    rewards[-1:] += reward
    return rewards
