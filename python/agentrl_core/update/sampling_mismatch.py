"""Refuse or warn of it if the trainer's distribution differs from the recorded sampling distribution."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.codes import CODES
from agentrl_core.data.sampling_record import sampling_of
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError
from agentrl_core.update.sampling_use import SamplingUse

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Train


def check_sampling(recipe: Any, batch: Batch, trainings: Sequence[Train]) -> None:
    """Refuse or warn of ratios and weights that do not match how the trained tokens were sampled.

    Refused are those to recorded log-probs of a distribution that the model's log-probs are not of: `top_p` below 1,
    `top_k` above 0, temperature 0, or another temperature than the trainer's. A warning is given of ratios to log-probs
    recomputed with the current weights, without a correction, for tokens sampled by several versions.

    Raises:
        InvalidInputError: names the value and the remedy.
    """
    ratios = any("old_logprob" in training.loss.streams for training in trainings)
    use = SamplingUse.of(recipe)
    if not (ratios or use.weights):
        return
    trained = np.asarray(batch.column("trainable", "token")) != 0
    steps_of_draw = np.diff(batch.offsets("token")[batch.offsets("step")])
    trained &= np.repeat(np.asarray(batch.column("trained", "draw")) != 0, steps_of_draw)
    of_draw = np.repeat(_codes(batch, "old_logprob"), steps_of_draw)
    compared = trained & (of_draw == CODES["old_logprob"].index("behaviour")) if ratios else np.zeros_like(trained)
    compared |= trained & use.weights
    if compared.any():
        _check_distribution(use, batch, compared)
        if use.weights or not all(_is_plain(training.loss) for training in trainings):
            _check_temperature(use, batch, compared)
    if not ratios:
        return
    fresh = np.repeat(_codes(batch, "source"), steps_of_draw)
    recomputed = trained & (of_draw == CODES["old_logprob"].index("recomputed"))
    recomputed &= fresh == CODES["source"].index("fresh")
    versions = np.asarray(batch.column("policy_version", "token"))[recomputed]
    versions = versions[versions >= 0]  # others have no recorded version
    if len(versions) and versions.min() != versions.max() and not bears_staleness(recipe):
        _warn(
            f"recipe {recipe.name!r}: the tokens were sampled by weights of versions {versions.min()} to "
            f"{versions.max()}, and ratios are to log-probs that the present weights recompute, so that they begin at "
            f"1 however old a token is; {_REMEDY}"
        )


_REMEDY = 'add weight.ImportanceWeight() to phase weight, or take ratios to what was sampled: old_logprob="behaviour"'


def warn_of_staleness(recipe: Any) -> None:
    """Warn if a recipe ignores staleness, in a run that trains tokens of older weights."""
    ratios = any("old_logprob" in training.loss.streams for training in recipe.losses("update"))
    if ratios and recipe.old_logprob == "recomputed" and not bears_staleness(recipe):
        _warn(
            f"recipe {recipe.name!r}: ratios are to log-probs that the present weights recompute, so that they begin "
            f"at 1 however old a token is, and this run trains tokens of older weights; {_REMEDY}"
        )


def bears_staleness(recipe: Any) -> bool:
    """Return whether a weight or loss of a recipe reads the behaviour policy's log-probs."""
    seen = {"behaviour_logprob", "policy_version"}
    weights = (column.name for link in recipe.chain("weight") for column in link.needs if column.level == "token")
    streams = (stream for training in recipe.losses("update") for stream in training.loss.streams)
    return not seen.isdisjoint((*weights, *streams))


def _check_distribution(use: SamplingUse, batch: Batch, chosen: NDArray[np.bool_]) -> None:
    sampling = sampling_of(batch, chosen)
    for name, unlike, default in (
        ("top_p", sampling["top_p"] < 1, 1.0),
        ("top_k", sampling["top_k"] > 0, 0),
        ("temperature", sampling["temperature"] == 0, 1.0),
    ):
        if unlike.any():
            raise InvalidInputError(
                use.message(f"tokens were sampled with {name}={sampling[name][unlike][0]:g}", name, default)
            )


def _check_temperature(use: SamplingUse, batch: Batch, chosen: NDArray[np.bool_]) -> None:
    sampling = sampling_of(batch, chosen)
    applied = np.asarray(batch.column("inverse_temperature", "token"))[chosen]
    unlike = ~np.isnan(sampling["temperature"]) & ~np.isclose(applied * sampling["temperature"], 1.0, rtol=1e-3)
    if unlike.any():
        raise InvalidInputError(
            f"tokens were sampled with temperature={sampling['temperature'][unlike][0]:g}, but column "
            f"'inverse_temperature' is {applied[unlike][0]:g}, and recipe {use.recipe!r} compares recorded log-probs "
            'with the model\'s; use recomputed log-probs: recipe.replace(old_logprob="recomputed")'
        )


def _is_plain(loss: Any) -> bool:
    """Return whether a loss weighs log-probs and has ratios in its metrics alone."""
    surrogate = getattr(loss, "surrogate", None)
    ones = getattr(surrogate, "positive", None) == getattr(surrogate, "negative", None) == "one"
    return ones and loss.clip is None and loss.mask is None


def _codes(batch: Batch, name: str) -> NDArray[np.int64]:
    return np.asarray(batch.column(name, "draw")).astype(np.int64)


def _warn(message: str) -> None:
    warnings.warn(message, AgentRLWarning, stacklevel=3)
