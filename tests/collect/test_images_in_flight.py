"""Interrupted rollouts with images continue under new weights, and after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gallery import Gallery
from images_in_flight import ITERATIONS, SIZE, TASKS, WINDOW, Moving, UnevenGallery, apart, mixed_steps, trained

from agentrl_core.collect import BatchPolicy

pytestmark = pytest.mark.usefixtures("one_thread")
SUPPORT = Path(__file__).parents[1] / "support"


def test_new_weights_amid_a_segment_go_on_with_the_same_images() -> None:
    """The engine ends segments early with their tokens; new weights, vision tower included, sample the rest."""
    generate = Moving(at=4)
    (batch,) = trained(generate, Gallery(), until=1)
    assert generate.halves() == TASKS * SIZE
    assert mixed_steps(batch) == TASKS * SIZE
    assert batch.num_draws == TASKS * SIZE
    assert apart(batch) < 1e-4


def test_a_window_ends_batches_half_way() -> None:
    generate = Moving()
    batches = trained(generate, Gallery(), WINDOW)
    assert sum(map(mixed_steps, batches)) > 0, "an action goes on in the next iteration"
    assert {len(request.images) for request, _ in generate.segments} >= {2, 3}
    for batch in batches:
        assert batch.num_draws == TASKS * SIZE
        assert apart(batch) < 1e-4


def test_groups_that_a_cut_stops_are_carried_over() -> None:
    generate = Moving(pause=0.01)
    batches = trained(generate, UnevenGallery(), BatchPolicy(oversample=2.0), until=6)
    assert generate.halves() > 0, "the cut aborted requests"
    assert sum(map(mixed_steps, batches)) > 0
    assert max(map(apart, batches)) < 1e-4


@pytest.mark.slow
def test_a_kill_amid_partial_rollouts_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SUPPORT / "images_in_flight.py"), str(tmp_path), "0", "7", "13"]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=SUPPORT, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    quiet, *killed = map(json.loads, completed.stdout.splitlines())
    assert quiet["died"] == [0]
    assert quiet["mixed"] > 0
    assert quiet["apart"] < 1e-4
    assert len(quiet["tokens"]) == ITERATIONS
    for run in killed:
        assert run["died"] == [9, 0]
        assert run["asked"] < quiet["asked"], "answers of the rollout log are not asked for again"
        assert {name: run[name] for name in ("tokens", "logprobs", "apart")} == {
            name: quiet[name] for name in ("tokens", "logprobs", "apart")
        }
