"""Find out how each field of a record is treated on import and export: kept, changed, left out or refused.

`python tests/support/format_fields.py` writes the tables of docs/formats.md. A reader of another format
adds its fields to FORMATS.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chat_templates import byte_tokenizer

from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import (
    from_atif,
    from_chats,
    from_verifiers,
    to_atif,
    to_chats,
    to_verifiers,
)

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
# Renders all content of a message; tools and options come first.
TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{{ style if style is defined else '' }}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = byte_tokenizer(TEMPLATE)
Record = dict[str, Any]
NAMES = ("text", "image", "image_url", "function", "assistant")
"""Values that name a type."""
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="


@dataclass(frozen=True)
class FormatFields:
    """A format and its fields.

    Attributes:
        title: its name on the page.
        read: function from records to a batch.
        write: function from a batch to records of this format; None: it can only be read.
        record: a small record.
        fields: by place in the record, a value that no other field has.
    """

    title: str
    read: Callable[[Iterable[Mapping[str, Any]]], Batch]
    write: Callable[[Batch], Iterable[Record]] | None
    record: Record
    fields: Mapping[str, Any]

    def with_field(self, place: str, value: Any) -> Record:
        """Return the record with a value in some place."""
        record: Any = copy.deepcopy(self.record)
        *path, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
        holder = record
        for key in path:
            holder = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[key]
        holder[last] = copy.deepcopy(value)
        return record


CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
TOOL = {"type": "function", "function": {"name": "look", "description": "looks at a city", "parameters": {}}}
CHATS = FormatFields(
    "OpenAI chats",
    lambda records: from_chats(records, TOKENIZER),
    to_chats,
    {
        "messages": [
            {"role": "user", "content": "how warm?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call-1", "content": "4 degrees"},
            {"role": "assistant", "content": "Cold."},
        ]
    },
    {
        "messages.0.content": "what is a heron?",
        "messages.0.content as texts in parts": [
            {"type": "text", "text": "a heron"},
            {"type": "text", "text": "flies"},
        ],
        "messages.0.content with an image": [{"type": "image_url", "image_url": {"url": PIXEL}}],
        "messages.2.content of a tool with an image": [{"type": "image_url", "image_url": {"url": PIXEL}}],
        "messages.0.content with an image of a file or the network": [
            {"type": "image_url", "image_url": {"url": "https://example.org/heron.png"}}
        ],
        "messages.0.role": "developer",
        "messages.0.name": "heron-name",
        "messages.1.reasoning_content": "a heron's reasoning",
        "messages.1.reasoning": "a heron's other reasoning",
        "messages.1.weight": 0,
        "messages.1.weight between 0 and 1": 0.5,
        "messages.1.timestamp": "heron-time",
        "messages.1.tool_calls.0.id": "heron-call",
        "messages.1.tool_calls.0.function.name": "heron_tool",
        "messages.1.tool_calls.0.function.arguments": '{"bird": "heron-argument"}',
        "messages.1.tool_calls.0.function.arguments that are not an object": "heron, not JSON",
        "messages.2.name of a tool": "heron_tool_name",
        "messages.2.tool_call_id": "heron-result",
        "messages.3 with a refusal": {"role": "assistant", "content": None, "refusal": "a heron's refusal"},
        "tools": [{**TOOL, "function": {**TOOL["function"], "description": "heron-description"}}],
        "tools as JSON text": '[{"type": "function", "function": {"name": "look", "description": "heron-text"}}]',
        "chat_template_kwargs": {"style": "heron-style"},
        "task": "heron-task",
        "group": "heron-group",
        "reward": 0.3,
        "success": True,
        "step_rewards": [0.7, 0.9],
        "any other key": {"nest": "heron-key"},
    },
)
IDS = {"prompt_token_ids": [71, 72], "completion_token_ids": [73, 74], "logprobs": [-0.1, -0.7]}
ATIF = FormatFields(
    "ATIF 1.7",
    from_atif,
    to_atif,
    {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "a", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "how warm?"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "I look.",
                "tool_calls": [{"tool_call_id": "call-1", "function_name": "look", "arguments": {"city": "Oslo"}}],
                "observation": {"results": [{"source_call_id": "call-1", "content": "4 degrees"}]},
                "metrics": IDS,
            },
            {"step_id": 3, "source": "agent", "message": "I wait.", "llm_call_count": 0},
            {"step_id": 4, "source": "agent", "message": "Hm.", "is_copied_context": True},
        ],
    },
    {
        "session_id": "heron-session",
        "trajectory_id": "heron-trajectory",
        "agent.name": "heron-agent",
        "agent.model_name": "heron-model",
        "agent.tool_definitions": [{**TOOL, "function": {**TOOL["function"], "description": "heron-definition"}}],
        "agent.extra": {"nest": "heron-agent-extra"},
        "steps.0.source": "system",
        "steps.0.timestamp": "2025-01-02T03:04:05Z",
        "steps.0.message": "what is a heron?",
        "steps.0.message as texts in parts": [{"type": "text", "text": "a heron"}, {"type": "text", "text": "flies"}],
        "steps.0.message with an image": [{"type": "image", "source": {"media_type": "image/gif", "path": PIXEL}}],
        "steps.0.message with an image of a file or the network": [
            {"type": "image", "source": {"media_type": "image/png", "path": "heron.png"}}
        ],
        "steps.1.model_name": "heron-step-model",
        "steps.1.reasoning_effort": "heron-effort",
        "steps.1.reasoning_content": "a heron's reasoning",
        "steps.1.tool_calls.0.tool_call_id": "heron-call",
        "steps.1.tool_calls.0.function_name": "heron_tool",
        "steps.1.tool_calls.0.arguments": {"bird": "heron-argument"},
        "steps.1.tool_calls.0.extra": {"nest": "heron-call-extra"},
        "steps.1.observation.results.0.content": "a heron's result",
        "steps.1.observation.results.0.content with an image": [
            {"type": "image", "source": {"media_type": "image/gif", "path": PIXEL}}
        ],
        "steps.1.observation.results.0.subagent_trajectory_ref": [{"trajectory_id": "heron-ref"}],
        "steps.1.observation.results.0.extra": {"nest": "heron-result-extra"},
        "steps.1.metrics.prompt_token_ids": [81, 82, 83],
        "steps.1.metrics.completion_token_ids": [84, 85],
        "steps.1.metrics.logprobs": [-0.2, -0.30000000000000004],
        "steps.1.metrics.prompt_tokens": 7301,
        "steps.1.metrics.cost_usd": 0.0123,
        "steps.1.metrics.extra": {"nest": "heron-metrics-extra"},
        "steps.1.llm_call_count above 1": 2,
        "steps.1.extra.reward": 0.9,
        "steps.1.extra": {"nest": "heron-step-extra"},
        "steps.2.llm_call_count": 0,
        "steps.3.is_copied_context": True,
        "notes": "heron-notes",
        "final_metrics": {"total_cost_usd": 0.0456},
        "extra.task": "heron-task",
        "extra.group": "heron-group",
        "extra.reward": 0.3,
        "extra.success": True,
        "extra": {"nest": "heron-extra"},
        "continued_trajectory_ref": "heron-continued",
        "subagent_trajectories": [{"trajectory_id": "heron-sub"}],
    },
)
VERIFIERS = FormatFields(
    "traces of verifiers",
    from_verifiers,
    to_verifiers,
    {
        "version": 1,
        "task": {"type": "T", "data": {}, "key": "t"},
        "nodes": [
            {
                "parent": None,
                "message": {"role": "user", "content": "how warm?"},
                "token_ids": [1, 2],
                "mask": [False] * 2,
            },
            {
                "parent": 0,
                "message": {"role": "assistant", "content": "Cold."},
                "sampled": True,
                "token_ids": [3, 4],
                "mask": [False, True],
                "logprobs": [-0.1],
            },
        ],
        "rewards": {"right": {"score": 0.5, "weight": 1.0}},
    },
    {
        "id": "heron-id",
        "task.key": "heron-task",
        "task.data": {"nest": "heron-data"},
        "agent": {"name": "heron-agent"},
        "tools": [{**TOOL, "function": {**TOOL["function"], "description": "heron-description"}}],
        "nodes.0.message.content": "what is a heron?",
        "nodes.0.message.content with an image": [{"type": "image_url", "image_url": {"url": PIXEL}}],
        "nodes.0.token_ids": [81, 82],
        "nodes.1.message.reasoning_content": "a heron's reasoning",
        "nodes.1.logprobs": [-0.30000000000000004],
        "nodes.1.finish_reason": "heron-finish",
        "nodes.1.usage": {"nest": "heron-usage"},
        "rewards.right.score": 0.3,
        "rewards.right.why": "heron-why",
        "metrics": {"nest": "heron-metrics"},
        "info": {"nest": "heron-info"},
        "info.step_rewards": [0.9],
        "stop_condition": "heron-stop",
        "timing": {"nest": "heron-timing"},
        "errors": [{"nest": "heron-error"}],
    },
)
FORMATS = (CHATS, ATIF, VERIFIERS)


def outcome(source: FormatFields, place: str, value: Any, out: FormatFields) -> str:
    """Return how a field of one format is treated on export in another."""
    record = source.with_field(place.partition(" ")[0] if place in source.fields else place, value)
    if place == "any other key":
        record = {**source.record, "heron": value}
    try:
        assert out.write is not None
        [exported] = out.write(source.read([record]))
    except (UnsupportedError, InvalidInputError):
        return "refused"
    if source is out:
        return "kept" if exported == record or _without_tokens(exported, record) else "changed"
    leaves, expected = (
        list(_leaves(exported)),
        [leaf for leaf in _leaves(value) if leaf not in (0, True, *NAMES, None, {})],
    )
    if not expected:
        return "kept" if exported != next(iter(out.write(source.read([source.record])))) else "left out"
    if all(leaf in leaves for leaf in expected):
        return "kept"
    texts = "\n".join(str(leaf) for leaf in leaves)
    parts = [part for leaf in expected for part in _leaves(_from_json(leaf))]
    return "changed" if all(str(part) in texts for part in parts) else "left out"


def _from_json(leaf: Any) -> Any:
    try:
        return json.loads(leaf)
    except (TypeError, ValueError):
        return leaf


def _without_tokens(exported: Record, record: Record) -> bool:
    """Return whether a record came back, at most with tokens added."""
    bare = copy.deepcopy(exported)
    for step, before in zip(bare.get("steps", ()), record.get("steps", ()), strict=True):
        metric_names = (before.get("metrics") or {}).keys()
        if "metrics" in step:
            step["metrics"] = {name: value for name, value in step["metrics"].items() if name in metric_names}
            if not metric_names and "metrics" not in before:
                del step["metrics"]
    return bare == record


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def tables() -> str:
    """Return the tables of the page."""
    outs = [each for each in FORMATS if each.write is not None]
    lines: list[str] = []
    for source in FORMATS:
        lines += [f"## {source.title[0].upper()}{source.title[1:]}", ""]
        lines += [f"| field | {' | '.join(f'as {out.title}' for out in outs)} |", "|---" * (len(outs) + 1) + "|"]
        for place, value in source.fields.items():
            field, _, more = place.partition(" ")
            words = ".".join("*" if key.isdecimal() else key for key in field.split(".")).replace(".*", "[]")
            label = place if place == "any other key" else f"`{words}`" + (f" {more}" if more else "")
            lines.append(f"| {label} | {' | '.join(outcome(source, place, value, out) for out in outs)} |")
        lines.append("")
    return "\n".join(lines)


INTRODUCTION = """# Fields of other formats

To see which fields survive an import or export, find your format below. Each table lists how the fields of a chat, an
ATIF trajectory or a trace of verifiers are treated by an import (`from_chats`, `from_atif`, `from_verifiers`) and by an
export (`to_chats`, `to_atif`, `to_verifiers`). The tables are generated from the behaviour of these functions.

- *kept*: the export has the value. An export in the format of the import equals the imported record.
- *changed*: the export has the value in another form, for example arguments as an object instead of JSON text.
- *left out*: the export does not have the value. The batch keeps it, and an export in the format of the import has it.
- *refused*: an error gives the reason before anything is stored or written.

The values 0, false, null, empty texts and empty lists are kept as well. NaN and infinity, which JSON does not have, are
exported as null.

"""


def page() -> str:
    """Return the text of the page."""
    return INTRODUCTION + tables()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
