"""Rollouts that verl stores in `rollout_data_dir`: texts decoded without special tokens, and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.decoded_texts import COMPLETION, PROMPT
from agentrl_core.integrations.trajectories.readers.files import FileRecord
from agentrl_core.integrations.trajectories.readers.messages import RECORD, HiddenReasoning, Message


def recognised(value: object) -> bool:
    """Return whether a record is a rollout that verl stored."""
    return isinstance(value, Mapping) and {"input", "output", "score", "step"} <= value.keys()


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- texts hide none
    """Yield prompt and completion of each rollout; rollouts of one prompt and step form a group."""
    tasks: dict[object, int] = {}
    for record in records:
        row, where = record.mapping(), record.where
        if not isinstance(row.get("input"), str) or not isinstance(row.get("output"), str):
            raise InvalidInputError(
                f"{where} lacks a text 'input' or 'output'; give a line that verl wrote to trainer.rollout_data_dir"
            )
        task = tasks.setdefault(row["input"], len(tasks))
        score = row.get("score")
        yield {
            RECORD: dict(row),
            PROMPT: row["input"],
            COMPLETION: row["output"],
            "task": str(task),
            "group": f"{row.get('step')}/{task}",
            **({"reward": float(score)} if isinstance(score, (int, float)) else {}),
        }
