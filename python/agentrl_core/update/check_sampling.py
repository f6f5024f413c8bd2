"""Check sampling options against a recipe: its losses must use the distribution from which tokens were sampled."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.sampling_record import nodes_of_tokens, sampling_of_nodes
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.engine.base import Sampling
    from agentrl_core.loss import Train

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

`applied`: the trainer applies it to its logits too (a temperature of 0, which does not sample, counts as `truncates`).
`none`: no effect. `truncates`: some tokens have probability 0, unlike under the model. `shifts`: all tokens keep a
positive probability, so importance weights are valid, but ratios refer to another distribution. Any other field is an
error.
"""
RECORDED = ("temperature", "top_p", "top_k")
"""Fields that the batch records by node, so that trained tokens can be checked later."""


@dataclass(frozen=True)
class SamplingUse:
    """How a recipe uses the log-probs that were recorded when tokens were sampled.

    Args:
        recipe: its name.
        ratios: whether losses use ratios to these log-probs.
        weights: whether losses or importance weights use them in another way.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.engine import Sampling
        >>> from agentrl_core.update.check_sampling import SamplingUse
        >>> SamplingUse.of(recipes.GRPO).check(Sampling(temperature=0.7, max_tokens=8), "Collector: sampling")
        >>> SamplingUse.of(recipes.GRPO).check(Sampling(top_k=5), "Collector: sampling")
        Traceback (most recent call last):
        agentrl_core.exceptions.InvalidInputError: Collector: sampling has top_k=5, so recorded log-probs ...
    """

    recipe: str
    ratios: bool
    weights: bool

    @classmethod
    def of(cls, recipe: Any) -> SamplingUse:
        """Return how a recipe uses recorded log-probs; a recipe without a loss, as in an evaluation, ignores them."""
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
        """Raise an error if sampling options change the distribution in a way that the trainer does not compute.

        Args:
            sampling: sampling options of an action that may be trained.
            place: where the options come from, for the message.
            unrecorded: check only the fields that nodes do not record.

        Raises:
            InvalidInputError: an option does not fit; the message has the field and the remedy.
        """
        for field in fields(sampling):
            value = getattr(sampling, field.name)
            if value == field.default or (unrecorded and field.name in RECORDED):
                continue
            if self.refuses(field.name, value):
                raise InvalidInputError(self.message(f"{place} has {field.name}={value!r}", field.name, field.default))

    def refuses(self, field: str, value: object) -> bool:
        """Return whether a value of a field, other than its default, makes the recorded log-probs wrong."""
        effect = EFFECTS.get(field, "truncates")
        if effect == "applied":
            effect = "truncates" if value == 0 else "none"
        return (self.ratios and effect != "none") or (self.weights and effect == "truncates")

    def message(self, found: str, field: str, default: object) -> str:
        """Return the error message about a field whose value is refused."""
        remedy = "" if self.weights else ', or use recomputed log-probs: recipe.replace(old_logprob="recomputed")'
        return (
            f"{found}, so recorded log-probs are not those of the model, but recipe {self.recipe!r} compares the two; "
            f"sample with Sampling({field}={default!r}){remedy}"
        )


def check_sampling(recipe: Any, batch: Batch, trainings: Sequence[Train]) -> None:
    """Check that ratios and weights of a recipe match the distribution from which the trained tokens were sampled.

    It is an error if the recorded log-probs are of another distribution than the model's: `top_p` below 1, `top_k`
    above 0, temperature 0, or another temperature than the trainer's. It is a warning if ratios use log-probs that are
    recomputed with the current weights, without a correction, for tokens sampled by several versions.

    Raises:
        InvalidInputError: the distributions differ; the message has the value and the remedy.
    """
    ratios = any("old_logprob" in training.loss.streams for training in trainings)
    use = SamplingUse.of(recipe)
    if not (ratios or use.weights):
        return
    trained = np.asarray(batch.column("trained", "draw")) != 0
    old_logprob, source = _codes(batch, "old_logprob"), _codes(batch, "source")
    compared = trained if use.weights else trained & (old_logprob == CODES["old_logprob"].index("behaviour"))
    if compared.any():
        _check_compared(use, batch, compared, trainings)
    recomputed = trained & (old_logprob == CODES["old_logprob"].index("recomputed"))
    recomputed &= source == CODES["source"].index("fresh")
    if not (ratios and recomputed.any()) or bears_staleness(recipe):
        return
    versions = np.asarray(batch.column("policy_version", "token"))[_tokens_of(batch, recomputed)]
    versions = versions[versions >= 0]  # negative: not recorded
    if len(versions) and versions.min() != versions.max():
        _warn(
            f"recipe {recipe.name!r}: the tokens were sampled by policy versions {versions.min()} to "
            f"{versions.max()}, but ratios use log-probs recomputed with the current weights, so they start at 1 "
            f"whatever the staleness; {_REMEDY}"
        )


_REMEDY = 'add weight.ImportanceWeight() to phase weight, or use the log-probs of sampling: old_logprob="behaviour"'


def warn_of_staleness(recipe: Any) -> None:
    """Warn if a recipe has no correction for staleness; call it in a run that trains tokens of older weights."""
    ratios = any("old_logprob" in training.loss.streams for training in recipe.losses("update"))
    if ratios and recipe.old_logprob == "recomputed" and not bears_staleness(recipe):
        _warn(
            f"recipe {recipe.name!r}: this run trains tokens of older weights, but ratios use log-probs recomputed "
            f"with the current weights, so they start at 1 whatever the staleness; {_REMEDY}"
        )


def bears_staleness(recipe: Any) -> bool:
    """Return whether a weight or loss of a recipe reads behaviour log-probs or policy versions."""
    names = {"behaviour_logprob", "policy_version"}
    weights = (column.name for link in recipe.chain("weight") for column in link.needs if column.level == "token")
    streams = (stream for training in recipe.losses("update") for stream in training.loss.streams)
    return not names.isdisjoint((*weights, *streams))


def _tokens_of(batch: Batch, draws: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each token is trainable and belongs to one of the draws."""
    tokens_of_draw = np.diff(batch.offsets("token")[batch.offsets("step")])
    mask: NDArray[np.bool_] = np.repeat(draws, tokens_of_draw) & (np.asarray(batch.column("trainable", "token")) != 0)
    return mask


def _check_compared(use: SamplingUse, batch: Batch, draws: NDArray[np.bool_], trainings: Sequence[Train]) -> None:
    """Check how tokens with used log-probs were sampled; the tokens are read only if a node could be refused."""
    sampling = sampling_of_nodes(batch)
    for name, unlike, default in (
        ("top_p", sampling["top_p"] < 1, 1.0),
        ("top_k", sampling["top_k"] > 0, 0),
        ("temperature", sampling["temperature"] == 0, 1.0),
    ):
        if not unlike.any():
            continue
        nodes = nodes_of_tokens(batch, _tokens_of(batch, draws))
        refused = nodes[unlike[nodes]]
        if len(refused):
            raise InvalidInputError(
                use.message(f"trained tokens were sampled with {name}={sampling[name][refused[0]]:g}", name, default)
            )
    temperature_counts = use.weights or not all(_is_plain(training.loss) for training in trainings)
    if temperature_counts and not np.isnan(sampling["temperature"]).all():
        _check_temperature(use, batch, _tokens_of(batch, draws), sampling["temperature"])


def _check_temperature(
    use: SamplingUse, batch: Batch, tokens: NDArray[np.bool_], of_nodes: NDArray[np.float32]
) -> None:
    applied = np.asarray(batch.column("inverse_temperature", "token"))[tokens]
    temperature = of_nodes[nodes_of_tokens(batch, tokens)]
    unlike = np.abs(applied * temperature - 1.0) > 1e-3  # False if not recorded (NaN)
    if unlike.any():
        row = int(np.flatnonzero(tokens)[unlike][0])
        remedy = "" if use.weights else ', or use recomputed log-probs: recipe.replace(old_logprob="recomputed")'
        raise InvalidInputError(
            f"token {row} was sampled with temperature={temperature[unlike][0]:g}, but column 'inverse_temperature' is "
            f"{applied[unlike][0]:g}, and recipe {use.recipe!r} compares recorded log-probs with the model's; leave "
            f"the column as the batch computes it{remedy}"
        )


def _is_plain(loss: Any) -> bool:
    """Return whether a loss weights log-probs without a ratio, apart from its metrics."""
    surrogate = getattr(loss, "surrogate", None)
    ones = getattr(surrogate, "positive", None) == getattr(surrogate, "negative", None) == "one"
    return ones and loss.clip is None and loss.mask is None


def _codes(batch: Batch, name: str) -> NDArray[np.int64]:
    return np.asarray(batch.column(name, "draw")).astype(np.int64)


def _warn(message: str) -> None:
    warnings.warn(message, AgentRLWarning, stacklevel=3)
