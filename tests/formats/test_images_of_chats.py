"""Images of chats, ATIF and traces: read as blobs and placeholders, written unchanged, rejected if unsupported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gallery import Gallery, picture, scripted
from templates import TEMPLATES, bytes_tokenizer

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.env import Image
from agentrl_core.env.message_images import data_url
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import (
    from_atif,
    from_chats,
    from_verifiers,
    to_atif,
    to_chats,
    to_verifiers,
)

IMAGE = 3
SEEING, SPECIAL, END = TEMPLATES["seeing"]
TOKENIZER = bytes_tokenizer(SEEING, SPECIAL, END)


def part(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(picture(number).content), "detail": "low"}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "look"},
        {"role": "user", "content": [text("two:"), part(1), part(2), text("?")]},
        {"role": "assistant", "content": "red"},
        {"role": "tool", "content": [part(3), text("a screen")]},
        {"role": "assistant", "content": "blue"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes"},
    ],
    "task": "colours",
    "reward": 1.0,
}
TURNS = [(1, 2), (1, 2, 3), (1, 2, 3)]


def images_of_actions(batch: arl.Batch) -> list[list[bytes]]:
    """Return the images before each action, by the rows of nodes."""
    nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).to_dicts()}
    all_blobs = []
    for row in nodes.values():
        above, blobs = row["parent_id"], list[bytes]()
        while above is not None:
            blobs = [*(nodes[above]["blobs"] or []), *blobs]
            above = nodes[above]["parent_id"]
        if row["kind"] == 1:
            all_blobs.append(blobs)
    return all_blobs


def processor(size: int = 28) -> Any:
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size}),
        TOKENIZER,
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=SEEING,
    )


@pytest.mark.parametrize("each", [1, 4])
def test_images_of_a_chat_are_blobs_of_the_nodes_that_show_them(each: int) -> None:
    before = copy.deepcopy(CHAT)
    batch = from_chats([CHAT], TOKENIZER if each == 1 else processor())
    assert before == CHAT
    assert images_of_actions(batch) == [[picture(number).sha256 for number in numbers] for numbers in TURNS]
    assert batch.blob(picture(3).sha256) == picture(3).content
    plain = [
        {**message, "content": [{"type": "image"} if p["type"] == "image_url" else p for p in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in CHAT["messages"]
    ]
    token_ids = TOKENIZER(TOKENIZER.apply_chat_template(plain, tokenize=False), add_special_tokens=False)["input_ids"]
    expected = np.repeat(token_ids, [each if token == IMAGE else 1 for token in token_ids]).tolist()
    contexts = batch.contexts()
    assert contexts.tokens.tolist() + batch.column("token", "token").tolist()[-1:] == [
        *expected[: len(contexts.tokens)],
        TOKENIZER.convert_tokens_to_ids(END),
    ]
    assert list(to_chats(batch)) == [CHAT]


def test_the_bytes_are_stored_once(tmp_path: Path) -> None:
    batch = from_chats([CHAT, {**CHAT, "reward": 0.0}], TOKENIZER)
    info = pl.DataFrame(batch.trajectories)["info"].to_list()
    assert all(";base64," not in each for each in info)
    assert all(picture(3).sha256.hex() in each for each in info)
    with arl.Store.open(tmp_path) as store:
        store.append(batch, iteration=0)
        store.flush()
        assert store.blob(picture(1).sha256) == picture(1).content
        assert len([path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]) == 3


def test_other_formats_hold_the_images_too() -> None:
    batch = from_chats([CHAT], TOKENIZER)
    [trajectory] = to_atif(batch)
    [user] = [step for step in trajectory["steps"] if step["source"] == "user" and isinstance(step["message"], list)]
    assert user["message"][1] == {
        "type": "image",
        "source": {"media_type": "image/png", "path": data_url(picture(1).content)},
    }
    [trace] = to_verifiers(batch)
    assert trace["nodes"][1]["message"] == CHAT["messages"][1]
    for back in (from_atif([trajectory]), from_verifiers([trace]), from_atif([_without_ids(trajectory)], TOKENIZER)):
        assert images_of_actions(back) == images_of_actions(batch)
        assert back.column("token", "token").tolist() == batch.column("token", "token").tolist()
        [chat] = to_chats(back)
        urls = [each["image_url"]["url"] for m in chat["messages"] for each in m["content"] if "image_url" in each]
        assert urls == [data_url(picture(number).content) for number in (1, 2, 3)]
    assert list(to_atif(from_atif([trajectory]))) == [trajectory]
    assert json.dumps(next(iter(to_verifiers(from_verifiers([trace]))))["nodes"]) == json.dumps(trace["nodes"])


def _without_ids(trajectory: dict[str, Any]) -> dict[str, Any]:
    return {
        **trajectory,
        "steps": [{name: value for name, value in step.items() if name != "metrics"} for step in trajectory["steps"]],
    }


def test_equal_tokens_with_another_image_are_another_path() -> None:
    other = copy.deepcopy(CHAT)
    other["messages"][1]["content"][2] = part(9)
    batch = from_chats([{**CHAT, "group": "g"}, {**other, "group": "g"}], TOKENIZER)
    assert sorted(map(len, images_of_actions(batch))) == [2, 2, 3, 3, 3, 3]
    assert {blobs[1] for blobs in images_of_actions(batch)} == {picture(2).sha256, picture(9).sha256}


@pytest.mark.parametrize(
    ("content", "role", "error", "match"),
    [
        ({"url": "https://example.org/a.png"}, "user", UnsupportedError, "nothing is loaded from files or the network"),
        ({"url": "a.png"}, "tool", UnsupportedError, "nothing is loaded from files or the network"),
        ({"url": "data:image/png;base64,AAAA"}, "user", InvalidInputError, "not a PNG, JPEG, WebP or GIF"),
        ({}, "user", InvalidInputError, "image_url is None"),
        (part(1)["image_url"], "assistant", UnsupportedError, "an answer of the assistant has an image"),
    ],
)
def test_invalid_and_unsupported_images_are_refused(
    content: Any, role: str, error: type[Exception], match: str
) -> None:
    chat = copy.deepcopy(CHAT)
    chat["messages"].insert(1, {"role": role, "content": [{"type": "image_url", "image_url": content}]})
    with pytest.raises(error, match=rf"chat 0: messages\[1\].*{match}"):
        from_chats([chat], TOKENIZER)


def test_a_template_or_a_record_without_their_places_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="shows no images in a message of role 'user'"):
        from_chats([CHAT], bytes_tokenizer(*TEMPLATES["blind"]))
    with pytest.raises(UnsupportedError, match="chat 0 has both token ids and images"):
        from_chats([{**CHAT, "prompt_ids": [5], "completion_ids": [6]}])


def test_rollouts_with_images_and_without_messages_are_refused() -> None:
    batch = arl.Collector(scripted(), Gallery(), recipes.GRPO, task_pool=4)(tasks=1, group_size=1)
    for write in (to_chats, to_atif, to_verifiers):
        with pytest.raises(UnsupportedError, match="draw 0 has images and no imported messages"):
            list(write(batch, TOKENIZER))


def test_a_processor_reads_chats_of_texts_as_its_tokenizer() -> None:
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    token_lists = [
        from_chats([chat], tokenizer).column("token", "token").tolist() for tokenizer in (processor(), TOKENIZER)
    ]
    assert token_lists[0] == token_lists[1]
    assert Image(picture(1).content) == picture(1)
