"""Condensations of OpenHands, and the events that the model reads after them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentrl_core.integrations.trajectories.readers.files import refuse

Event = tuple[Mapping[str, Any], str]
"""An event and its place, for errors."""

_KEEP_BEFORE = "keep the events before this one, whose answers are complete"


@dataclass(frozen=True)
class Condensation:
    """Effect of a condensation on a history.

    Attributes:
        forgotten: ids of the events that the model no longer reads.
        summary: text of a user's message that replaces them; None if there is none.
        offset: number of messages before the summary.
        of_sdk: whether the event is of the SDK.
    """

    forgotten: Collection[object]
    summary: str | None
    offset: int
    of_sdk: bool


def condensation_of(event: Mapping[str, Any], where: str) -> Condensation | None:
    """Return the condensation in an event; None if the event is not a condensation.

    Raises:
        UnsupportedError: the event does not determine what the model reads from now on.
    """
    kind, action = event.get("kind"), event.get("action")
    if kind == "CondensationSummaryEvent":
        refuse(where, "it is a summary without the condensation that places it", _KEEP_BEFORE)
    of_sdk = kind == "Condensation"
    if not of_sdk and (kind is not None or action != "condensation"):
        return None
    fields: Mapping[str, Any] = event if of_sdk else event.get("args") or {}
    forgotten = fields.get("forgotten_event_ids")
    begin, end = fields.get("forgotten_events_start_id"), fields.get("forgotten_events_end_id")
    if forgotten is None and isinstance(begin, int) and isinstance(end, int):
        forgotten = range(begin, end + 1)
    if not isinstance(forgotten, (list, range)):
        refuse(where, "the history was condensed, and the event does not name the events that it removed", _KEEP_BEFORE)
    summary, offset = fields.get("summary"), fields.get("summary_offset")
    is_place = offset is None or (type(offset) is int and offset >= 0)
    if (summary is None) != (offset is None) or not is_place:
        refuse(where, "the history was condensed, and the place of its summary is not in the file", _KEEP_BEFORE)
    ids: Collection[object] = forgotten if isinstance(forgotten, range) else frozenset(forgotten)
    return Condensation(ids, summary, offset or 0, of_sdk)


class Condensed:
    """The events that the model reads, as shortened by condensations.

    Args:
        events: all events of the session.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._ids = {event.get("id") for event, _ in events}
        self._read: list[tuple[Event, bool]] = []
        self._forgotten: set[object] = set()
        self._is_condensed = False

    def read(self, event: Mapping[str, Any], where: str, *, is_message: bool) -> None:
        """Add an event; `is_message` is true if the model reads it as a message, or as a part of one."""
        self._read.append(((event, where), is_message))

    def condense(self, found: Condensation, where: str) -> Sequence[Event]:
        """Return the events that the model reads after a condensation, including its summary.

        Raises:
            UnsupportedError: what the model reads then depends on the version of the program.
        """
        unknown = list(islice((each for each in found.forgotten if each not in self._ids), 1))
        if self._is_condensed and found.of_sdk:
            # The summary has an id that no event of the file has.
            if found.summary is None or not unknown:
                refuse(
                    where,
                    "the history was condensed again without the summary of the first time; what the model then read "
                    "depends on the version of the program",
                    _KEEP_BEFORE,
                )
        elif found.of_sdk and unknown:
            refuse(where, f"it removes the event {unknown[0]!r}, which is not in the file", _KEEP_BEFORE)
        self._is_condensed = True
        self._forgotten |= {each for each in self._ids if each in found.forgotten}
        remaining = [
            (event, is_message) for event, is_message in self._read if event[0].get("id") not in self._forgotten
        ]
        events = [event for event, _ in remaining]
        removed_responses = {
            response for (event, _), _ in self._read if event.get("id") in self._forgotten for response in _of(event)
        }
        if split := next(
            (response for event, _ in events for response in _of(event) if response in removed_responses), None
        ):
            refuse(
                where,
                f"it removes a part of the response {split!r}, but the program removes whole responses",
                _KEEP_BEFORE,
            )
        if found.summary is not None:
            events.insert(
                self._place(found, [is_message for _, is_message in remaining], where), _summary(found, where)
            )
        return events

    def _place(self, found: Condensation, are_messages: Sequence[bool], where: str) -> int:
        """Return the number of remaining events before the summary, from the program's count of messages."""
        if found.of_sdk:
            places = [place for place, is_message in enumerate(are_messages) if is_message]
            if found.offset > len(places):
                refuse(
                    where,
                    f"summary_offset is {found.offset}, more than the remaining messages ({len(places)})",
                    _KEEP_BEFORE,
                )
            return places[found.offset] if found.offset < len(places) else len(are_messages)
        if not all(are_messages[: found.offset]) or found.offset > len(are_messages):
            refuse(
                where,
                f"summary_offset is {found.offset}, and counts events that are not messages; the file does not show "
                "which ones, so the place of the summary is not known",
                _KEEP_BEFORE,
            )
        return found.offset


def _of(event: Mapping[str, Any]) -> list[object]:
    """Return the id of the response that an event is a call of, in a list; empty if it is not a call."""
    return [event["llm_response_id"]] if event.get("kind") == "ActionEvent" and event.get("llm_response_id") else []


def _summary(found: Condensation, where: str) -> Event:
    """Return the summary as an event, a user's message."""
    if found.of_sdk:
        return {"kind": "MessageEvent", "llm_message": {"role": "user", "content": found.summary}}, where
    return {"action": "message", "source": "user", "args": {"content": found.summary}}, where
