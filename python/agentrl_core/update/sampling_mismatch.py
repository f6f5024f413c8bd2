"""Warn if the trainer's distribution differs from the recorded sampling distribution."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.codes import CODES
from agentrl_core.data.sampling_record import sampling_of
from agentrl_core.exceptions import AgentRLWarning

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Train


def warn_of_sampling(recipe: Any, batch: Batch, trainings: Sequence[Train]) -> None:
    """Warn if the losses use ratios that do not match how the trained tokens were sampled.

    - Ratios to behaviour log-probs of another distribution (`top_p` below 1, `top_k` above 0, temperature 0), since the
    model's log-probs are over all tokens. - Ratios to log-probs recomputed with the current weights, without a
    correction, for tokens sampled by several versions.
    """
    if not any("old_logprob" in training.loss.streams for training in trainings):
        return
    trained = np.asarray(batch.column("trainable", "token")) != 0
    of_draw = np.repeat(_codes(batch, "old_logprob"), np.diff(batch.offsets("token")[batch.offsets("step")]))
    behaviour = trained & (of_draw == CODES["old_logprob"].index("behaviour"))
    if behaviour.any():
        _warn_of_distribution(batch, behaviour)
    fresh = np.repeat(_codes(batch, "source"), np.diff(batch.offsets("token")[batch.offsets("step")]))
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


def _warn_of_distribution(batch: Batch, chosen: NDArray[np.bool_]) -> None:
    sampling = sampling_of(batch, chosen)
    for name, unlike, remedy in (
        ("top_p", sampling["top_p"] < 1, "Sampling(top_p=1.0)"),
        ("top_k", sampling["top_k"] > 0, "Sampling(top_k=0)"),
        ("temperature", sampling["temperature"] == 0, "Sampling(temperature=1.0)"),
    ):
        if unlike.any():
            _warn(
                f"tokens were sampled with {name}={sampling[name][unlike][0]:g}, and their log-probs are of that "
                "distribution; the ratios of this update compare them with the model's log-probs over all tokens; "
                f'sample with {remedy}, or recompute them: recipe.replace(old_logprob="recomputed")'
            )


def _codes(batch: Batch, name: str) -> NDArray[np.int64]:
    return np.asarray(batch.column(name, "draw")).astype(np.int64)


def _warn(message: str) -> None:
    warnings.warn(message, AgentRLWarning, stacklevel=3)
