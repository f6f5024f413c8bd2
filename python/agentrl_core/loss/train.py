"""Which model a loss trains, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from agentrl_core.component import Component, Where, option
from agentrl_core.loss.base import Loss


@dataclass(frozen=True)
class Train(Component):
    """A loss, the model that it trains, and when: for recipes that train more than the policy after the credit.

    Phase loss of a recipe may be a tuple of these, run in order; a loss by itself stands for `Train(loss)`. Each has
    optimizer steps of its own, with denominators of its own, and names its model in `Update.model`. A stage holds one
    loss for each model; `loss.Sum` adds up several losses of one model.

    Args:
        loss: what is minimised.
        model: a name, such as `policy`, `critic`, `reward_model`, `adapter`: the user's loop knows the model.
        stage: `update`, what `recipe.updates(batch)` gives; or any other name, such as `warm_start` (before
            reinforcement learning) or `before_credit` (a critic or reward model whose answers the credit reads):
            `recipe.updates(batch, stage=...)` gives those, on any batch that has the columns the loss needs.
        epochs: passes over a batch, at least 1; None: those of the recipe.
        minibatches: optimizer steps of a pass, at least 1; None: those of the recipe.
        deal: how draws come into minibatches: `mixed` at random; or `by_source`, each minibatch with as many of every
            source (fresh, replay, expert, ...) as the others, up to one.
        where: the draws that it trains; None: all. A stage may hold several losses of one model on different draws.
        keep: whether the column `keep` leaves tokens out of this loss. None: yes, but not for a critic, a model other
            than the policy whose values the loss trains: filters of what the policy learns do not reach it.

    Example:
        >>> from agentrl_core import loss, recipes
        >>> recipe = recipes.GRPO.replace(loss=(loss.Train(loss.Value(), model="critic", epochs=4), loss.Policy()))
        >>> [(training.model, training.epochs) for training in recipe.losses()]
        [('critic', 4), ('policy', 1)]
    """

    phase: ClassVar[str] = "loss"

    loss: Loss
    model: str = "policy"
    stage: str = "update"
    epochs: int | None = option(None, at_least=1)
    minibatches: int | None = option(None, at_least=1)
    deal: Literal["mixed", "by_source"] = "mixed"
    where: Where | None = field(default=None, kw_only=True)
    keep: bool | None = field(default=None, kw_only=True)

    @property
    def is_filtered(self) -> bool:
        """Whether the column `keep` leaves tokens out of this loss.

        Example:
            >>> from agentrl_core import loss
            >>> critic = loss.Train(loss.Value(), model="critic")
            >>> critic.is_filtered, loss.Train(loss.Value(), model="critic", keep=True).is_filtered
            (False, True)
        """
        if self.keep is not None:
            return self.keep
        return self.model == "policy" or not any(output.startswith("value") for output in self.loss.outputs)

    def check_options(self) -> None:
        """Names are names."""
        for name in ("model", "stage"):
            self.require(getattr(self, name).isidentifier(), name, "give a name of letters, digits and _")
