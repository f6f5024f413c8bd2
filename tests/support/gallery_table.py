"""Test every chat template of TRL's wheel with every chat of the gallery: list trained texts and refusals.

`python tests/support/gallery_table.py` prints the table. The expected trained texts come from two sources that import
nothing of the package: `chat_gallery.written_texts`, by hand, and the masks of TRL's own training templates.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
from chat_gallery import (
    CHATS,
    FOLDER,
    NAMES,
    REASONS,
    TRAINING,
    gallery_tokenizer,
    of_family,
    tools_of,
    wide,
    written_texts,
)

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.integrations.trajectories import from_chats

# TRL trains the header of a turn, empty thoughts and newlines after a turn; the model generates none of these.
HEADERS = (wide("<|Assistant|>"), wide("<|tool_outputs_end|>"), "<|start|>assistant")
# Endings of answers in history and of a text; and the ending of a call, which TRL does not train.
ENDS = {"gptoss": ("<|end|>", "<|return|>"), "phi3": ("<|endoftext|>",), "diffusion": ("<|tool_response>",), "": ()}
UNSAMPLED = ("<think>\n\n</think>\n\n", "<think></think>\n", "<think></think>", "<think>\n")
# Templates that do not render calls: for such an answer TRL trains only the end.
WITHOUT_CALLS = ("cohere", "deepseek_r1", "gemma3", "idefics", "llama3", "llava", "phi3", "qwen2_5_vl", "smolvlm")
DROPPED = "TRL masks the chat as history, in which the template drops reasoning"
INCOMPARABLE = {
    "function role": "TRL's template takes no function_call",
    "parts": "TRL's template does not join parts",
    "two answers": "TRL's mask covers both and the header between them",
    "developer": "TRL's template does not take the role",
} | dict.fromkeys((name for name in CHATS if "reasoning" in name), DROPPED)
INCOMPARABLE_OF = {
    "glm": {"system changes": "TRL ends the answer by the token of the system's message"},
    "gptoss": {"call and text": DROPPED, "calls in turn with texts": DROPPED},
    "": {},
}


def chat_of(name):
    return {"messages": CHATS[name]} | ({"tools": tools_of(name)} if tools_of(name) else {})


def turns(batch, tokenizer):
    """Return the texts of all answers, and whether each is trained."""
    offsets, tokens = batch.offsets("token"), batch.column("token", "token")
    bounds = list(pairwise(offsets))
    mask = batch.column("trainable", "token") if batch.has("trainable", "token") else np.ones(len(tokens), bool)
    assert all(len(set(mask[a:b].tolist())) == 1 for a, b in bounds)
    return [tokenizer.decode(tokens[a:b].tolist()) for a, b in bounds], [bool(mask[a]) for a, _ in bounds]


def cell(name, tokenizer, chat):
    """Return `trained` if the right text is trained, the reason if the chat is refused, or `WRONG` and both texts."""
    try:
        texts, trained = turns(from_chats([chat_of("answer"), chat_of(chat)], tokenizer), tokenizer)
    except UnsupportedError as error:
        if not re.match(r"chat 1, message \d", str(error)):
            return f"WRONG: {error}"
        return next((name for name, reason in REASONS.items() if re.search(reason, str(error))), f"WRONG: {error}")
    expected = [*written_texts(name, "answer"), *written_texts(name, chat)]
    answers = [message for key in ("answer", chat) for message in CHATS[key] if message["role"] == "assistant"]
    right = texts == expected and trained == [message.get("weight") != 0 for message in answers]
    return "trained" if right else f"WRONG: {texts} {trained}, and not {expected}"


def has_masks(name):
    """Return whether TRL has a training template."""
    return (FOLDER / f"{name}{TRAINING}.jinja").is_file()


def why_not_compared(name, chat):
    """Return why TRL's mask differs from the text that has to be trained; "": it does not."""
    calls = any("tool_calls" in message for message in CHATS[chat])
    if calls and any(name.startswith(family) for family in WITHOUT_CALLS):
        return "TRL's template does not render calls"
    return INCOMPARABLE.get(chat) or of_family(name, INCOMPARABLE_OF).get(chat, "")


def masked(name, tokenizer, chat):
    """Return the texts that TRL's training mask covers, without text that the model does not generate."""
    messages = json.loads(json.dumps(CHATS[chat]))
    parts = tokenizer.chat_template.count("['content'][0]") or "content'][0]['type']" in tokenizer.chat_template
    for message in messages:
        message["content"] = message["content"] or ""
        if parts:
            message["content"] = [{"type": "text", "text": message["content"]}]
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    rendered = tokenizer.apply_chat_template(
        messages,
        tools=tools_of(chat),
        chat_template=(FOLDER / f"{name}{TRAINING}.jinja").read_text(encoding="utf-8"),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    texts, run = [], []
    for token, covered in zip([*rendered["input_ids"], 0], [*rendered["assistant_masks"], 0], strict=True):
        if covered:
            run.append(token)
        elif run:
            texts.append(tokenizer.decode(run))
            run = []
    return sampled(name, texts)


def sampled(name, texts):
    """Return the parts of some texts that a model would sample, without surrounding spaces."""
    result = []
    for each in texts:
        text = each.strip()
        for header in HEADERS:
            text = text.removeprefix(header)
        text = text.strip()
        for thought in UNSAMPLED:
            text = text.removeprefix(thought)
        for end in of_family(name, ENDS):
            text = text.removesuffix(end)
        result.append(text.strip())
    return result


def table():
    """Return the table as text."""
    letters = {"trained": "+"} | dict(zip(REASONS, "rckxto", strict=True))
    lines = ["+ trained, as written by hand; refused: " + ", ".join(f"{letters[name]} {name}" for name in REASONS)]
    lines += [f"{number:3}  {chat}" for number, chat in enumerate(CHATS)]
    cells, masks = Counter(), Counter()
    for name in NAMES:
        tokenizer = gallery_tokenizer(name)
        row = {chat: cell(name, tokenizer, chat) for chat in CHATS}
        cells.update(value.partition(":")[0] for value in row.values())
        trained = [chat for chat in CHATS if has_masks(name) and row[chat] == "trained"]
        masks.update(why_not_compared(name, chat) or "compared" for chat in trained)
        lines.append(f"{name:24}" + "".join(letters.get(value, "!") for value in row.values()))
    total = f"{len(NAMES)} templates x {len(CHATS)} chats = {sum(cells.values())} cells: {dict(cells.most_common())}"
    return "\n".join([*lines, total, f"trained cells with a mask of TRL's: {dict(masks.most_common())}", ""])


if __name__ == "__main__":
    sys.stdout.write(table())
