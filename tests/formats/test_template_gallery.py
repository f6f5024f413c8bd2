"""Every chat template of TRL's wheel times chats: exactly the model's tokens are trained, or the chat is rejected."""

import json

import pytest
from chat_gallery import CHATS, NAMES, REFUSED, TOOLS, gallery_tokenizer, of_family, tool
from gallery_table import cell, chat_of, has_masks, masked, sampled, turns, why_not_compared

from agentrl_core.engine import Chat
from agentrl_core.integrations.trajectories import from_chats

# Versions of a template for which TRL has no training template.
NO_MASKS = (
    "gemma4",
    "gemma4_v2",
    "gemma4_v3",
    "gemma4_v4",
    "gemma4_v5",
    "lfm2_2_5",
    "lfm2_2_5_v2",
    "lfm2_2_5_vl",
    "llama3_1",
    "llama3_2",
)


@pytest.fixture(scope="module", params=NAMES)
def template(request):
    return request.param, gallery_tokenizer(request.param)


def contexts(batch, tokenizer):
    token_contexts = batch.contexts()
    texts = []
    for place in range(len(token_contexts.draws)):
        begin = int(token_contexts.offsets[place])
        steps = range(int(token_contexts.steps[place]), int(token_contexts.steps[place + 1]))
        texts += [
            tokenizer.decode(token_contexts.tokens[begin : begin + int(token_contexts.begins[step])].tolist())
            for step in steps
        ]
    return texts


def test_the_gallery_is_there():
    assert len(NAMES) >= 41
    assert len(CHATS) >= 28


def test_the_messages_before_an_answer_are_in_its_context(template):
    name, tokenizer = template
    for chat in CHATS.keys() - of_family(name, REFUSED).keys():
        messages = CHATS[chat]
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        context_texts = contexts(from_chats([chat_of(chat)], tokenizer), tokenizer)
        assert len(context_texts) == len(answers)
        for place, text in zip(answers, context_texts, strict=True):
            for message in messages[:place]:
                content = message["content"] or ""
                if message["role"] == "assistant" and ("tool_calls" in message or not content):
                    continue
                for part in [content] if isinstance(content, str) else [each["text"] for each in content]:
                    escaped = json.dumps(part.strip())[1:-1]
                    assert part.strip() in text or escaped in text, (chat, place)


def test_no_template_and_no_chat_is_left_out(template):
    name, tokenizer = template
    row = {chat: cell(name, tokenizer, chat) for chat in CHATS}
    assert row == {chat: of_family(name, REFUSED).get(chat, "trained") for chat in CHATS}
    assert row["answer"] == row["newlines"] == "trained"


def test_masks_agree_with_those_of_trls_training_templates(template):
    name, tokenizer = template
    if not has_masks(name):
        assert name in NO_MASKS
        return
    compared = [chat for chat in CHATS if chat not in of_family(name, REFUSED) and not why_not_compared(name, chat)]
    assert {"answer", "newlines", "empty", "weights"} <= set(compared)
    for chat in compared:
        texts, _ = turns(from_chats([chat_of(chat)], tokenizer), tokenizer)
        assert masked(name, tokenizer, chat) == sampled(name, texts), chat


def test_an_action_is_decoded_without_all_that_ends_it():
    # Cohere's second template closes the response, then the turn.
    tokenizer = gallery_tokenizer("cohere2")
    chat = Chat(tokenizer)
    assert tokenizer.decode(chat.action("Cold.")) == "Cold.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"
    assert chat.decode(chat.action("Cold.")) == "Cold."
    assert chat.decode(chat.action("Cold.")[:-1]) == "Cold."
    assert tokenizer.convert_ids_to_tokens(list(chat.stop_token_ids)) == ["<|END_OF_TURN_TOKEN|>"]


@pytest.mark.parametrize("name", ["gptoss", "glm4moe", "deepseekv3", "qwen3", "llama3_1", "phi3", "gemma4_v5"])
def test_an_engine_is_given_prompts_tools_and_results(name):
    """Families that did not run: a prompt with tools, and a tool's reply."""
    chat = Chat(gallery_tokenizer(name))
    prompt = chat.decode(chat.prompt(CHATS["several"][:2], TOOLS))
    for text in ("Be brief.", "how warm is it?", "weather", "time"):
        assert text in prompt
    if name != "phi3":
        assert "4 degrees" in chat.decode(chat.observation(tool()))
    assert "And tomorrow?" in chat.decode(chat.observation("And tomorrow?"))
