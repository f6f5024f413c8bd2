"""Files of other programs, written by tests, and the text that a batch of them trains."""

import json
from itertools import pairwise

import numpy as np
from chat_gallery import WRITES, gallery_tokenizer, of_family

from agentrl_core.integrations.trajectories import from_chats, read

TEMPLATES = ("qwen3", "glm4moe", "nemotron_3_nano")


def write_lines(path, rows, end="\n"):
    path.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    return path


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def call(name="weather", identity="c1", **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": identity, "type": "function", "function": function}


def assistant(content="", *calls, **more):
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def trained(chats, tokenizer):
    """Return the texts of the trained turns, and those of context-only turns."""
    batch = from_chats(chats, tokenizer)
    tokens = batch.column("token", "token")
    mask = batch.column("trainable", "token") if batch.has("trainable", "token") else np.ones(len(tokens), bool)
    texts = {True: [], False: []}
    for begin, end in pairwise(batch.offsets("token")):
        assert len(set(mask[begin:end].tolist())) == 1
        texts[bool(mask[begin])].append(tokenizer.decode(tokens[begin:end].tolist()))
    return texts[True], texts[False]


def written_texts(template, answers):
    """Model outputs for answers, by template, transcribed by hand."""
    writes = of_family(template, WRITES)
    return [
        writes.answer(
            {
                **answer,
                **(
                    {"tool_calls": [_with_text(call) for call in answer["tool_calls"]]}
                    if answer.get("tool_calls")
                    else {}
                ),
            }
        )
        for answer in answers
    ]


def _with_text(call):
    function = call["function"]
    arguments = function["arguments"]
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)},
    }


def check_trained(path, answers, others=(), templates=TEMPLATES, **options):
    """Check that exactly the answers are trained, with each template; the others are kept and not trained."""
    chats = list(read(path, **options))
    for template in templates:
        tokenizer = gallery_tokenizer(template)
        assert trained(chats, tokenizer) == (written_texts(template, answers), written_texts(template, others)), (
            template
        )
    return chats
