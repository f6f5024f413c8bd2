# ruff: noqa: ARG005 -- what is broken is written as lambdas that take what a method takes
"""`env.check`: one broken environment for each error that it reports, and one that is correct."""

import asyncio
import json
import random
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from referee_game import GameWorld

from agentrl_core import env
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.exceptions import InvalidInputError


class Episode:
    """An episode that counts to three; an attribute of the environment can override every part."""

    def __init__(self, world, task, seed):
        self.world, self.task, self.seed = world, task, seed
        self.observation = f"begin {task.task_id} with {seed}"
        self.actions = []
        self.closed = 0

    def step(self, action):
        self.actions.append(action)
        return self.outcome(action)

    def outcome(self, action):
        number = len(self.actions)
        over = number == 3
        return StepResult(
            None if over else f"{number}: {action}",
            reward=float(number),
            terminated=over,
            success=over or None,
            facts={"count": float(number), **({"last": action} if over else {})},
        )

    def state_key(self):
        return json.dumps([self.task.task_id, self.actions]).encode()

    def close(self):
        self.closed += 1


class World:
    """A correct environment."""

    facts: ClassVar = {"count": ExtraColumn("step"), "last": ExtraColumn("trajectory", "key")}
    runs = "inline"
    episode = Episode

    def tasks(self, count, *, split="train", start=0):
        return [Task(f"{split} {number}", "?", "counting", {"n": number}) for number in range(start, start + count)]

    def reset(self, task, seed):
        return self.episode(self, task, seed)


def test_an_environment_that_breaks_nothing():
    report = env.check(World())
    assert (report.tasks, report.steps, report.ended, report.hints) == (3, 9, 3, ())


def test_every_episode_is_closed_twice():
    opened = []

    class Counting(World):
        def reset(self, task, seed):
            opened.append(Episode(self, task, seed))
            return opened[-1]

    env.check(Counting(), tasks=2)
    assert len(opened) >= 6
    assert {episode.closed for episode in opened} == {2}


def test_an_asynchronous_environment_inside_a_running_loop():
    class Slow(Episode):
        async def step(self, action):
            await asyncio.sleep(0)
            return super().step(action)

        async def close(self):
            await asyncio.sleep(0)

    class Patient(World):
        async def reset(self, task, seed):
            await asyncio.sleep(0)
            return Slow(self, task, seed)

    async def inside():
        return env.check(Patient())

    assert asyncio.run(inside()).steps == 9


class Resumable(World):
    """An environment with snapshots that can be restored."""

    def __init__(self):
        self.restored = []

    class episode(Episode):  # noqa: N801 -- overrides the attribute
        def snapshot(self):
            return json.dumps(self.actions).encode()

    def restore(self, task, seed, actions, snapshot):
        self.restored.append(snapshot is not None)
        episode = self.episode(self, task, seed)
        episode.actions = json.loads(snapshot) if snapshot else list(actions)
        return episode


def test_snapshots_are_restored():
    world = Resumable()
    env.check(world, tasks=1)
    assert sorted(world.restored) == [False, True]


def test_actions_may_be_a_function():
    calls = []

    def actions(task, number, observation):
        calls.append((task.task_id, number, observation))
        return "go"

    env.check(World(), tasks=1, actions=actions)
    assert calls == [("train 0", 0, "begin train 0 with 0"), ("train 0", 1, "1: go"), ("train 0", 2, "2: go")]


def test_hints_report_what_was_not_checked():
    class Endless(World):
        def tasks(self, count, *, split="train", start=0):
            if split != "train":
                raise ValueError("only training")
            return super().tasks(count, split=split, start=start)

        class episode(Episode):  # noqa: N801 -- see above
            def outcome(self, _action):
                return StepResult(f"{len(self.actions)}", facts={"count": 1.0})

    hints = "\n".join(env.check(Endless()).hints)
    for part in (
        "tasks(split='held_out') raises ValueError: only training",
        "'last' was not returned",
        "no episode ended",
    ):
        assert part in hints
    unlike = World()
    unlike.replayable = False
    assert "no episode was replayed" in env.check(unlike).hints[0]


def broken(**parts):
    """Return a World with other parts; names that begin with `episode_` replace parts of its episodes' class."""
    inner = {name.removeprefix("episode_"): part for name, part in parts.items() if name.startswith("episode_")}
    outer = {name: part for name, part in parts.items() if not name.startswith("episode_")}
    return type("Broken", (World,), {"episode": type("BrokenEpisode", (Episode,), inner), **outer})()


def outcomes(**fields):
    """Return episodes with other outcomes."""

    def outcome(self, action):
        result = Episode.outcome(self, action)
        return StepResult(**{**vars(result), **fields})

    return broken(episode_outcome=outcome)


counter = iter(range(1_000_000))


def tasks_of(change):
    def tasks(self, count, *, split="train", start=0):
        return change(World.tasks(self, count, split=split, start=start), split)

    return tasks


class SharedReset(World):
    """An environment that keeps the observations of all episodes; each reset starts them anew."""

    def reset(self, task, seed):
        self.count = 0
        return super().reset(task, seed)

    class episode(Episode):  # noqa: N801 -- see above
        def outcome(self, _action):
            self.world.count += 1
            over = len(self.actions) == 3
            return StepResult(f"{self.world.count}", terminated=over, facts={"count": 1.0, "last": "x"})


class InThreads(World):
    """An environment that works only in the thread that played first, like a library that is bound to its thread."""

    runs = "thread"

    def __init__(self):
        self.threads = set()

    def reset(self, task, seed):
        self.threads.add(threading.get_ident())
        episode = super().reset(task, seed)
        if len(self.threads) > 1:
            episode.observation = "garbled"
        return episode


class InProcesses(World):
    runs = "process"

    def __init__(self):
        self.open = threading.Lock()


class Forgetful(World):
    """An environment that loses its state from construction when it is pickled."""

    runs = "process"

    def __init__(self):
        self.word = "begin"

    def __getstate__(self):
        return {"word": "start"}

    def reset(self, task, seed):
        episode = super().reset(task, seed)
        episode.observation = self.word
        return episode


# Pickle finds them by their location.
InProcesses.__module__ = Forgetful.__module__ = __name__


def drawing(generator):
    def step(self, action):
        generator()
        return Episode.step(self, action)

    return step


def raising(message):
    def method(*_args, **_keywords):
        raise RuntimeError(message)

    return method


def restoring(change):
    def restore(self, task, seed, actions, snapshot):
        episode = self.episode(self, task, seed)
        episode.actions = change(list(actions), snapshot)
        return episode

    return restore


BROKEN = {
    # declarations
    "runs is 'gpu'; give one of": broken(runs="gpu"),
    "replayable is 1; give True or False": broken(replayable=1),
    "facts is a list; give a mapping": broken(facts=["count"]),
    "'my count' has a name that is not an identifier": broken(facts={**World.facts, "my count": ExtraColumn("step")}),
    "fact 'count' is 'step'; give ExtraColumn": broken(facts={**World.facts, "count": "step"}),
    # tasks
    r"tasks\(3\) returned <list_iterator.*; return a list or sequence of Task": broken(
        tasks=tasks_of(lambda tasks, _: iter(tasks))
    ),
    r"tasks\(3, split='held_out'\)\[0\] has task_id ''": broken(
        tasks=tasks_of(lambda tasks, split: tasks if split == "train" else [replace(tasks[0], task_id="")])
    ),
    r"tasks\(3\) returned 2 tasks; return 3": broken(tasks=tasks_of(lambda tasks, _: tasks[:2])),
    r"tasks\(3\)\[0\] has task_id 7; give a": broken(tasks=tasks_of(lambda t, _: [Task(7, "?", "d", None)] * len(t))),
    r"tasks\(\) returns other tasks in a second call": broken(
        tasks=tasks_of(lambda tasks, _: [Task(f"{t.task_id} {next(counter)}", "?", "d", None) for t in tasks])
    ),
    r"tasks\(2, start=1\) is not tasks\(3\)\[1:\]: number the tasks from start": broken(
        tasks=lambda self, count, *, split="train", start=0: World.tasks(self, count, split=split)
    ),
    r"tasks\(3\) raises RuntimeError: no disk: return 3 tasks": broken(tasks=raising("no disk")),
    "task 'train 0' is in both splits": broken(
        tasks=lambda self, count, *, split="train", start=0: World.tasks(self, count, start=start)
    ),
    r"payload of task 'train 0' is not plain JSON \(tuple\)": broken(
        tasks=tasks_of(lambda tasks, _: [Task(t.task_id, "?", "d", (1, 2)) for t in tasks])
    ),
    r"task\('train 0'\) raises KeyError": broken(task=lambda self, task_id: {}[task_id]),
    r"task\('train 0'\) returned another task": broken(task=lambda self, task_id: Task(task_id, "!", "d", None)),
    # episodes
    "reset of task 'train 0' raises RuntimeError: no room": broken(reset=raising("no room")),
    "the observation is 7; give a text or messages": broken(
        episode___init__=lambda self, *args: (Episode.__init__(self, *args), setattr(self, "observation", 7))[0]
    ),
    "message 0 of the observation is .*; give a dict with one of the roles": outcomes(observation=[{"role": "robot"}]),
    r"tools\[0\] of an episode is .*; give a JSON schema": broken(episode_tools=[{"name": {1, 2}}]),
    "step 0 of task 'train 0', action '<call>1.1</call>' raises RuntimeError: what": broken(
        episode_step=raising("what")
    ),
    r"returned \('text', 1.0\); return an env.StepResult": broken(episode_outcome=lambda self, action: ("text", 1.0)),
    "observation is None, but the episode continues": outcomes(observation=None),
    "reward is '1'; give a number or None": outcomes(reward="1"),
    "terminated is 0; give True or False": outcomes(terminated=0),
    "truncated is None; give True or False": outcomes(truncated=None),
    "flags is 'bad'; give an integer": outcomes(flags="bad"),
    "success is 1.0; give True, False or None": outcomes(success=1.0),
    "info is 'x'; give a mapping or None": outcomes(info="x"),
    "info .* is not JSON": outcomes(info={"x": object()}),
    "facts is .*; give a mapping or None": outcomes(facts=[1]),
    # facts
    "fact 'more' is returned but not declared": outcomes(facts={"more": 1.0}),
    "fact 'count' is 'one', but declared a number": outcomes(facts={"count": "one"}),
    "fact 'last' is 1.0, but declared a key": outcomes(facts={"last": 1.0}),
    "fact 'never' is declared, but in no StepResult": broken(facts={**World.facts, "never": ExtraColumn("step")}),
    # state keys
    r"state_key\(\) returned str; return bytes": broken(episode_state_key=lambda self: "state"),
    r"state_key\(\) is b'state' in every state though observations differ": broken(
        episode_state_key=lambda self: b"state"
    ),
    # again
    "played a second time, begins with": broken(
        episode___init__=lambda self, *args: (
            Episode.__init__(self, *args),
            setattr(self, "observation", f"{next(counter)}"),
        )[0]
    ),
    "played a second time, has another observation at step 0": broken(
        episode_outcome=lambda self, action: StepResult(
            f"{next(counter)}", terminated=len(self.actions) == 3, facts={"count": 1.0, "last": ""}
        )
    ),
    "played a second time, has another reward at step 0": broken(
        episode_outcome=lambda self, action: StepResult(
            "x", next(counter), terminated=len(self.actions) == 3, facts={"count": 1.0, "last": ""}
        )
    ),
    "played a second time, has another facts at step 0": broken(
        episode_outcome=lambda self, action: StepResult(
            "x", terminated=len(self.actions) == 3, facts={"count": float(next(counter)), "last": ""}
        )
    ),
    "has another state_key before step 0": broken(episode_state_key=lambda self: str(next(counter)).encode()),
    "side by side with others, .*; episodes must share no state": SharedReset(),
    "played in a thread beside others, .*; not safe in threads": InThreads(),
    "runs is 'process', but the environment cannot be pickled": InProcesses(),
    "played by a pickled copy of the environment, begins with 'start'": Forgetful(),
    # global generators
    "step moves a global random generator": broken(episode_step=drawing(random.random)),
    "moves a global random generator .random or numpy.random.": broken(episode_step=drawing(np.random.random)),
    # close, snapshot, restore
    r"a second close\(\) of the episode of task 'train 0' raises": broken(
        episode_close=lambda self: [][self.closed] if self.closed else setattr(self, "closed", 1)
    ),
    r"^- close\(\) of the episode of task 'train 0' raises RuntimeError: stuck": broken(episode_close=raising("stuck")),
    r"snapshot\(\) returned str; return bytes": broken(episode_snapshot=lambda self: "text", restore=restoring(list)),
    r"episodes have snapshot\(\), but the environment has no restore\(\)": broken(episode_snapshot=lambda self: b""),
    "restored from a snapshot after 1 actions, has another state_key": broken(
        episode_snapshot=lambda self: b"x",
        restore=restoring(lambda actions, snapshot: ["other"] if snapshot else actions),
    ),
    "restored without a snapshot after 1 actions, raises RuntimeError": broken(restore=raising("lost")),
}


@pytest.mark.parametrize("line", BROKEN)
def test_an_environment_that_breaks_the_protocol_is_reported(line):
    with pytest.raises(InvalidInputError, match=rf"(?m){line}") as raised:
        env.check(BROKEN[line])
    first, *lines = str(raised.value).splitlines()
    assert first.endswith("breaks the protocol of environments:")
    assert all(each.startswith("- ") for each in lines)


def test_repeated_nan_rewards_count_as_equal():
    assert env.check(outcomes(reward=float("nan"))).ended == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": 0}, "tasks is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"actions": []}, "actions is"),
        ({"actions": "look"}, "actions is 'look'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.check(World(), **arguments)


def test_an_episode_may_have_nothing_more_than_the_protocol():
    class Bare:
        def tasks(self, count, *, split="train", start=0):
            return World().tasks(count, split=split, start=start)

        def reset(self, task, seed):
            del seed
            keys = iter([b"0", b"1"])
            return SimpleNamespace(
                observation=task.question,
                step=lambda action: StepResult(reward=float(len(action)), terminated=True),
                state_key=lambda: next(keys),
            )

    assert env.check(Bare(), actions=["yes"]).ended == 3


def test_an_environment_of_several_agents_is_known() -> None:
    report = env.check(GameWorld(), actions=["1", "2"], steps=6)
    assert (report.tasks, report.steps, report.ended) == (3, 12, 3)

    class Silent(GameWorld):
        def reset(self, task: Any, seed: int) -> Any:
            game: Any = super().reset(task, seed)
            play = game.step
            game.step = lambda actions: {name: play(actions)[name] for name in ("two",)}
            return game

    with pytest.raises(InvalidInputError, match="the joint step has no result for agent 'one'"):
        env.check(Silent(), actions=["1", "2"])
