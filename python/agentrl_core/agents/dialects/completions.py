"""OpenAI's `/v1/completions`: a text or token ids, continued."""

from __future__ import annotations

import time
from collections.abc import Iterator

from agentrl_core.agents.dialects.chat import FLAG, NAME, OPENAI, TEXT, Event
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.request_fields import List, Object, either, whole
from agentrl_core.agents.upstream import ChatResponse
from agentrl_core.exceptions import InvalidInputError

_OURS = ("stream", "stream_options", "model", "user", "kv_transfer_params", "return_token_ids")

FIELDS = Object(
    OPENAI
    | {
        "prompt": either(NAME, List(whole(0), least=1)),
        "logprobs": whole(0),
        "echo": FLAG,
        "suffix": TEXT,
        "best_of": whole(1, 128),
    },
    required=("prompt",),
)
"""Rule of a body: a text or the ids of one prompt, and how to sample."""


def parse_request(body: Json) -> Json:
    """Convert a body to a request to the upstream's `/v1/completions`."""
    if body.get("echo"):
        raise InvalidInputError("echo is true; leave it out: the prompt's tokens are recorded without it")
    return {name: value for name, value in body.items() if name not in _OURS and value is not None}


def reply(answer: ChatResponse, body: Json, name: str) -> Json:
    """Convert an answer to the client's reply, a `text_completion`."""
    choices = [
        {
            "index": place,
            "text": choice.message["content"],
            "finish_reason": choice.finish_reason,
            "logprobs": choice.details,
        }
        for place, choice in enumerate(answer.choices)
    ]
    return {
        "id": f"cmpl-{name}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.get("model", ""),
        "choices": choices,
        "usage": answer.usage,
    }


def events(reply: Json, body: Json) -> Iterator[Event]:
    """Yield a reply as server-sent events, one `text_completion` for each choice."""
    for choice in reply["choices"]:
        yield None, {name: value for name, value in reply.items() if name != "usage"} | {"choices": [choice]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield None, reply | {"choices": []}
    yield None, None
