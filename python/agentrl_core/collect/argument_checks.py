"""Check the arguments of a collector before anything is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.recorded_episode import EnvironmentHandle
from agentrl_core.component.schedule import Schedule
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine
from agentrl_core.env.base import Environment, Split, Task
from agentrl_core.env.task_check import task_problems
from agentrl_core.exceptions import DataError, InvalidInputError
from agentrl_core.recipe import Recipe
from agentrl_core.select.pool import MixedTasks
from agentrl_core.update.check_sampling import warn_of_staleness


def check_parts(engine: object, environment: object, recipe: object, store: object) -> None:
    """Refuse values that are not an engine, environment, recipe or store, before they are used."""
    for name, given, methods, remedy in (
        ("engine", engine, ("generate", "chat"), "give an engine, such as engine.Transformers(model, tokenizer)"),
        ("environment", environment, ("tasks", "reset"), "give an object with the methods of env.Environment"),
    ):
        if isinstance(given, Mapping) and not given:
            raise InvalidInputError(f"Collector: {name}={given!r} is empty; {remedy}, or a dict of them by name")
        parts: Iterable[tuple[object, object]] = given.items() if isinstance(given, Mapping) else [(None, given)]
        for key, value in parts:
            for method in methods:
                if not hasattr(value, method):
                    place = name if key is None else f"{name}[{key!r}]"
                    raise InvalidInputError(f"Collector: {place}={value!r:.80} has no {method!r}; {remedy}")
    if not isinstance(recipe, Recipe):
        remedy = f"recipes.get({recipe!r})" if isinstance(recipe, str) else "recipes.GRPO"
        raise InvalidInputError(f"Collector: recipe={recipe!r:.80} is not a Recipe; give one, such as {remedy}")
    if store is not None and not isinstance(store, Store):
        path = repr(str(store)) if isinstance(store, (str, Path)) else "path"
        raise InvalidInputError(f"Collector: store={store!r:.80} is not a Store; give Store.open({path}), or None")


def check_ahead(engines: Mapping[str, Engine], staleness: object) -> None:
    """Refuse a staleness that is not an integer of at least 0; above 0, also engines that share the trained weights."""
    if isinstance(staleness, bool) or not isinstance(staleness, Integral) or int(staleness) < 0:
        raise InvalidInputError(f"Collector: staleness={staleness!r}; give a whole number of at least 0")
    for name, engine in engines.items() if staleness else ():
        if getattr(engine, "shares_parameters", False):
            raise InvalidInputError(
                f"Collector: engine {name!r} samples from the tensors that the optimizer changes, which "
                f"staleness={staleness} does not allow; use staleness=0, or give the engine a copy of the weights "
                "with engine.Transformers(model, tokenizer, copy=True) and call its update_weights(model, version=...) "
                "after each iteration"
            )


def check_cut(
    cut: object, recipe: Recipe, worlds: Mapping[str, EnvironmentHandle], staleness: int, **limits: Any
) -> None:
    """Refuse an invalid batch policy, and settings that it does not work with.

    Warns if the recipe trains stale tokens without a correction.
    """
    if not isinstance(cut, BatchPolicy):
        raise InvalidInputError(f"Collector: batch_policy={cut!r}; give a collect.BatchPolicy")
    cut.check(recipe, worlds, **limits)
    if staleness or not cut.is_synchronous:
        warn_of_staleness(recipe)


def check_concurrency(concurrency: object, worlds: Sequence[str]) -> None:
    """Refuse an invalid number of branches, or one missing for an environment."""
    if not isinstance(concurrency, Mapping):
        check_whole("Collector", concurrency=concurrency)
        return
    if sorted(concurrency) != sorted(worlds):
        raise InvalidInputError(
            f"Collector: concurrency={concurrency!r}; give a number for each environment ({', '.join(worlds)}), or one "
            "for all of them"
        )
    check_whole("Collector", **{f"concurrency[{name!r}]": number for name, number in concurrency.items()})


def check_limits(call_seconds: object, **limits: object) -> None:
    """Refuse limits other than None, a `Schedule`, an integer above 0 or, for `call_seconds`, any number above 0."""
    for name, value in limits.items():
        if value is not None and not isinstance(value, Schedule):
            check_whole("Collector", **{name: value})
    if call_seconds is None or isinstance(call_seconds, Schedule):
        return
    if isinstance(call_seconds, bool) or not isinstance(call_seconds, Real) or not cast("float", call_seconds) > 0:
        raise InvalidInputError(f"Collector: call_seconds={call_seconds!r}; give a number of seconds above 0, or None")


def check_seed(seed: object) -> None:
    """Refuse seeds other than an integer of 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(1 << 63) <= int(seed) < 1 << 63:
        raise InvalidInputError(f"Collector: seed={str(seed)[:80]}; give a whole number from -2^63 to 2^63 - 1")


def check_whole(place: str, **numbers: object) -> None:
    """Refuse values other than integers of at least 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
            raise InvalidInputError(f"{place}: {name}={value!r}; give a whole number of at least 1")


def checked_tasks(environment: Environment, count: int, split: Split) -> Sequence[Task]:
    """Return the checked tasks of a split; of generated tasks only the first is checked here, others when selected."""
    tasks: Any = environment.tasks(count, split=split)
    name = type(environment).__name__
    if isinstance(tasks, (str, Mapping)) or not (hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")):
        raise DataError(f"environment {name}: tasks({count}) returned {tasks!r:.80}; return a list or sequence of Task")
    if not len(tasks) and not getattr(environment, "imagined", False):  # a world model takes those of others
        raise DataError(f"environment {name}: tasks({count}, split={split!r}) returned no task; return at least one")
    problem = next(task_problems(tasks if isinstance(tasks, list) else tasks[:1]), None)
    if problem is not None:
        raise DataError(f"environment {name}: tasks({count}, split={split!r})[{problem[0]}] {problem[1]}")
    return cast("Sequence[Task]", tasks)


def mixed_tasks(
    worlds: Mapping[str, EnvironmentHandle], count: int, lock: AbstractContextManager[object]
) -> MixedTasks:
    """Return the training tasks of several worlds, each with its world; `lock` is the lock for reading tasks."""
    with lock:
        tasks = {name: checked_tasks(world.environment, count, "train") for name, world in worlds.items()}
    if len(tasks) > 1:
        check_apart(tasks)
    return MixedTasks(tasks, lock)


def check_chosen(chosen: Sequence[tuple[str, Task]]) -> None:
    """Refuse selected tasks that cannot be used, or different ones with one id: generated tasks are first seen here."""
    for place, problem in task_problems([task for _, task in chosen]):
        raise DataError(f"environment {chosen[place][0]!r}: a selected task {problem}")
    worlds: dict[str, list[Task]] = {}
    for name, task in chosen:
        worlds.setdefault(name, []).append(task)
    if len(worlds) > 1:
        check_apart(worlds)


def check_apart(tasks: Mapping[str, Sequence[Task]]) -> None:
    """Refuse environments that share a task id. Only lists of tasks are compared, not generated tasks."""
    seen: dict[str, str] = {}
    for name, each in tasks.items():
        # Generated tasks are not created for the comparison.
        for task in each if isinstance(each, list) else ():
            if seen.setdefault(task.task_id, name) != name:
                raise InvalidInputError(
                    f"environments {seen[task.task_id]!r} and {name!r} both have a task {task.task_id!r}; include the "
                    f"environment's name in task ids"
                )
