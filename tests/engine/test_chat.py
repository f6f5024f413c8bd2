"""The pieces of a chat joined are the conversation rendered at once."""

import numpy as np
import pytest
from templates import CHATML, STRICT, bytes_tokenizer

from agentrl_core.engine import Chat
from agentrl_core.exceptions import InvalidInputError, UnsupportedError


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


def test_a_message_of_role_prompt_is_rendered_by_no_template(any_tokenizer):
    chat = Chat(any_tokenizer)
    tokens = chat.prompt({"role": "prompt", "content": "two times seven is"})
    assert any_tokenizer.decode(tokens) == "two times seven is"
    assert chat.prompt([{"role": "prompt", "content": "", "tokens": [5, 3, 5]}]).tolist() == [5, 3, 5]


def test_tokenizers_that_cannot_chat_are_refused(chatml):
    chatml.chat_template = None
    with pytest.raises(InvalidInputError, match="no chat_template"):
        Chat(chatml)
    chatml.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(UnsupportedError, match="without a special token"):
        Chat(chatml)
