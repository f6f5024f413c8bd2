"""ScienceWorld: experiments of elementary science in a house of text, by the package `scienceworld` on Java."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from agentrl_core._util.near_names import near_names
from agentrl_core.env.base import ExtraColumn, Split, Task
from agentrl_core.env.program_pool import ProgramPool
from agentrl_core.env.text_game import GAME_FACTS, GameEpisode, GameStep, check_counts, checked_range, payload_of
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

_UNKNOWN = "No known action matches that input."
# The environment's own limit is max_turns.
_NO_LIMIT = 1 << 30


class ScienceWorld:
    """Environment of the thirty tasks of ScienceWorld in many variations, with the package's splits.

    The first observation has the task, the room and the inventory. An action is a command, alone or in
    `<action>…</action>`; the reward is the increase of the score, as a fraction of 1 (negative if the task has failed
    for good), success a full score. A command that the game does not understand is flagged `StepFlag.FORMAT_ERROR`.

    Facts: `points` (of 1), `command`, `admissible` (number of accepted commands, often hundreds). The state is the
    task, the room and the inventory.

    Each running episode has a simulator, a Java process that later episodes reuse, so episodes run in threads. Starting
    one takes about two seconds.

    Args:
        tasks: names of tasks, such as `boil`, which alternate; default: all.
        simplifications: simplifications of the package, such as `easy` or `teleportAction,openDoors`.
        max_turns: most actions in an episode.

    Raises:
        MissingDependencyError: scienceworld or Java is not installed.
        InvalidInputError: an unknown task or simplification, or an argument out of range.

    Example:
        >>> world = ScienceWorld(["find-plant"], simplifications="easy")    # doctest: +SKIP
        >>> episode = world.reset(world.tasks(1)[0], seed=0)                # doctest: +SKIP
        >>> episode.step("<action>look around</action>").reward             # doctest: +SKIP
        0.0
        >>> episode.close(); world.close()                                  # doctest: +SKIP
    """

    runs: ClassVar = "thread"
    facts: ClassVar[Mapping[str, ExtraColumn]] = {**GAME_FACTS, "admissible": ExtraColumn("step")}

    def __init__(self, tasks: Sequence[str] | None = None, *, simplifications: str = "", max_turns: int = 100) -> None:
        check_counts("ScienceWorld", max_turns=max_turns)
        known = list(_scienceworld().constants.ID2TASK.values())
        self._names = known if tasks is None else list(tasks)
        unknown = [name for name in self._names if name not in known]
        if isinstance(tasks, str) or not self._names:
            raise InvalidInputError(f"ScienceWorld: tasks is {tasks!r}; give a list of names, such as [{known[0]!r}]")
        if unknown:
            hint = near_names(str(unknown[0]), known, f"use one of: {', '.join(known)}")
            raise InvalidInputError(f"ScienceWorld: tasks has {unknown[0]!r}, which does not exist; {hint}")
        self._simplifications = simplifications
        self._max_turns = max_turns
        self._variations: dict[Split, list[tuple[str, int]]] = {}
        self._simulators = ProgramPool(_start, _stop, _runs)
        try:
            self._list_variations()
        except BaseException:
            self.close()
            raise

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split: all first variations, then second ones; training repeats.

        Raises:
            InvalidInputError: a negative number, an unknown split, or more held-out tasks than there are.
        """
        variations = self._variations.get(split, [])
        limit = len(variations) if split == "held_out" else start + count
        chosen = [variations[number % len(variations)] for number in checked_range(count, split, start, limit)]
        return [
            Task(
                f"{name}/{split}/{variation}",
                f"ScienceWorld, task {name}, variation {variation}.",
                name,
                {"task": name, "variation": variation},
            )
            for name, variation in chosen
        ]

    def reset(self, task: Task, seed: int) -> GameEpisode:  # noqa: ARG002 -- no chance here; the protocol's argument
        """Start an episode of the task.

        Raises:
            InvalidInputError: the task is not one of this environment's.
        """
        name, variation = payload_of(task, "ScienceWorld", ["task", "variation"])
        simulator, _ = self._simulators.take()
        try:
            game = _ScienceGame(self, simulator, cast(str, name), cast(int, variation), self._simplifications)
        except BaseException:
            self.give_back(simulator)
            raise
        return GameEpisode(game, game.first, max_turns=self._max_turns)

    def give_back(self, simulator: Any) -> None:
        """Keep the simulator of a closed episode for the next one."""
        self._simulators.give_back(simulator)

    def close(self) -> None:
        """End all simulators, including those of running episodes; a second call does nothing."""
        self._simulators.close()

    def _list_variations(self) -> None:
        simulator, _ = self._simulators.take()
        known = {"easy", *simulator.get_possible_simplifications()}
        if unknown := {word for word in self._simplifications.split(",") if word} - known:
            raise InvalidInputError(
                f"ScienceWorld: simplifications has {min(unknown)!r}; use some of {', '.join(sorted(known))}"
            )
        of_task: dict[Split, list[list[tuple[str, int]]]] = {"train": [], "held_out": []}
        for name in self._names:
            simulator.load(name, 0, "")
            of_task["train"].append([(name, number) for number in simulator.get_variations_train()])
            of_task["held_out"].append([(name, number) for number in simulator.get_variations_test()])
        self.give_back(simulator)
        for split, lists in of_task.items():
            longest = max(map(len, lists))
            self._variations[split] = [each[n] for n in range(longest) for each in lists if n < len(each)]


class _ScienceGame:
    def __init__(self, world: ScienceWorld, simulator: Any, name: str, variation: int, simplifications: str) -> None:
        self._world = world
        self._simulator = simulator
        self._open = True
        simulator.load(name, variation, simplifications)
        observation, self._facts = simulator.reset()
        self._score = self._facts["score"] / 100
        self._goal = " ".join(self._facts["taskDesc"].removeprefix("Task Description:").split())
        self.first = f"{self._goal}\n\n{observation.strip()}\n\n{self._facts['inv'].strip()}"

    def play(self, command: str) -> GameStep:
        observation, _, completed, self._facts = self._simulator.step(command)
        before, self._score = self._score, self._facts["score"] / 100
        return GameStep(
            observation.strip(),
            score=self._score,
            reward=self._score - before,
            terminated=bool(completed),
            success=self._score >= 1,
            refused=observation.startswith(_UNKNOWN),
            facts={"admissible": float(len(self._facts["valid"]))},
        )

    def state(self) -> str:
        return f"{self._goal}\n\n{self._facts['look'].strip()}\n\n{self._facts['inv'].strip()}"

    def close(self) -> None:
        if self._open:
            self._open = False
            self._world.give_back(self._simulator)


def _start() -> Any:
    if shutil.which("java") is None:
        raise MissingDependencyError(
            "ScienceWorld needs Java, version 8 or newer, as the program `java` on the PATH; install a JRE"
        )
    return _scienceworld().ScienceWorldEnv("", envStepLimit=_NO_LIMIT)


def _runs(simulator: Any) -> bool:
    return simulator._gateway.java_process.poll() is None  # noqa: SLF001 -- the package has no other way to look


def _stop(simulator: Any) -> None:
    """End the Java process, and close pipes that the package leaves open."""
    java = simulator._gateway.java_process  # noqa: SLF001 -- the package has no other way to wait for it
    with contextlib.suppress(Exception):  # whatever the package raises if Java died, it is over
        simulator.close()
    try:
        java.wait(10)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
    for pipe in (java.stdin, java.stdout, java.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    simulator._obj_tree_tempdir.cleanup()  # noqa: SLF001 -- see above


def _scienceworld() -> Any:
    try:
        import scienceworld
        import scienceworld.constants
    except ImportError as error:
        raise MissingDependencyError(
            "ScienceWorld needs the package scienceworld: pip install 'agentrl-core[scienceworld]'"
        ) from error
    return scienceworld
