"""Contents of plots."""

import pytest
from matplotlib.figure import Figure

from agentrl_core import stats
from agentrl_core.exceptions import InvalidInputError


def test_a_forest_plot_has_a_line_and_a_point_for_each():
    axes = Figure().subplots()
    stats.plot_estimates(axes, {"a": stats.Estimate(0.5, 0.25, 1.0), "b": stats.PairedDifference(0.1, 0, 0.2, 0.5, 3)})
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.get_lines()]
    assert drawn == [([0.25, 1.0], [0, 0]), ([0.5], [0]), ([0, 0.2], [1, 1]), ([0.1], [1])]
    assert axes.yaxis_inverted()


def test_a_profile_has_a_line_and_a_band():
    axes = Figure().subplots()
    profile = [stats.Estimate(1.0, 0.9, 1.0), stats.Estimate(0.5, 0.4, 0.6)]
    stats.plot_profiles(axes, [0.0, 0.5], {"a": profile, "b": profile})
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[1.0, 0.5]] * 2
    assert len(axes.collections) == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_wrong_calls():
    axes = Figure().subplots()
    with pytest.raises(InvalidInputError, match="estimates is empty"):
        stats.plot_estimates(axes, {})
    with pytest.raises(InvalidInputError, match="'a' has 0 estimates for 2 thresholds"):
        stats.plot_profiles(axes, [0.0, 0.5], {"a": []})
