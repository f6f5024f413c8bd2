"""Keep an imported record unchanged, so that its trajectory can be exported as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_core.engine.chat_messages import plain_tools
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.atif_steps import messages_of

CHATS, ATIF, VERIFIERS = "chats", "atif", "verifiers"
FORMATS = (CHATS, ATIF, VERIFIERS)
"""The formats whose records are stored."""
CARRIED = "agentrl"
"""The entry of a record that has the fields of other formats, by the formats' names."""

Record = Mapping[str, Any]

# The fields of a record that its messages represent, also in another format.
_REPRESENTED: Mapping[str, tuple[str, ...]] = {
    CHATS: ("messages", "tools", "task", "group", "reward", "success", "step_rewards"),
    ATIF: ("steps", "schema_version"),
    VERIFIERS: ("nodes", "tools", "version", "rewards"),
}


def kept(format_name: str, record: Record) -> dict[str, Any]:
    """Return an imported record in the form stored in column `info` of its trajectory."""
    return {"imported": {"format": format_name, "record": record}}


def kept_in(info: Mapping[str, Any]) -> tuple[str, Record]:
    """Return format and record stored in `info`; ("", {}) if there is none."""
    imported = info.get("imported")
    if (
        isinstance(imported, Mapping)
        and imported.get("format") in FORMATS
        and isinstance(imported.get("record"), Mapping)
    ):
        return str(imported["format"]), imported["record"]
    return "", {}


def messages_and_tools(format_name: str, record: Record) -> tuple[Sequence[Mapping[str, Any]], Any]:
    """Return the messages and the tools of a record."""
    if format_name == ATIF:
        return messages_of(record, "the record")[0], object_of(record, "agent").get("tool_definitions") or ()
    if format_name == VERIFIERS:
        return [_unsampled(node) for node in record.get("nodes") or ()], record.get("tools") or ()
    return record["messages"], plain_tools(record.get("tools") or (), "the record")


def _unsampled(node: Record) -> Record:
    """Return the message of a node; an answer that was not sampled has `weight` 0."""
    message: Record = node["message"]
    return message if node.get("sampled") or message.get("role") != "assistant" else {**message, "weight": 0}


def names_of(format_name: str, record: Record) -> tuple[str | None, str | None]:
    """Return the task and the group that a record names, None for each that is missing or blank."""
    if format_name == ATIF:
        extra = object_of(record, "extra")
        task, group = extra.get("task"), extra.get("group")
        task = record.get("session_id") if task is None or not str(task).strip() else task
    elif format_name == VERIFIERS:
        task, group = object_of(record, "task"), object_of(object_of(record, "info"), CARRIED).get("group")
        task = task.get("key") or task.get("hash") or None
    else:
        task, group = record.get("task"), record.get("group")
    names = [None if name is None or not str(name).strip() else str(name) for name in (task, group)]
    return names[0], names[1]


def carried(target: str, format_name: str, record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a record to carry to another format: those of the target format, and those of others.

    Fields of other formats are stored under the name of their format, in the entry `agentrl` of a chat, of `extra` in
    ATIF or of `info` in verifiers. Fields that a record already has for other formats are preserved.

    Args:
        target: the format to export to.
        format_name: format of the record; "" if it has none.
        record: the imported record.

    Returns:
        The fields that the record has for the target itself, and the entry with those of other formats.
    """
    rest = {name: value for name, value in record.items() if name not in _REPRESENTED.get(format_name, ())}
    slot = {ATIF: "extra", VERIFIERS: "info"}.get(format_name)
    inner = rest if slot is None else object_of(rest, slot)
    others: dict[str, Any] = {}
    if isinstance(inner.get(CARRIED), Mapping):  # otherwise it is a field of the record itself
        others = {name: value for name, value in inner.pop(CARRIED).items() if isinstance(value, Mapping)}
    if slot is not None and slot in rest:
        rest[slot] = inner
    kept_records = others | ({format_name: rest} if rest else {})
    fields = dict(kept_records.pop(target, {}))
    return fields, {CARRIED: kept_records} if kept_records else {}


def changed(format_name: str, record: Record, stored: Record) -> dict[str, Any]:
    """Return the facts of a trajectory that differ from those of its imported record.

    Args:
        format_name: format of the record.
        record: the imported record.
        stored: `task`, `group`, `reward` and `success` in the batch.
    """
    holder = object_of(record, "extra") if format_name == ATIF else record
    task, group = names_of(format_name, record)
    recorded = {
        "task": stored["task"] if task is None else task,
        "group": stored["task"] if group is None else group,
        "reward": as_given(holder.get("reward"), stored["reward"]),
        "success": holder.get("success"),
    }
    differs = {name: value for name, value in stored.items() if name in ("task", "group") and recorded[name] != value}
    if recorded["reward"] != holder.get("reward"):
        differs["reward"] = stored["reward"]
    if recorded["success"] != stored["success"]:
        differs["success"] = stored["success"]
    return differs


def object_of(record: Record, name: str, place: str = "") -> dict[str, Any]:
    """Return the object in a field of a record; empty if the field is missing or null.

    Args:
        record: the record.
        name: name of the field.
        place: name of the record in errors, such as `trajectory 3, step 2`.

    Raises:
        InvalidInputError: the field is not an object.
    """
    value = record.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInputError(f"{place and f'{place}: '}{name} is {value!r:.60}; give an object")
    return dict(value or {})


def as_given(given: Any, stored: Any) -> Any:
    """Return a record's number if it equals the stored one as float32, otherwise the stored one.

    Example:
        >>> from agentrl_core.integrations.trajectories.original_record import as_given
        >>> as_given(0.1, 0.10000000149011612), as_given(None, None), as_given(1, 0.5)
        (0.1, None, 0.5)
    """
    if stored is None or given is None:
        return stored
    return given if np.float32(given) == np.float32(stored) else stored
