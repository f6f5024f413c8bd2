"""Reasoning in chats: under each of its names, and as rendered by templates."""

from chat_templates import QUESTION, WITH_CALLS, answer, byte_tokenizer, read_or_reject, turn_texts

from agentrl_core.integrations.trajectories import from_chats

WITH_REASONING = WITH_CALLS.replace(
    "assistant\n{{ m.content }}",
    "assistant\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}",
    1,
)
# Like Qwen 3: answers after the last question have an empty block of reasoning, and so does the opening of an answer if
# the template gets enable_thinking=False.
EMPTY_REASONING = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_reasoning_is_trained_or_rejected_under_both_names():
    """vLLM, OpenRouter and this package's endpoint call the field `reasoning`."""
    tokenizer = byte_tokenizer(WITH_REASONING)
    batch = from_chats([{"messages": [QUESTION, answer("Cold.", reasoning_content="It is winter.")]}], tokenizer)
    assert "winter" in turn_texts(batch, tokenizer)[0]
    batch = read_or_reject({"messages": [QUESTION, answer("Cold.", reasoning="It is winter.")]}, tokenizer)
    assert batch is None or "winter" in turn_texts(batch, tokenizer)[0]


def test_empty_reasoning_of_the_template_is_not_trained():
    """Qwen 3 renders the last answer with an empty block of reasoning that the chat does not have."""
    tokenizer = byte_tokenizer(EMPTY_REASONING)
    following = {"role": "user", "content": "And tomorrow?"}
    batch = from_chats([{"messages": [QUESTION, answer("Cold."), following, answer("Warm.")]}], tokenizer)
    assert turn_texts(batch, tokenizer) == ["Cold.<|im_end|>", "Warm.<|im_end|>"]
