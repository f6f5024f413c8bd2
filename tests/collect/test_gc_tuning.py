"""Python collects garbage rarely while programs run, and with its previous settings afterwards."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from agentrl_core.collect.event_loop import relaxed_gc


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    """Set Python's own defaults for a test, and restore the previous settings afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_is_as_before_when_the_last_has_ended() -> None:
    with relaxed_gc:
        assert gc.get_threshold() == (20_000, 10, 10)
        with relaxed_gc:
            assert gc.get_threshold() == (20_000, 10, 10)
        assert gc.get_threshold() == (20_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_it_is_as_before_when_a_program_raises() -> None:
    with pytest.raises(ValueError, match="a program"), relaxed_gc:
        raise ValueError("a program")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(50_000, 5, 5), (0, 10, 10)], ids=["rarer", "never"])
def test_a_rarer_gc_threshold_is_not_changed(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with relaxed_gc:
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_a_gc_threshold_set_inside_the_block_is_kept() -> None:
    with relaxed_gc:
        gc.set_threshold(100, 1, 1)
    assert gc.get_threshold() == (100, 1, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_nothing_runs_in_a_forked_child() -> None:
    with relaxed_gc:
        child = os.fork()
        if not child:
            os._exit(0 if gc.get_threshold() == (700, 10, 10) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert gc.get_threshold() == (20_000, 10, 10)
