"""Which model a loss trains, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from agentrl_core.component import Component, Where, option
from agentrl_core.loss.base import Loss


@dataclass(frozen=True)
class Train(Component):
    """A loss, the model that it trains, and its stage: for recipes that train more models than the policy.

    Phase loss of a recipe may be a tuple of `Train`, run in order; a plain loss means `Train(loss)`. Each has its own
    optimizer steps and denominators, and names its model in `Update.model`. A stage has one loss for each model;
    `loss.Sum` adds several losses of one model.

    Args:
        loss: the loss to minimise.
        model: name of the model in the user's loop, such as `policy`, `critic`, `reward_model` or `adapter`.
        stage: `update`, returned by `recipe.updates(batch)`; or any other name, such as `warm_start` (before
            reinforcement learning) or `before_credit` (a critic or reward model whose outputs the credit reads),
            returned by `recipe.updates(batch, stage=...)` for any batch that has the columns of the loss.
        epochs: passes over a batch, at least 1; None: as in the recipe.
        minibatches: optimizer steps of a pass, at least 1; None: as in the recipe.
        deal: how draws are divided into minibatches: `mixed`: at random; `by_source`: the draws of each source (fresh,
            replay, expert, ...) are spread evenly, so that their numbers in two minibatches differ by at most one.
        where: the draws to train on; None: all. A stage may have several losses of one model on different draws.
        keep: whether the column `keep` leaves tokens out of this loss. None: yes, except for a critic (a model other
            than the policy whose values the loss trains), because filters of the policy's tokens do not apply to it.

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
        """Require that `model` and `stage` are identifiers."""
        for name in ("model", "stage"):
            self.require(getattr(self, name).isidentifier(), name, "give a name of letters, digits and _")
