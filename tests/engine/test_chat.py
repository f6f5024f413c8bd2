"""The pieces of a chat joined are the conversation rendered at once."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl_core.engine import Chat
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

CHATML = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Only users and assistants, who take turns; a system text in front; contents are stripped.
STRICT = (
    "{{ bos_token }}[SYS] be brief [/SYS]{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% elif m.role == 'assistant' %}"
    " {{ m.content | trim }}{{ eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}"
    "{% endfor %}"
)


def bytes_tokenizer(template, special, eos):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({token: i for i, token in enumerate([*special, *alphabet])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    from tokenizers.decoders import ByteLevel

    core.decoder = ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, bos_token="<s>")
    made.add_special_tokens({"additional_special_tokens": list(special)})
    made.chat_template = template
    return made


@pytest.fixture
def chatml():
    return bytes_tokenizer(CHATML, ["<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|endoftext|>")


@pytest.fixture
def strict():
    return bytes_tokenizer(STRICT, ["<s>", "</s>"], "</s>")


@pytest.fixture(params=["ours", "chatml", "strict"])
def any_tokenizer(request, tokenizer):
    return tokenizer if request.param == "ours" else request.getfixturevalue(request.param)


def test_pieces_joined_are_the_conversation_rendered_at_once(any_tokenizer):
    chat = Chat(any_tokenizer)
    role = "user" if any_tokenizer.chat_template == STRICT else "tool"
    turns = [
        ("user", "State the final answer to the following arithmetic problem: 15 - 43 ="),
        ("assistant", "<call>15-43</call>"),
        (role, "<result>-28</result>"),
        ("assistant", "<call>1+</call>"),
        (role, "<result>syntax error</result>"),
        ("assistant", "<answer>-28</answer>"),
    ]
    pieces = [chat.prompt(turns[0][1])]
    for kind, text in turns[1:]:
        pieces.append(chat.action(text) if kind == "assistant" else chat.observation(text))
    messages = [{"role": kind, "content": text} for kind, text in turns]
    whole = any_tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    joined = np.concatenate(pieces)
    if any_tokenizer.chat_template == STRICT:
        # A space that the template puts in front of an assistant's text is the model's to write: it is in no prompt.
        joined = [t for t in joined.tolist() if t != any_tokenizer.convert_tokens_to_ids("Ġ")]
        whole = [t for t in whole if t != any_tokenizer.convert_tokens_to_ids("Ġ")]
    # Templates may write more behind the last turn's end.
    assert list(joined) == whole[: len(joined)]
    assert len(whole) - len(joined) <= 1
    assert joined[-1] == chat.end_of_turn


def test_actions_decode_to_their_text(any_tokenizer):
    chat = Chat(any_tokenizer)
    for text in ("<call>73+15</call>", " spaces  inside ", "ünïcode ✓", "<answer>-7</answer>"):
        action = chat.action(text)
        assert action.dtype == np.int32
        assert chat.decode(action) == text
        assert chat.decode(action[:-1]) == text, "a segment cut at its limit has no stop token"
        assert chat.decode(action.tolist()) == text


def test_stop_tokens_are_the_end_of_the_turn_and_of_the_text(tokenizer, chatml, strict):
    assert Chat(tokenizer).stop_token_ids == (tokenizer.eos_token_id,)
    assert Chat(strict).stop_token_ids == (strict.eos_token_id,)
    end, eos = chatml.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert Chat(chatml).stop_token_ids == (end, eos)
    assert Chat(chatml).end_of_turn == end


def test_pieces_are_the_callers_own(tokenizer):
    chat = Chat(tokenizer)
    chat.prompt("1 + 1 =")[:] = 0
    chat.observation("<result>2</result>")[:] = 0
    assert chat.prompt("1 + 1 =").any()
    assert chat.observation("<result>2</result>").any()


def test_tokenizers_that_cannot_chat_are_refused(chatml):
    chatml.chat_template = None
    with pytest.raises(InvalidInputError, match="no chat_template"):
        Chat(chatml)
    chatml.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(UnsupportedError, match="without a special token"):
        Chat(chatml)
