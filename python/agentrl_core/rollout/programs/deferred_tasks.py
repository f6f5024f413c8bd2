"""Tasks that programs defer to later iterations, in the table `decisions` of their batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from agentrl_core.data.forest import Operation
from agentrl_core.env.base import Message, Task
from agentrl_core.env.task_check import task_problem
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class DeferredTask:
    """A task that a program deferred (`Group.defer`).

    Attributes:
        task: the task.
        trajectory_id: the source trajectory, for `Prefix.stored`.
        turns: number of its turns to start after; None: at the prompt.
        messages: messages for the prompt.
    """

    task: Task
    trajectory_id: int
    turns: int | None
    messages: list[Message]


def deferred_tasks(batch: Batch) -> list[DeferredTask]:
    """Return the tasks that the programs of a batch deferred, in the order of their groups.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.rollout import deferred_tasks
        >>> deferred_tasks(arl.Forest().freeze())
        []
    """
    return [
        DeferredTask(Task(**payload["task"]), trajectory, payload["turns"], payload["messages"])
        for trajectory, payload in decision_payloads(batch, "resume")
        if "task" in payload
    ]


def decision_payloads(batch: Batch, operation: Operation) -> list[tuple[int, dict[str, Any]]]:
    """Return trajectory id and JSON payload of each decision of an operation that has a payload."""
    table, code = batch.decisions, get_args(Operation).index(operation)
    rows = zip(
        table.column("operation").tolist(), table.column("trajectory_id").tolist(), table.column("reason"), strict=True
    )
    return [
        (int(trajectory), json.loads(reason)) for row_code, trajectory, reason in rows if row_code == code and reason
    ]


def as_reason(task: Task, turns: int | None, messages: Sequence[Message]) -> str:
    """Encode a deferred task as JSON text for column `reason` of the table `decisions`.

    Raises:
        InvalidInputError: it does not consist of plain JSON values.
    """
    problem = task_problem(task)
    if problem is not None:
        raise InvalidInputError(f"defer: task {problem}")
    payload: dict[str, Any] = {"task": vars(task), "turns": turns, "messages": list(messages)}
    try:
        return json.dumps(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"defer: task {task.task_id!r:.80} has a payload or messages that cannot be kept: {error}; give numbers, "
            "texts, lists and tables of them"
        ) from None
