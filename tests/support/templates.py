"""Chat templates that imitate those of real models, and a tokenizer of bytes that has them."""

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

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
# Like Llama 3.1: a system turn always, tools in the first user's turn, tool results as role ipython, texts trimmed.
LLAMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}{{ 'Cutting Knowledge Date: December 2023\n\n' }}"
    "{{ system }}<|eot_id|>"
    "{% if tools %}{% set first = messages[0]['content'] | trim %}{% set messages = messages[1:] %}"
    "{{ '<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, respond with JSON.\n\n' }}"
    "{% for t in tools %}{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}{{ first }}<|eot_id|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' or m.role == 'ipython' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{ m.content | trim }}<|eot_id|>"
    "{% else %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Like Qwen 2.5 and 3: tools in the system's turn, adjacent tool results in one user's turn, tool calls as JSON.
QWEN = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}"
    "{% endif %}{{ '# Tools\n\n<tools>' }}{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}"
    "{{ '\n</tools><|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{% endif %}"
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{% set text = m.content or '' %}"
    "REASONING"
    "{{ '<|im_start|>assistant\n' + text }}"
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' }}{{ call.function | tojson }}{{ '\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}"
    "{% endif %}{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Drops the reasoning of turns before the last user's.
QWEN3 = QWEN.replace(
    "REASONING",
    "{% if '</think>' in text and loop.index0 < ns.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}",
)
QWEN = QWEN.replace("REASONING", "")
# Like DeepSeek R1: reasoning of every earlier turn is dropped, and the next turn opens with it.
R1 = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }} {{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|><think>\n{% endif %}"
)
# Like Mistral 0.3: the system's text and the tools come before the last user's turn.
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if loop.last %}{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "[INST]{{ system + m.content }}[/INST]{% else %}[INST]{{ m.content }}[/INST]{% endif %}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
# Leaves out messages with unknown roles.
SILENT = CHATML.replace("{% else %}<|im_start|>{{ m.role }}", "{% elif m.role != 'system' %}<|im_start|>{{ m.role }}")

# Texts and images in the parts of a message, like the templates of vision models.
SEEING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Supports parts, but renders nothing for an image.
BLIND = SEEING.replace("<image>", "")

TEMPLATES = {
    "seeing": (SEEING, ["<s>", "<|im_start|>", "<|im_end|>", "<image>"], "<|im_end|>"),
    "blind": (BLIND, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "chatml": (CHATML, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama": (LLAMA, ["<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "qwen": (QWEN, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "qwen3": (QWEN3, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "r1": (R1, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "mistral": (MISTRAL, ["<s>", "</s>"], "</s>"),
    "strict": (STRICT, ["<s>", "</s>"], "</s>"),
    "silent": (SILENT, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
}


def bytes_tokenizer(template, special, eos):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({token: i for i, token in enumerate([*special, *alphabet])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, bos_token="<s>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template
    return tokenizer
