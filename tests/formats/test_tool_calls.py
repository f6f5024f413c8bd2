"""Tool calls, their results and tool schemas in chats: read in full, or rejected."""

from chat_templates import (
    CONTENT_ONLY,
    QUESTION,
    WITH_CALLS,
    answer,
    byte_tokenizer,
    context_texts,
    read_or_reject,
    tool_call,
    turn_texts,
)

RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "4 degrees"}
# Like gpt-oss: of all calls of a message the first one alone.
FIRST_CALL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}"
    "{{ m.tool_calls[0].function | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_legacy_function_call_is_trained_or_rejected():
    """ToolBench and other data sets of 2023 have `function_call` instead of `tool_calls`."""
    tokenizer = byte_tokenizer(WITH_CALLS)
    call = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    result = {"role": "function", "name": "weather", "content": "4 degrees"}
    chat = {"messages": [QUESTION, answer(None, function_call=call), result, answer("4")]}
    batch = read_or_reject(chat, tokenizer)
    assert batch is None or "weather" in turn_texts(batch, tokenizer)[0]


def test_call_is_trained_or_rejected_if_the_template_renders_no_calls():
    """Templates without calls: Llama 3, the first one of Kimi K2, Phi 3 and 4, ChatML, LFM2, Granite."""
    tokenizer = byte_tokenizer(CONTENT_ONLY)
    chat = {"messages": [QUESTION, answer(None, tool_calls=[tool_call()]), RESULT, answer("4")]}
    batch = read_or_reject(chat, tokenizer)
    assert batch is None or "weather" in turn_texts(batch, tokenizer)[0]


def test_tool_result_is_in_the_context_or_rejected_if_the_template_skips_tools():
    """Templates that skip the role `tool`: Phi 3 and 4, Granite 3."""
    tokenizer = byte_tokenizer(WITH_CALLS)
    chat = {"messages": [QUESTION, answer("", tool_calls=[tool_call()]), RESULT, answer("It is 4.")]}
    batch = read_or_reject(chat, tokenizer)
    assert batch is None or "4 degrees" in context_texts(batch, tokenizer)[1]


def test_call_with_the_function_as_a_name_is_trained_or_rejected():
    """Logs of Inspect have calls such as {"id": ..., "function": "name", "arguments": {...}}."""
    tokenizer = byte_tokenizer(WITH_CALLS)
    call = {"id": "c", "function": "weather", "arguments": {"city": "Oslo"}}
    batch = read_or_reject({"messages": [QUESTION, answer("", tool_calls=[call])]}, tokenizer)
    assert batch is None or "weather" in turn_texts(batch, tokenizer)[0]


def test_second_call_is_trained_or_rejected_if_the_template_renders_one():
    """The template of gpt-oss renders the first call of a message alone."""
    tokenizer = byte_tokenizer(FIRST_CALL)
    chat = {"messages": [QUESTION, answer("", tool_calls=[tool_call(), tool_call("time", 2)])]}
    batch = read_or_reject(chat, tokenizer)
    assert batch is None or "time" in turn_texts(batch, tokenizer)[0]


def test_tools_as_json_text_are_read_or_rejected():
    """Arrow needs one type for the column: xLAM, Glaive and LLaMA-Factory store `tools` as JSON text."""
    template = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    tokenizer = byte_tokenizer(template + WITH_CALLS)
    tools = '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]'
    batch = read_or_reject({"messages": [QUESTION, answer("Cold.")], "tools": tools}, tokenizer)
    assert batch is None or "weather" in context_texts(batch, tokenizer)[0]
