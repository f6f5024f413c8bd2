"""Infer the form of a model's answers by rendering short answers with its chat template."""

from __future__ import annotations

import json
from typing import Any

from agentrl_core.engine.chat_messages import REASONING, Message
from agentrl_core.engine.chat_renderer import ANSWER, NAME
from agentrl_core.engine.chat_template import THOUGHT, ChatTemplate
from agentrl_core.env.answer_form import ANY_ID, ANY_NAME, HERMES, AnswerForm, CallForm

_OTHER, _FIRST, _SECOND = "agentrl_other_tool", "agentrl_first", "agentrl_second"
_TEXT, _NUMBER = "agentrl text", 7042
_IDS = ("agentrl01", "agentrl02")


def infer_answer_form(template: ChatTemplate) -> AnswerForm:
    """Return the form in which a model writes answers, inferred from its chat template.

    If the template does not render calls, they are in the form of Hermes, in which tools are described to the model.
    """
    plain = template.written(ANSWER)
    before = plain.partition(ANSWER["content"])[0]
    calls = _call_form(template) if template.renders_calls else HERMES
    opened = template.opening.rstrip().endswith("<think>")
    begin, end = _thought(template, before, calls)
    if not end:
        return AnswerForm(opened=opened, answer_begin=before, calls=calls)
    begin = begin if begin.strip() else "<think>" * opened
    return AnswerForm(begin, end, opened=opened, answer_begin=before, shows_thoughts=True, calls=calls)


def _thought(template: ChatTemplate, before: str, calls: CallForm | None) -> tuple[str, str]:
    """Return the texts before and after reasoning; empty if the template does not render reasoning."""
    thought = dict.fromkeys(REASONING, THOUGHT)
    begin, found, rest = template.written({**ANSWER, **thought}).partition(THOUGHT)
    end, answered, _ = rest.partition(ANSWER["content"])
    if found and answered and end.strip():
        return begin, end.removesuffix(before) if before.strip() else end
    if calls is None or not calls.begin.strip():
        return "", ""
    # Some templates render reasoning only before a call.
    begin, found, rest = _written(template, {_FIRST: _TEXT}, **thought).partition(THOUGHT)
    end = rest.partition(calls.begin.split()[0])[0]
    return (begin, end) if found and end.strip() else ("", "")


def _call_form(template: ChatTemplate) -> CallForm | None:
    """Return the form in which the template writes tool calls; None if the form is unknown."""
    one_call = _written(template, {_FIRST: _TEXT, _SECOND: _NUMBER})
    two_calls = _written(template, {_FIRST: _TEXT}, {_FIRST: _TEXT})
    place = one_call.find(_FIRST)
    if place < 0:
        return None
    return _as_object(one_call, two_calls) or _as_json(one_call, two_calls) or _as_pairs(template, one_call, two_calls)


def _written(template: ChatTemplate, *arguments: dict[str, Any], **more: str) -> str:
    """Return an answer with calls of these arguments as the model writes it; empty if the template refuses it."""
    calls: list[Message] = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": call_arguments}}
        for call_id, name, call_arguments in zip(_IDS, (NAME, _OTHER), arguments, strict=False)
    ]
    return template.written({"role": "assistant", "content": "", "tool_calls": calls, **more})


def _as_object(one_call: str, two_calls: str) -> CallForm | None:
    """Return the form of calls that are each one JSON object with name and arguments; None if they are not."""
    found = _object_around(one_call, one_call.find(NAME), 0)
    if found is None:
        return None
    begin, end, value = found
    keys = [next((key for key, inner in value.items() if inner == part), "") for part in _parts(value)]
    between = ""
    if (first := _object_around(two_calls, two_calls.find(NAME), 0)) and (
        second := _object_around(two_calls, two_calls.find(_OTHER), first[1])
    ):
        between = two_calls[first[1] : second[0]]
    return CallForm("object", _wild(one_call[:begin]), _wild(between), _wild(one_call[end:]), (keys[0], keys[1]))


def _parts(value: dict[str, Any]) -> tuple[object, object]:
    both_arguments: dict[str, Any] = {_FIRST: _TEXT, _SECOND: _NUMBER}
    return NAME, both_arguments if both_arguments in value.values() else {}


def _object_around(text: str, name: int, start: int) -> tuple[int, int, dict[str, Any]] | None:
    """Return begin, end and value of the first JSON object around position `name` that contains an object, or None."""
    place = text.find("{", start)
    while 0 <= place < name:
        try:
            value, end = json.JSONDecoder().raw_decode(text, place)
        except ValueError:
            value, end = None, 0
        if isinstance(value, dict) and end > name and any(isinstance(inner, dict) for inner in value.values()):
            return place, end, value
        place = text.find("{", place + 1)
    return None


def _as_json(one_call: str, two_calls: str) -> CallForm | None:
    """Return the form of calls whose arguments are JSON after the name; None if they are not."""
    spans = _named_json(one_call, NAME, 0)
    if spans is None:
        return None
    name, begin, end = spans
    between = ""
    if (first := _named_json(two_calls, NAME, 0)) and (second := _named_json(two_calls, _OTHER, first[2])):
        between = two_calls[first[2] : second[0]]
    after = _wild(one_call[name + len(NAME) : begin])
    return CallForm("json", _wild(one_call[:name]), _wild(between), _wild(one_call[end:]), after_name=after)


def _named_json(text: str, name: str, start: int) -> tuple[int, int, int] | None:
    argument = text.find(_FIRST, start)
    place, begin = text.rfind(name, start, argument), text.rfind("{", start, argument)
    if not 0 <= place < begin:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, begin)
    except ValueError:
        return None
    return place, begin, end


def _as_pairs(template: ChatTemplate, one_call: str, two_calls: str) -> CallForm | None:
    """Return the form of calls that write names and values of arguments one by one; None if they do not."""
    order = [_FIRST, _TEXT, _SECOND, str(_NUMBER)]
    places = [one_call.find(piece) for piece in order]
    name = one_call.rfind(NAME, 0, max(places[0], 0))
    if name < 0 or sorted(places) != places or places[0] < 0:
        return None
    ends = [place + len(piece) for place, piece in zip(places, order, strict=True)]
    after_number = one_call[ends[2] : places[3]]  # between a name and a value that is not a text
    quote = one_call[ends[0] : places[1]].removeprefix(after_number)
    between = ""
    first, other = two_calls.find(_TEXT), two_calls.rfind(_OTHER, 0, max(two_calls.rfind(_FIRST), 0))
    if 0 <= first < other:
        between = two_calls[first + len(_TEXT) : other].removeprefix(quote)
    single, pair = _written(template, {}), _written(template, {}, {})
    empty = single[single.rfind(NAME) + len(NAME) :] if NAME in single else ""
    empty_between = pair[pair.rfind(NAME) + len(NAME) : pair.find(_OTHER)] if _OTHER in pair else ""
    return CallForm(
        "pairs",
        _wild(one_call[:name]),
        _wild(between),
        _wild(one_call[ends[3] :]),
        after_name=_wild(one_call[name + len(NAME) : places[0]]),
        after_key=after_number,
        next_key=one_call[ends[1] : places[2]].removeprefix(quote),
        quote=quote,
        no_arguments=(_wild(empty_between), _wild(empty)),
    )


def _wild(piece: str) -> str:
    """Return a piece of a form with wildcards for the names and ids of calls."""
    for call_id in _IDS:
        piece = piece.replace(call_id, ANY_ID)
    return piece.replace(_OTHER, ANY_NAME).replace(NAME, ANY_NAME)
