"""Small chat templates that behave like those of real models, and functions that read a batch's trained texts."""

import itertools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl_core.exceptions import AgentRLError
from agentrl_core.integrations.trajectories import from_chats

# Renders role and content of every message, and no calls.
CONTENT_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Renders calls as JSON, and skips messages with other roles than system, user and assistant.
WITH_CALLS = (
    "{% for m in messages %}{% if m.role in ('system', 'user') %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTION = {"role": "user", "content": "how warm is it?"}


def answer(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def tool_call(name="weather", number=1):
    function = {"name": name, "arguments": '{"city": "Oslo"}'}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def byte_tokenizer(template, special=("<|im_start|>", "<|im_end|>"), end="<|im_end|>", merges=()):
    """Return a tokenizer of single bytes and `merges` with a chat template; `end` is its end-of-sequence token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["".join(pair) for pair in merges]
    core = Tokenizer(models.BPE({text: i for i, text in enumerate([*alphabet, *merged])}, list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end)
    tokenizer.chat_template = template
    return tokenizer


def read_or_reject(chat, tokenizer):
    """Return the batch of a chat, or None if from_chats rejects it with an error of the package."""
    try:
        return from_chats([chat], tokenizer)
    except AgentRLError:
        return None


def turn_texts(batch, tokenizer):
    """Return the text of each turn's own tokens."""
    offsets, tokens = batch.offsets("token"), batch.column("token", "token")
    return [tokenizer.decode(tokens[begin:end].tolist()) for begin, end in itertools.pairwise(offsets)]


def context_texts(batch, tokenizer):
    """Return the text of each turn's context."""
    contexts = batch.contexts()
    rows = zip(contexts.offsets[:-1], itertools.pairwise(contexts.steps), strict=True)
    return [
        tokenizer.decode(contexts.tokens[begin : begin + length].tolist())
        for begin, (first, last) in rows
        for length in contexts.begins[first:last]
    ]
