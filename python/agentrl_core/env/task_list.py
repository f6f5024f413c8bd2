"""Lists of tasks, split into training and held-out tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from agentrl_core.env.base import Split, Task
from agentrl_core.env.task_check import task_problems
from agentrl_core.env.text_game import checked_range
from agentrl_core.exceptions import InvalidInputError


class TaskList:
    """Tasks by split and by id. The training list repeats without end; the held-out list does not.

    Args:
        title: title of the environment, for messages.
        tasks: the training tasks, or a mapping of splits to tasks.

    Raises:
        InvalidInputError: there is no training task, a task is invalid, or an id occurs twice.
    """

    def __init__(self, title: str, tasks: Sequence[Task] | Mapping[Split, Sequence[Task]]) -> None:
        by_split = tasks if isinstance(tasks, Mapping) else {"train": tasks}
        self._title = title
        self._tasks: dict[Split, list[Task]] = {
            "train": list(by_split.get("train", ())),
            "held_out": list(by_split.get("held_out", ())),
        }
        if not self._tasks["train"]:
            raise InvalidInputError(f"{title}: tasks has no training task; give at least one")
        for split, each in self._tasks.items():
            for place, problem in task_problems(each):
                raise InvalidInputError(f"{title}: tasks[{split!r}][{place}] {problem}")
        counts = Counter(task.task_id for each in self._tasks.values() for task in each)
        if (repeated := next((name for name, count in counts.items() if count > 1), None)) is not None:
            raise InvalidInputError(f"{title}: two tasks have the task_id {repeated!r}; give each its own")
        self._by_id = {task.task_id: task for each in self._tasks.values() for task in each}

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split; see `Environment.tasks`."""
        limit = len(self._tasks["held_out"]) if split == "held_out" else start + count
        numbers = checked_range(count, split, start, limit)
        tasks = self._tasks[split]
        return [tasks[number % len(tasks)] for number in numbers]

    def task(self, task_id: str) -> Task:
        """Return the task with an id.

        Raises:
            InvalidInputError: there is no such task.
        """
        if task_id not in self._by_id:
            raise InvalidInputError(f"task: {task_id!r} is not a task of this {self._title}; give an id of tasks()")
        return self._by_id[task_id]
