"""How a recipe uses recorded log-probs, and which samplings its losses reproduce."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.engine.base import Sampling

Effect = Literal["applied", "none", "truncates", "shifts"]
EFFECTS: dict[str, Effect] = {
    "temperature": "applied",
    "top_p": "truncates",
    "top_k": "truncates",
    "max_tokens": "none",
    "stop_token_ids": "none",
    "top": "none",
    "by_entropy": "shifts",
}
"""How the trainer treats each field of `Sampling`, by its effect on the distribution of a token.

`applied`: the trainer does the same to its logits (a temperature of 0, which does not sample, is `truncates`). `none`:
nothing. `truncates`: some tokens have probability 0, which the model's log-probs do not have. `shifts`: no token has,
so that importance weights hold, but ratios are to another distribution. Any other field is refused.
"""
RECORDED = ("temperature", "top_p", "top_k")
"""Fields that nodes record, so that the tokens that are trained can be checked."""


@dataclass(frozen=True)
class SamplingUse:
    """How a recipe uses the log-probs that were recorded when tokens were sampled.

    Args:
        recipe: its name.
        ratios: whether losses take ratios to them.
        weights: whether losses or importance weights read them otherwise.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.engine import Sampling
        >>> from agentrl_core.update.sampling_use import SamplingUse
        >>> SamplingUse.of(recipes.GRPO).check(Sampling(temperature=0.7, max_tokens=8), "Collector: sampling")
        >>> SamplingUse.of(recipes.GRPO).check(Sampling(top_k=5), "Collector: sampling")
        Traceback (most recent call last):
        agentrl_core.exceptions.InvalidInputError: Collector: sampling has top_k=5, but recipe 'grpo' compares ...
    """

    recipe: str
    ratios: bool
    weights: bool

    @classmethod
    def of(cls, recipe: Any) -> SamplingUse:
        """Return how a recipe uses them; one without a loss, such as that of an evaluation, does not."""
        streams: set[str] = set()
        if links := recipe.chain("loss"):
            from agentrl_core.loss import Train

            streams.update(*((link.loss if isinstance(link, Train) else link).streams for link in links))
        weights = {column.name for link in recipe.chain("weight") for column in link.needs if column.level == "token"}
        return cls(
            recipe.name,
            "old_logprob" in streams and recipe.old_logprob == "behaviour",
            "behaviour_logprob" in streams | weights,
        )

    def check(self, sampling: Sampling, place: str, *, unrecorded: bool = False) -> None:
        """Refuse a sampling whose log-probs are of a distribution that the trainer does not compute.

        Args:
            sampling: of an action that may be trained.
            place: what has it, for the message.
            unrecorded: look at the fields that nodes do not record alone.

        Raises:
            InvalidInputError: names the field and the remedy.
        """
        for field in fields(sampling):
            value = getattr(sampling, field.name)
            if value == field.default or (unrecorded and field.name in RECORDED):
                continue
            if self.refuses(field.name, value):
                raise InvalidInputError(self.message(f"{place} has {field.name}={value!r}", field.name, field.default))

    def refuses(self, field: str, value: object) -> bool:
        """Return whether a value of a field, other than the default, makes the recipe's log-probs wrong."""
        effect = EFFECTS.get(field, "truncates")
        if effect == "applied":
            effect = "truncates" if value == 0 else "none"
        return (self.ratios and effect != "none") or (self.weights and effect == "truncates")

    def message(self, found: str, field: str, default: object) -> str:
        """Return the message about a field that is refused."""
        remedy = "" if self.weights else ', or use recomputed log-probs: recipe.replace(old_logprob="recomputed")'
        return (
            f"{found}, but recipe {self.recipe!r} compares recorded log-probs, which are those of the distribution "
            f"sampled from, with the model's over all tokens; sample with Sampling({field}={default!r}){remedy}"
        )
