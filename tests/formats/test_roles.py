"""Roles that a chat template rejects or skips."""

import pytest
from chat_templates import QUESTION, answer, byte_tokenizer, context_texts, read_or_reject

from agentrl_core.exceptions import AgentRLError
from agentrl_core.integrations.trajectories import from_atif, from_chats, to_atif, to_chats

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FIRST_SYSTEM = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_error_of_a_template_names_the_chat():
    """Templates that check the roles: Gemma, Mistral, Llama 2, Command."""
    good = {"messages": [QUESTION, answer("Cold.")]}
    bad = {"messages": [{"role": "system", "content": "Be brief."}, *good["messages"]]}
    with pytest.raises(AgentRLError, match="1"):
        from_chats([good, bad], byte_tokenizer(NO_SYSTEM))


def test_system_message_in_the_middle_is_in_the_context_or_rejected():
    """Templates that skip it: gpt-oss, Phi 4, Falcon H1."""
    tokenizer = byte_tokenizer(FIRST_SYSTEM)
    brief, polite = ({"role": "system", "content": text} for text in ("Be brief.", "Be polite."))
    chat = {"messages": [brief, QUESTION, answer("Cold."), polite, QUESTION, answer("Cold, alas.")]}
    batch = read_or_reject(chat, tokenizer)
    assert batch is None or "polite" in context_texts(batch, tokenizer)[-1]


def test_a_refusal_survives_a_round_trip_through_atif():
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "refusal": "No."}]}
    [exported] = to_atif(from_chats([chat], byte_tokenizer(FIRST_SYSTEM)))
    assert exported["steps"][1]["message"] == "No."
    del exported["steps"][1]["metrics"]
    [back] = to_chats(from_atif([exported], byte_tokenizer(FIRST_SYSTEM)))
    assert back["messages"][1]["refusal"] == "No."
