"""Chat templates that imitate those of models that no package ships, written for these tests."""

OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + OPEN
# Leaves out unknown roles; writes calls as JSON.
KNOWN = (
    "{% for m in messages %}{% if m.role in ('system', 'user') %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}" + OPEN
)
# Like the file of Phi 4 mini in llama.cpp: tools may be undefined, and not null.
NO_NULL = "{% if tools is defined %}{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}{% endif %}" + PLAIN
# Like Kimi K2: special tokens close calls, and the turn has an end of its own.
KIMI = (
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}{% if m.tool_calls %}"
    "<|calls_begin|>{% for c in m.tool_calls %}<|call_begin|>{{ c.id }} {{ c.function.name }}<|call_arguments|>"
    "{{ c.function.arguments | tojson }}<|call_end|>{% endfor %}<|calls_end|>{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
KIMI_TOKENS = ("<|im_user|>", "<|im_assistant|>", "<|im_tool|>", "<|im_middle|>", "<|calls_begin|>", "<|call_begin|>")
KIMI_TOKENS += ("<|call_arguments|>", "<|call_end|>", "<|calls_end|>", "<|im_end|>")
# Like EXAONE 4: an empty thought, and an opening that ends with two newlines.
EXAONE = (
    "{% for m in messages %}[|{{ m.role }}|]\n{% if m.role == 'assistant' %}<think>\n"
    "{{ m.reasoning_content if m.reasoning_content else '' }}\n</think>\n\n{% endif %}{{ m.content }}[|endofturn|]\n"
    "{% endfor %}{% if add_generation_prompt %}[|assistant|]\n<think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
)
# Like Mistral: results of tools come only after calls, whose identifiers have nine letters.
MISTRAL_TOOLS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if loop.first or not (messages[loop.index0 - 1].tool_calls or "
    "messages[loop.index0 - 1].role == 'tool') %}{{ raise_exception('a result without a call') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.content | tojson }}[/TOOL_RESULTS]{% elif m.role == 'assistant' %}{{ m.content }}"
    "{% if m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    "{{ raise_exception('an identifier has nine letters') }}{% endif %}{{ c.function | tojson }}{% endfor %}{% endif %}"
    "{{ eos_token }}{% else %}{{ raise_exception('only user, assistant and tool') }}{% endif %}{% endfor %}"
)
# Like GLM 4.5: a turn ends at the start of the next one.
GLM = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}{% else %}<|{{ m.role }}|>\n"
    "{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GLM_TOKENS = ("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "</tool_call>")
# Writes the end of a turn only before the next one.
LATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if not loop.last %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
)
# Like gpt-oss: the last answer, an answer in history and a call each end differently.
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}{% if m.thinking %}<|channel|>analysis"
    "<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}{% if m.tool_calls %} to="
    "{{ m.tool_calls[0].function.name }}<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}"
    "{% else %}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
# Like Llama 3.1: calls have an end token of their own; only one call is allowed.
ONE_CALL = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}{{ m.tool_calls[0].function | tojson }}<|eom|>"
    "{% else %}{{ m.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)
# Like Qwen 3: the last answer has a thought, even if empty.
THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "plain": (PLAIN, CHATML_TOKENS, "<|im_end|>"),
    "known": (KNOWN, CHATML_TOKENS, "<|im_end|>"),
    "no null": (NO_NULL, CHATML_TOKENS, "<|im_end|>"),
    "kimi": (KIMI, KIMI_TOKENS, "<|im_end|>"),
    "exaone": (EXAONE, ("[|endofturn|]", "[|user|]", "[|assistant|]"), "[|endofturn|]"),
    "mistral": (MISTRAL_TOOLS, ("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"), "</s>"),
    "glm": (GLM, GLM_TOKENS, "<|endoftext|>"),
    "late": (LATE, CHATML_TOKENS, "<|im_end|>"),
    "harmony": (HARMONY, HARMONY_TOKENS, "<|return|>"),
    "one call": (ONE_CALL, ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), "<|eot|>"),
    "thinking": (THINKING, CHATML_TOKENS, "<|im_end|>"),
}
