"""A run resumes with identical results after Ctrl-C at every line of the collector, and after kills."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import pytest
import remembering
from remembering import ITERATIONS, RECIPES, collector, metrics, outcome, train
from small_world import SmallWorld
from wide import spread

from agentrl_core import Batch, Collector, Store, recipes, select
from agentrl_core.collect import batch_builder as making
from agentrl_core.collect import collector as collector_module
from agentrl_core.collect import event_loop as loop
from agentrl_core.collect import iteration as iteration_module
from agentrl_core.collect import prefetch as ahead
from agentrl_core.collect import prefetch as underway
from agentrl_core.collect import rollout_log
from agentrl_core.collect import run_state as head
from agentrl_core.collect.iteration import iteration_record
from agentrl_core.component.state import split_arrays
from agentrl_core.data import store as store_module
from agentrl_core.exceptions import InvalidInputError

NAMES = list(RECIPES)
KILLS = 100
"""Kills of the fault run, over all of its recipes."""


class Interrupt:
    """Sends Ctrl-C before the n-th line that Python runs in the collector and the store; records the lines."""

    modules = (collector_module, iteration_module, making, ahead, head, rollout_log, loop, store_module, underway)
    files = tuple(module.__file__ for module in modules)

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.lines: list[tuple[str, int]] = []
        self._entered: set[tuple[FrameType, int]] = set()

    @property
    def places(self) -> list[int]:
        """Return a value of `at` for the first run of each source line."""
        return [self.lines.index(line) + 1 for line in dict.fromkeys(self.lines)]

    def __enter__(self) -> Self:
        gc.disable()  # Python drops a Ctrl-C during the finalization of garbage
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "line" and not self._leaves_with(frame):
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._line

    def _leaves_with(self, frame: FrameType) -> bool:
        """Return whether `__exit__` is called next: no signal comes between a body and it, so locks are released."""
        place = (frame, frame.f_lineno)
        if not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            return False
        leaves = place in self._entered
        self._entered ^= {place}
        return leaves


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    """Restore the handler of Ctrl-C, however the tests are started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    @cache
    def of(name: str, staleness: int) -> dict[str, Any]:
        with Store.open(tmp_path_factory.mktemp("runs") / name) as store:
            loop = collector(name, store, staleness)
            train(loop)
            loop.close()
            return outcome(store)

    return of


def two_iterations(
    name: str, store: Store | None, place: str, at: int, staleness: int = 0
) -> tuple[Collector, list[int]]:
    """Train two iterations with a Ctrl-C in a call of the second one, and repeat incomplete calls."""
    loop = collector(name, store, staleness)
    for iteration in range(2):
        calls = {"collect": Interrupt(), "update": Interrupt()}
        calls[place].at = at if iteration == 1 else 0
        try:
            with calls["collect"]:
                batch = loop(tasks=3, group_size=4)
        except KeyboardInterrupt:
            assert loop.iteration == iteration
            batch = loop(tasks=3, group_size=4)
        batch = loop.recipe.credit(batch)
        try:
            with calls["update"]:
                loop.end_iteration(batch, {"score": 0.5})
        except KeyboardInterrupt:
            assert loop.iteration in (iteration, iteration + 1)
            if loop.iteration == iteration:
                loop.end_iteration(batch, {"score": 0.5})
        assert loop.iteration == iteration + 1
    return loop, calls[place].places


@pytest.mark.parametrize(
    ("name", "place", "staleness"),
    [
        pytest.param("balanced", "collect", 0, marks=pytest.mark.full),
        ("balanced", "update", 0),
        pytest.param("tracked", "update", 0, marks=pytest.mark.full),
        pytest.param("everything", "update", 0, marks=pytest.mark.full),
        pytest.param("everything", "collect", 2, marks=pytest.mark.full),
    ],
)
def test_ctrl_c_at_every_line_changes_nothing(tmp_path: Path, name: str, place: str, staleness: int) -> None:
    with Store.open(tmp_path / "whole", sync="never") as store:
        loop, places = two_iterations(name, store, place, 0, staleness)
        loop.close()
        expected = outcome(store)
    assert len(places) > 20, "the lines were seen"
    for at in places:
        with Store.open(tmp_path / str(at), sync="never") as store:
            two_iterations(name, store, place, at, staleness)[0].close()
            assert outcome(store) == expected, f"interrupted before line {at}"


def test_ctrl_c_without_a_store_changes_nothing() -> None:
    uninterrupted, places = two_iterations("balanced", None, "update", at=0)
    assert len(places) > 5
    for at in places:
        loop, _ = two_iterations("balanced", None, "update", at)
        assert loop._head.components == uninterrupted._head.components


def killed_until_done(folder: Path, name: str, seed: int, most: int = 1 << 30, staleness: int = 0) -> int:
    """Kill a run at random moments until it completes, at most `most` times; return the number of kills."""
    rng = np.random.default_rng(seed)
    killed = 0
    command = [sys.executable, remembering.__file__, str(folder), name, str(staleness)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loops:
        assert loops.stdin is not None
        assert loops.stdout is not None

        def read_word(expected: str) -> int:
            for line in loops.stdout:
                word, number = line.split()
                if word == expected:
                    return int(number)
            raise AssertionError(f"it ended without the word {expected}")

        while True:
            loops.stdin.write("\n")
            loops.stdin.flush()
            process = read_word("process")
            if killed < most:
                # The time before a kill grows, so that a slow machine completes too.
                time.sleep(rng.uniform(0.0, 0.03 * (1 + killed / 4)))
                with contextlib.suppress(ProcessLookupError):  # it had completed already
                    os.kill(process, signal.SIGKILL)
            ended = read_word("died")
            if ended == 0:
                break
            assert ended == signal.SIGKILL, "it ended by itself, with an error"
            killed += 1
        loops.stdin.close()
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(NAMES))
def test_kills_change_nothing_that_is_remembered(
    tmp_path: Path, name: str, undisturbed: Callable[[str, int], dict[str, Any]]
) -> None:
    """After kills at random moments, a run has the batches and states of an undisturbed one."""
    killed = runs = 0
    while killed < 5:  # a fast machine may complete before
        folder = tmp_path / str(runs)
        killed += killed_until_done(folder, name, 3 + runs)
        runs += 1
        with Store.open(folder) as store:
            assert store.iteration == ITERATIONS
            assert outcome(store) == undisturbed(name, 0)
            assert store.verify() == []
        assert runs < 50, "kills hit"


@pytest.mark.parametrize(
    ("name", "staleness"),
    spread([("everything", 0), ("everything", 2), ("parts", 0), ("parts", 2), ("gated", 3)]),
)
def test_the_fault_run(
    tmp_path: Path, undisturbed: Callable[[str, int], dict[str, Any]], name: str, staleness: int
) -> None:
    """Stateful select, replay, advantage and controllers: batches and states survive over a hundred kills.

    Work in flight too: three iterations are in progress at each kill, or as many as a gate allows. The resumed run
    equals an undisturbed one, so no task is skipped or repeated, and long episodes are as frequent as before
    (NeMo-RL#3599 lost groups that were incomplete at a kill, mostly long ones).
    """
    killed = runs = 0
    while killed < KILLS // 4:
        folder = tmp_path / str(runs)
        killed += killed_until_done(folder, name, 100 + runs, KILLS // 4 - killed, staleness)
        runs += 1
        with Store.open(folder) as store:
            assert store.iteration == ITERATIONS
            result = outcome(store)
            for part, expected in undisturbed(name, staleness).items():
                assert result[part] == expected, part
            assert store.verify() == []
        assert runs < 50, "kills hit"


def test_component_states_are_a_fold_over_the_stored_iterations(tmp_path: Path) -> None:
    """Folding the closed iterations again, from the store alone, gives the stored states."""
    with Store.open(tmp_path, sync="never") as store:
        loop = collector("everything", store)
        train(loop, until=8)
        result = outcome(store)
        assert any(1 in sources for sources in result["sources"]), "stored draws joined"
        states: dict[str, Any] = {}
        for iteration in range(8):
            batch = store.batch(iteration)
            scored = loop.recipe.with_states(batch, states)
            scored = scored if batch.num_draws else loop.recipe.score(scored)  # a column without draws is not stored
            ended = iteration_record(
                scored, metrics(batch), iteration, loop._known_pool(loop._now().tasks), loop.recipe.score
            )
            states = loop.recipe.next_states(states, ended)
            table, arrays = split_arrays(states)
            assert table == result["states"][iteration]
        assert {name: array.tolist() for name, array in arrays.items()} == result["arrays"]
        assert len(states) == 6


def test_a_batch_collected_again_after_a_restart_has_the_same_scores(tmp_path: Path) -> None:
    """Several rounds, with groups rejected by admission, have the scores of a restart with the remaining groups."""

    class Centred(type(recipes.GRPO.reward)):
        """Scores that depend on all draws scored together."""

        def __call__(self, batch: Batch) -> Batch:
            rewards = batch.column("reward", "draw")
            return batch.with_columns("draw", score=rewards - rewards.mean())

    recipe = recipes.GRPO.replace(reward=Centred(), admit=select.DynamicSampling())
    with Store.open(tmp_path) as store:
        first = grpo(store, recipe)(tasks=4, group_size=3)
    with Store.open(tmp_path) as store:
        again = grpo(store, recipe)(tasks=4, group_size=3)
    assert first.column("score", "draw").tolist() == again.column("score", "draw").tolist()
    assert len(first.trajectories) > first.num_draws, "groups were rejected"


def grpo(store: Store, recipe: Any = recipes.GRPO, **options: Any) -> Collector:
    world = SmallWorld()
    return Collector(world, world, recipe, store=store, task_pool=8, **options)


def test_a_run_does_not_go_on_silently_as_another(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        loop = grpo(store)
        loop.end_iteration(loop(tasks=2, group_size=4), {})
    others = {
        "seed=0, not 1": {"seed": 1},
        "recipe.epochs=1, not 2": {"recipe": recipes.GRPO.replace(epochs=2)},
        r"recipe.advantage.center='mean', not 'leave_one_out'": {
            "recipe": recipes.GRPO.replace(advantage=recipes.RLOO.advantage)
        },
    }
    with Store.open(tmp_path) as store:
        for message, options in others.items():
            with pytest.raises(InvalidInputError, match=rf"made with {message}; .* allow_changes=True"):
                grpo(store, **options)
        with pytest.raises(InvalidInputError, match=r"made with group_size=4, not 8; .* allow_changes=True"):
            grpo(store)(tasks=2, group_size=8)
        grpo(store)(tasks=3, group_size=4)
    with Store.open(tmp_path) as store:
        loop = grpo(store, recipes.GRPO.replace(epochs=2), seed=1, allow_changes=True)
        loop.end_iteration(loop(tasks=2, group_size=4), {})
        assert store.state["run"]["seed"] == 1, "from here on, that is the run"
        with pytest.raises(InvalidInputError, match=r"made with recipe\.epochs=2, not 1"):
            grpo(store, seed=1)


def test_a_batch_of_another_iteration_does_not_close_this_one(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        loop = grpo(store)
        batch = loop(tasks=2, group_size=4)
        loop.end_iteration(batch, {})
        with pytest.raises(InvalidInputError, match="batch is of iteration 0, but iteration 1 is open"):
            loop.end_iteration(batch, {})
