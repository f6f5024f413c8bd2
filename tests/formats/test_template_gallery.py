"""Every chat template of TRL's wheel times chats: exactly what the model has to write is trained, or it is refused."""

import json
from itertools import pairwise

import numpy as np
import pytest
from chat_gallery import (
    CHATS,
    FOLDER,
    NAMES,
    REASONS,
    REFUSED,
    TOOLS,
    TRAINING,
    gallery_tokenizer,
    of_family,
    tool,
    tools_of,
    wide,
    written,
)

from agentrl_core.engine import Chat
from agentrl_core.exceptions import UnsupportedError
from agentrl_core.integrations.trajectories import from_chats

# TRL trains the header of a turn and empty thoughts, which nobody samples, and newlines after a turn.
HEADERS = (wide("<|Assistant|>"), wide("<|tool_outputs_end|>"), "<|start|>assistant")
# Of answers in history, and of a text; and that of a call, which TRL does not train.
ENDS = {"gptoss": ("<|end|>", "<|return|>"), "phi3": ("<|endoftext|>",), "diffusion": ("<|tool_response>",), "": ()}
UNSAMPLED = ("<think>\n\n</think>\n\n", "<think></think>\n", "<think></think>", "<think>\n")


@pytest.fixture(scope="module", params=NAMES)
def template(request):
    return request.param, gallery_tokenizer(request.param)


def chat_of(name):
    return {"messages": CHATS[name]} | ({"tools": tools_of(name)} if tools_of(name) else {})


def turns(batch, tokenizer):
    """The texts of all answers, and whether each is trained."""
    offsets, tokens = batch.offsets("token"), batch.column("token", "token")
    bounds = list(pairwise(offsets))
    mask = batch.column("trainable", "token") if batch.has("trainable", "token") else np.ones(len(tokens), bool)
    assert all(len(set(mask[a:b].tolist())) == 1 for a, b in bounds)
    return [tokenizer.decode(tokens[a:b].tolist()) for a, b in bounds], [bool(mask[a]) for a, _ in bounds]


def contexts(batch, tokenizer):
    found = batch.contexts()
    texts = []
    for place in range(len(found.draws)):
        begin = int(found.offsets[place])
        steps = range(int(found.steps[place]), int(found.steps[place + 1]))
        texts += [tokenizer.decode(found.tokens[begin : begin + int(found.begins[step])].tolist()) for step in steps]
    return texts


def test_the_gallery_is_there():
    assert len(NAMES) >= 38
    assert len(CHATS) >= 15
    assert {of_family(name, REFUSED) is not None for name in NAMES} == {True}


def test_what_a_model_has_to_write_is_trained_or_the_chat_is_refused(template):
    name, tokenizer = template
    refused = of_family(name, REFUSED)
    for chat in CHATS:
        if chat in refused:
            with pytest.raises(UnsupportedError, match=rf"^chat 1, message \d.*{REASONS[refused[chat]]}"):
                from_chats([chat_of("answer"), chat_of(chat)], tokenizer)
            continue
        texts, trained = turns(from_chats([chat_of(chat)], tokenizer), tokenizer)
        assert texts == written(name, chat), chat
        assert trained == [message.get("weight") != 0 for message in CHATS[chat] if message["role"] == "assistant"]


def test_the_messages_before_an_answer_are_in_its_context(template):
    name, tokenizer = template
    for chat in CHATS.keys() - of_family(name, REFUSED).keys():
        messages = CHATS[chat]
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        shown = contexts(from_chats([chat_of(chat)], tokenizer), tokenizer)
        assert len(shown) == len(answers)
        for place, text in zip(answers, shown, strict=True):
            for message in messages[:place]:
                content = message["content"] or ""
                if message["role"] == "assistant" and ("tool_calls" in message or not content):
                    continue
                for part in [content] if isinstance(content, str) else [each["text"] for each in content]:
                    assert part.strip() in text, (chat, place)


@pytest.mark.parametrize("name", [name for name in NAMES if (FOLDER / f"{name}{TRAINING}.jinja").is_file()])
def test_the_masks_of_trls_own_training_templates_agree(name):
    tokenizer = gallery_tokenizer(name)
    training = (FOLDER / f"{name}{TRAINING}.jinja").read_text(encoding="utf-8")
    compared = 0
    for chat in ("answer", "several", "call", "parallel calls", "newlines"):
        if chat in of_family(name, REFUSED):
            continue
        masked = _masked(tokenizer, training, chat)
        texts, _ = turns(from_chats([chat_of(chat)], tokenizer), tokenizer)
        if any("weather" in text for text in texts) and not any("weather" in text for text in masked):
            continue  # TRL's template leaves the calls out
        ends = of_family(name, ENDS)
        assert [_sampled(text, ends) for text in masked] == [_sampled(text, ends) for text in texts], chat
        compared += 1
    assert compared >= 2


def _masked(tokenizer, training, chat):
    """The texts that TRL's mask covers."""
    messages = json.loads(json.dumps(CHATS[chat]))
    parts = tokenizer.chat_template.count("['content'][0]") or "content'][0]['type']" in tokenizer.chat_template
    for message in messages:
        message["content"] = message["content"] or ""
        if parts:
            message["content"] = [{"type": "text", "text": message["content"]}]
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    found = tokenizer.apply_chat_template(
        messages,
        tools=tools_of(chat),
        chat_template=training,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    texts, run = [], []
    for token, covered in zip([*found["input_ids"], 0], [*found["assistant_masks"], 0], strict=True):
        if covered:
            run.append(token)
        elif run:
            texts.append(tokenizer.decode(run))
            run = []
    return texts


def _sampled(text, ends):
    """What of a text a model would sample, without spaces around it."""
    text = text.strip()
    for header in HEADERS:
        text = text.removeprefix(header)
    text = text.strip()
    for thought in UNSAMPLED:
        text = text.removeprefix(thought)
    for end in ends:
        text = text.removesuffix(end)
    return text.strip()


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
    """Families that did not run: a prompt with tools, and what a tool replied."""
    chat = Chat(gallery_tokenizer(name))
    prompt = chat.decode(chat.prompt(CHATS["several"][:2], TOOLS))
    for text in ("Be brief.", "how warm is it?", "weather", "time"):
        assert text in prompt
    if name != "phi3":
        assert "4 degrees" in chat.decode(chat.observation(tool()))
    assert "And tomorrow?" in chat.decode(chat.observation("And tomorrow?"))
