"""Plots of estimates and profiles, drawn into Matplotlib axes of the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.stats.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_estimates(axes: Axes, estimates: Mapping[str, Estimate]) -> None:
    """Draw estimates under each other with their intervals, the first at the top: a forest plot.

    Args:
        axes: Matplotlib axes.
        estimates: estimates by name; any tuple that begins with value, low and high.

    Raises:
        InvalidInputError: there are no estimates.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from agentrl_core import stats
        >>> axes = Figure().subplots()
        >>> stats.plot_estimates(axes, {"grpo": stats.bootstrap([0.2, 0.4]), "arpo": stats.bootstrap([0.3, 0.6])})
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['grpo', 'arpo']
    """
    if not estimates:
        raise InvalidInputError("estimates is empty; give at least one estimate by name")
    for row, (value, low, high, *_) in enumerate(estimates.values()):
        axes.plot([low, high], [row, row], color="0.4", linewidth=2)
        axes.plot([value], [row], "o", color="C0")
    axes.set_yticks(range(len(estimates)), list(estimates))
    axes.invert_yaxis()


def plot_profiles(axes: Axes, thresholds: Sequence[float], profiles: Mapping[str, Sequence[Estimate]]) -> None:
    """Draw performance profiles as lines with their intervals as bands.

    Args:
        axes: Matplotlib axes.
        thresholds: `[n]`.
        profiles: by name, the output of `performance_profile` for these thresholds.

    Raises:
        InvalidInputError: a profile has not one estimate for each threshold.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from agentrl_core import stats
        >>> axes = Figure().subplots()
        >>> stats.plot_profiles(axes, [0.0, 0.5], {"grpo": stats.performance_profile([0.2, 0.7], [0.0, 0.5])})
        >>> axes.get_lines()[0].get_ydata().tolist()
        [1.0, 0.5]
    """
    for name, profile in profiles.items():
        if len(profile) != len(thresholds):
            raise InvalidInputError(
                f"profiles: {name!r} has {len(profile)} estimates for {len(thresholds)} thresholds; give one for each"
            )
        (line,) = axes.plot(thresholds, [estimate.value for estimate in profile], label=name)
        axes.fill_between(
            thresholds,
            [estimate.low for estimate in profile],
            [estimate.high for estimate in profile],
            color=line.get_color(),
            alpha=0.2,
        )
    axes.set_xlabel("score above")
    axes.set_ylabel("share of runs")
    axes.legend()
