"""Spans of OpenTelemetry as stored by OTLP, by the console exporter, and by Agent Lightning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord

_SCALARS = ("stringValue", "boolValue", "doubleValue", "bytesValue")


@dataclass(frozen=True)
class RecordedSpan:
    """One span of OpenTelemetry.

    Attributes:
        where: file and place, for errors.
        trace: id of the trace; for Agent Lightning, rollout and attempt.
        name: name of the span.
        start: start time, for sorting.
        attributes: attributes of the span, and of events with details of a call.
        events: events of the span, each with `name` and `attributes`.
        failed: whether the status is an error.
    """

    where: str
    trace: tuple[str, str]
    name: str
    start: tuple[float, str]
    attributes: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    failed: bool


def is_span(value: object) -> bool:
    """Return whether a record is a span, or an export of several spans."""
    if not isinstance(value, Mapping):
        return False
    has_ids = "attributes" in value and ("trace_id" in value or "traceId" in value or _context(value) is not None)
    return has_ids or isinstance(value.get("resourceSpans"), list)


def spans_of(records: Iterator[FileRecord]) -> Iterator[RecordedSpan]:
    """Yield the spans in records.

    Raises:
        InvalidInputError: a record is not a span.
    """
    for record in records:
        row = record.mapping()
        if isinstance(row.get("resourceSpans"), list):
            for number, span in enumerate(_of_export(row["resourceSpans"])):
                yield _span(span, f"{record.where}, span {number}")
        elif is_span(row):
            yield _span(row, record.where)
        else:
            raise InvalidInputError(
                f"{record.where} is not a span (it has {', '.join(map(str, row))!r:.60}); give only spans, which have "
                "attributes and trace_id"
            )


def _of_export(resources: Sequence[Any]) -> Iterator[Any]:
    for resource in resources:
        for scope in resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans") or ():
            yield from scope.get("spans") or ()


def _span(span: Any, where: str) -> RecordedSpan:
    if not isinstance(span, Mapping):
        raise InvalidInputError(f"{where} is {span!r:.60}; give a span, which is an object with attributes")
    attributes = _attributes(span.get("attributes"), where)
    events = [
        {"name": event.get("name"), "attributes": _attributes(event.get("attributes"), where)}
        for event in span.get("events") or ()
    ]
    context = _context(span) or {}
    if span.get("rollout_id") is not None:
        trace = str(span["rollout_id"]), str(span.get("attempt_id") or "")
    else:
        trace = str(span.get("trace_id") or span.get("traceId") or context.get("trace_id")), ""
    status = span.get("status") or {}
    code = str(status.get("code", status.get("status_code")) if isinstance(status, Mapping) else status)
    return RecordedSpan(
        where,
        trace,
        str(span.get("name")),
        _start(span),
        {key: value for each in (*(event["attributes"] for event in events), attributes) for key, value in each.items()}
        if any(_has_details(event["attributes"]) for event in events)
        else attributes,
        events,
        code.rpartition(".")[2] in ("2", "ERROR", "STATUS_CODE_ERROR"),
    )


def _has_details(attributes: Mapping[str, Any]) -> bool:
    return any(name in attributes for name in ("gen_ai.input.messages", "gen_ai.output.messages"))


def _start(span: Mapping[str, Any]) -> tuple[float, str]:
    """Return a sort key of the start time: a number in Agent Lightning and OTLP, a text in the console export."""
    if span.get("sequence_id") is not None:
        return float(span["sequence_id"]), ""
    value = next((span[name] for name in ("startTimeUnixNano", "start_time") if span.get(name) is not None), 0)
    try:
        return float(value), ""
    except ValueError:
        return 0.0, str(value)


def _context(span: Mapping[str, Any]) -> Mapping[str, Any] | None:
    context = span.get("context")
    return context if isinstance(context, Mapping) and "trace_id" in context else None


def _attributes(attributes: Any, where: str) -> dict[str, Any]:
    if attributes is None:
        return {}
    if isinstance(attributes, Mapping):
        return dict(attributes)
    if isinstance(attributes, Sequence) and all(isinstance(each, Mapping) and "key" in each for each in attributes):
        return {each["key"]: _value(each.get("value")) for each in attributes}
    known = attributes if isinstance(attributes, list) else ()
    odd = next((at for at, each in enumerate(known) if not isinstance(each, Mapping) or "key" not in each), None)
    value = f" is {attributes!r:.60}" if odd is None else f"[{odd}] is {known[odd]!r:.60}"
    raise InvalidInputError(f"{where}: attributes{value}; give an object, or a list of objects with key and value")


def _value(value: Any) -> Any:
    """Return an OTLP value as a plain value."""
    if not isinstance(value, Mapping):
        return value
    for name in _SCALARS:
        if name in value:
            return value[name]
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(each) for each in value["arrayValue"].get("values") or ()]
    if "kvlistValue" in value:
        return {each["key"]: _value(each.get("value")) for each in value["kvlistValue"].get("values") or ()}
    return None
