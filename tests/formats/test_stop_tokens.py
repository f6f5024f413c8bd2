"""Templates that end an assistant's turn in more than one way, or by the next role's token."""

import pytest
from chat_templates import QUESTION, answer, byte_tokenizer, turn_texts

from agentrl_core import engine
from agentrl_core.integrations.trajectories import from_chats


def test_last_answer_may_end_by_another_token_than_earlier_ones():
    """gpt-oss ends the last answer by <|return|>, earlier ones by <|end|>."""
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
        "{% if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
    )
    special = ["<|start|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"]
    tokenizer = byte_tokenizer(template, special, "<|return|>")
    prompt = engine.Chat(tokenizer).prompt("how warm is it?")
    assert tokenizer.decode(prompt) == "<|start|>user<|message|>how warm is it?<|end|><|start|>assistant<|message|>"


@pytest.fixture
def glm_tokenizer():
    """GLM 4.5 and 4.6: an answer ends at the next role's token; these tokens are the stop tokens."""
    template = (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    special = ["<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "<|endoftext|>"]
    return byte_tokenizer(template, special, "<|endoftext|>")


def test_chats_are_read_if_the_next_role_ends_an_answer(glm_tokenizer):
    following = {"role": "user", "content": "And tomorrow?"}
    batch = from_chats([{"messages": [QUESTION, answer("Cold."), following, answer("Warm.")]}], glm_tokenizer)
    assert [text.split("<|")[0] for text in turn_texts(batch, glm_tokenizer)] == ["Cold.", "Warm."]


def test_prompts_are_made_if_the_next_role_ends_an_answer(glm_tokenizer):
    prompt = engine.Chat(glm_tokenizer).prompt("how warm is it?")
    assert glm_tokenizer.decode(prompt) == "<|user|>\nhow warm is it?<|assistant|>\n"


def test_end_of_a_call_is_a_stop_token():
    """gpt-oss ends calls by <|call|>, Llama 3.1 by <|eom_id|>; without it the model samples the tool's result."""
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{% if m.tool_calls %}"
        "{{ m.tool_calls[0].function | tojson }}<|eom|>{% else %}{{ m.content }}<|eot|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
    )
    tokenizer = byte_tokenizer(template, ["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"], "<|eot|>")
    assert "<|eom|>" in tokenizer.convert_ids_to_tokens(list(engine.Chat(tokenizer).stop_token_ids))
