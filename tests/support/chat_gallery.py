"""Chat templates of real models from TRL's wheel, chats to render, and hand-written model outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(trl.__file__).parent / "chat_templates"
TRAINING = "_training"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith(TRAINING))

BAR = "\uff5c"


def wide(text):
    """Return a special token in DeepSeek's form."""
    return text.replace("|", BAR).replace("_", "\u2581")


TURNS = ("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# For each prefix of a template's name: the tokens that begin and end a text, and special tokens that no pattern finds.
TOKENS = {
    "cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", ()),
    "deepseek": (wide("<|begin_of_sentence|>"), wide("<|end_of_sentence|>"), ("<think>", "</think>")),
    "diffusion": ("<bos>", "<eos>", (*TURNS, "<tool_response|>", '<|"|>')),
    "gemma": ("<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>")),
    "gemma4": ("<bos>", "<eos>", (*TURNS, "<tool_response|>", '<|"|>')),
    "glm": ("<s>", "<|endoftext|>", ("[gMASK]", "<sop>", *TAGS, "<arg_key>", "</arg_key>", "<arg_value>")),
    "gptoss": ("<s>", "<|return|>", ()),
    "idefics": ("<s>", "<end_of_utterance>", ()),
    "lfm2": ("<|startoftext|>", "<|im_end|>", ()),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", ()),
    "llava": ("<s>", "</s>", ()),
    "muse": ("<s>", "<|eot|>", ("<|eom|>",)),
    "nemotron": ("<s>", "<|im_end|>", TAGS),
    "phi3": ("<s>", "<|endoftext|>", ()),
    "qwen": ("<s>", "<|im_end|>", TAGS),
    "smolvlm": ("<s>", "<end_of_utterance>", ()),
}


def of_family(name, table):
    return table[max((family for family in table if name.startswith(family)), key=len)]


def tokenizer_of(template, begin, end, special=(), merges=()):
    """Return a tokenizer of bytes with a template's special tokens: `<|...|>` found in it, and the named ones."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    core = Tokenizer(models.BPE({token: place for place, token in enumerate(alphabet)}, list(merges)))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokens = re.findall(rf"<\|[A-Za-z_]{{2,40}}\|>|<{BAR}[^{BAR}]+{BAR}>", template)
    core.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in sorted({*tokens, begin, end, *special})]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=begin, eos_token=end)
    tokenizer.chat_template = template
    return tokenizer


def gallery_tokenizer(name):
    begin, end, special = of_family(name, TOKENS)
    if name.startswith("phi3"):
        special = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    return tokenizer_of((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), begin, end, special)


def call(name="weather", number=1, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments or {"city": "Oslo", "days": 3})}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def tool(content="4 degrees", number=1, name="weather"):
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": content}


def assistant(content, *calls, **more):
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks it up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "a city"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "time")
]
SYSTEM = {"role": "system", "content": "Be brief."}
WARM, MORE = {"role": "user", "content": "how warm is it?"}, {"role": "user", "content": "And tomorrow?"}
COLD, MILD = assistant("Cold."), assistant("Warm.")
TIME = tool("noon", 2, "time")
FUNCTION_CALL = {"name": "weather", "arguments": '{"city": "Oslo", "days": 3}'}
PARTS = [{"type": "text", "text": "how warm"}, {"type": "text", "text": "is it?"}]

CHATS = {
    "answer": [WARM, COLD],
    "several": [SYSTEM, WARM, COLD, MORE, MILD],
    "reasoning": [
        WARM,
        assistant("Cold.", reasoning_content="It is winter."),
        MORE,
        assistant("Warm.", reasoning="Spring."),
    ],
    "reasoning once": [WARM, assistant("Cold.", thinking="It is winter."), MORE, MILD],
    "call": [WARM, assistant(None, call()), tool(), COLD],
    "call and text": [WARM, assistant("I look.", call()), tool(), COLD, MORE, MILD],
    "call and reasoning": [WARM, assistant("", call(), reasoning_content="I need it."), tool(), COLD],
    "parallel calls": [
        WARM,
        assistant("", call(), call("time", 2, city="Rome")),
        tool(),
        tool("noon", 2, "time"),
        COLD,
    ],
    "calls in turn": [WARM, assistant("", call()), tool(), assistant("", call("time", 2, city="Rome")), TIME, COLD],
    "calls in turn with texts": [
        WARM,
        assistant("I look.", call()),
        tool(),
        assistant("And there.", call("time", 2, city="Rome")),
        TIME,
        COLD,
    ],
    "calls in turn with reasoning": [
        WARM,
        assistant("", call(), reasoning_content="I need it."),
        tool(),
        assistant("", call("time", 2, city="Rome"), reasoning_content="This, too."),
        TIME,
        COLD,
    ],
    "results in any order": [
        WARM,
        assistant("", call(), call("time", 2, city="Rome")),
        TIME,
        tool(),
        COLD,
    ],
    "lists and numbers": [
        WARM,
        assistant("", call(cities=["Oslo", "Rome"], below=-0.5)),
        tool(),
        COLD,
    ],
    "no arguments": [WARM, assistant("", {**call(), "function": {"name": "weather", "arguments": "{}"}}), tool(), COLD],
    "no result": [WARM, assistant("", call()), tool(""), COLD],
    "markup in a result": [WARM, assistant("", call()), tool('<b>4</b> "degrees" \\ }'), COLD],
    "open call": [WARM, assistant(None, call())],
    "calls without tools": [WARM, assistant("", call()), tool(), COLD],
    "function role": [
        WARM,
        {"role": "assistant", "content": None, "function_call": FUNCTION_CALL},
        {"role": "function", "name": "weather", "content": "4 degrees"},
        COLD,
    ],
    "empty": [WARM, assistant(""), MORE, MILD],
    "short texts": [WARM, assistant("user"), MORE, assistant("a"), MORE, assistant("1")],
    "two answers": [WARM, COLD, MILD],
    "newlines": [WARM, assistant("\n\nCold.\n"), MORE, MILD],
    "system changes": [SYSTEM, WARM, COLD, {"role": "system", "content": "Be polite."}, MORE, MILD],
    "unanswered": [WARM, COLD, MORE],
    "developer": [{"role": "developer", "content": "Be kind."}, WARM, COLD],
    "parts": [{"role": "user", "content": PARTS}, assistant([{"type": "text", "text": "Cold."}])],
    "weights": [WARM, {**COLD, "weight": 0}, MORE, {**MILD, "weight": 1}],
}
WITH_TOOLS = {name for name, chat in CHATS.items() if any("tool_calls" in message for message in chat)}
WITH_TOOLS = WITH_TOOLS - {"calls without tools"} | {"function role"}


def tools_of(chat):
    return TOOLS if chat in WITH_TOOLS else None


# Model outputs by family, from the formats in model cards and template documentation, not from a rendering.


def hermes(calls):
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        for name, arguments in calls
    )


def value(argument):
    return json.dumps(argument) if isinstance(argument, list) else argument


def _pairs(arguments, form):
    return "".join(form.format(key, value(argument)) for key, argument in arguments.items())


def xml(calls):
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + _pairs(arguments, "<parameter={}>\n{}\n</parameter>\n")
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def glm(calls):
    return "\n".join(
        f"<tool_call>{name}\n"
        + _pairs(arguments, "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n")
        + "</tool_call>"
        for name, arguments in calls
    )


def gemma(calls):
    def literal(argument):
        if isinstance(argument, list):
            return f"[{','.join(map(literal, argument))}]"
        return f'<|"|>{argument}<|"|>' if isinstance(argument, str) else argument

    return "".join(
        f"<|tool_call>call:{name}{{"
        + ",".join(f"{key}:{literal(argument)}" for key, argument in sorted(arguments.items()))
        + "}<tool_call|>"
        for name, arguments in calls
    )


def python_calls(calls, write=repr):
    texts = [
        f"{name}({', '.join(f'{key}={write(value)}' for key, value in arguments.items())})" for name, arguments in calls
    ]
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


def calls_with_json_lists(calls):
    return python_calls(calls, lambda value: json.dumps(value) if isinstance(value, list) else repr(value))


def llama(calls):
    [(name, arguments)] = calls
    return f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}'


def deepseek(calls):
    form = wide("<|tool_call_begin|>function<|tool_sep|>") + "{}\n```json\n{}\n```" + wide("<|tool_call_end|>")
    text = "\n".join(form.format(name, json.dumps(arguments)) for name, arguments in calls)
    return wide("<|tool_calls_begin|>") + text + wide("<|tool_calls_end|>")


@dataclass(frozen=True)
class Writes:
    """The output format of a family of models.

    Attributes:
        end: the text that ends an answer.
        call_end: the text that ends an answer with calls; "" if it is the same.
        thought: format of the reasoning, after the part of it that the prompt opens.
        calls: format of calls.
        between: the text between an answer's text and its calls.
        before: the text before the calls if nothing else was written.
        behind: the text after the calls.
        space: the text before everything else.
        trimmed: how spaces around the text are trimmed.
    """

    end: str
    call_end: str = ""
    thought: str = ""
    calls: Callable[[list[tuple[str, dict[str, object]]]], str] = hermes
    between: str = "\n"
    before: str = ""
    behind: str = ""
    space: str = ""
    trimmed: Callable[[str], str] = str

    def answer(self, message):
        content = message.get("content") or ""
        content = content if isinstance(content, str) else "".join(part["text"] for part in content)
        content = self.trimmed(content)
        reasoning = next((message[key] for key in ("reasoning_content", "reasoning", "thinking") if key in message), "")
        thought = self.thought.format(reasoning) if reasoning else ""
        functions = [each["function"] for each in message.get("tool_calls") or ()]
        functions += [message["function_call"]] if "function_call" in message else []
        calls = [(each["name"], json.loads(each["arguments"])) for each in functions]
        if not calls:
            return f"{self.space}{thought}{content}{self.end}"
        between = self.between if content else self.before
        thought = thought if content or not self.before else thought.rstrip("\n")
        return f"{self.space}{thought}{content}{between}{self.calls(calls)}{self.behind}{self.call_end or self.end}"


class Gemma4(Writes):
    """The format with calls before the text; the tokens of the tool's reply end the calls."""

    def answer(self, message):
        calling = super().answer({**message, "content": ""})
        plain = super().answer({"role": "assistant", "content": message.get("content")})
        if not message.get("tool_calls") and "function_call" not in message:
            return super().answer(message)
        end = self.call_end or self.end
        return calling.removesuffix(end) + plain.removesuffix(self.end) + end


class Harmony(Writes):
    """The format with channels: reasoning before the answer, and a call to a function."""

    def answer(self, message):
        thought = next((message[key] for key in ("reasoning_content", "reasoning", "thinking") if key in message), "")
        functions = [each["function"] for each in message.get("tool_calls") or ()]
        functions += [message["function_call"]] if "function_call" in message else []
        content = message.get("content") or ""
        content = content if isinstance(content, str) else "".join(part["text"] for part in content)
        thought = thought or (content if functions else "")
        begin = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant" if thought else ""
        if not functions:
            return f"{begin}<|channel|>final<|message|>{content}<|return|>"
        arguments = json.dumps(json.loads(functions[0]["arguments"]))
        return f"{begin} to=functions.{functions[0]['name']}<|channel|>commentary json<|message|>{arguments}<|call|>"


class Atem(Writes):
    """The format of Muse: a block for each recipient."""

    def answer(self, message):
        thought = next((message[key] for key in ("reasoning_content", "reasoning", "thinking") if key in message), "")
        functions = [each["function"] for each in message.get("tool_calls") or ()]
        functions += [message["function_call"]] if "function_call" in message else []
        content = message.get("content") or ""
        content = content if isinstance(content, str) else "".join(part["text"] for part in content)
        blocks = [f" to=self<|message|>{thought}"] if thought else []
        for each in functions:
            arguments = json.loads(each["arguments"])
            parameters = _pairs(arguments, '<atem:parameter name="{}">{}</atem:parameter>\n')
            blocks.append(
                f" to={each['name']}<|message|><atem:function_calls>\n"
                f'<atem:invoke name="{each["name"]}">\n{parameters}</atem:invoke>\n</atem:function_calls>'
            )
        blocks += [] if functions else [f" to=user<|message|>{content}"]
        return "<|eom|><|start|>assistant".join(blocks) + "<|eot|>"


QWEN = Writes("<|im_end|>")
NEMOTRON = Writes("<|im_end|>", calls=xml, before="\n", behind="\n", trimmed=str.rstrip)
WRITES = {
    "cohere": Writes("<|END_OF_TURN_TOKEN|>", trimmed=str.strip),
    "cohere2": Writes("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "deepseek_r1": Writes(wide("<|end_of_sentence|>")),
    "deepseekv3": Writes(wide("<|end_of_sentence|>"), calls=deepseek, between=""),
    "diffusion": Gemma4(
        "<turn|>", "<|tool_response>", "<|channel>thought\n{}\n<channel|>", gemma, "", trimmed=str.strip
    ),
    "gemma": Writes("<end_of_turn>", trimmed=str.strip),
    "gemma4": Gemma4("<turn|>", "<|tool_response>", "<|channel>thought\n{}\n<channel|>", gemma, "", trimmed=str.strip),
    "gemma4_v2": Gemma4("<turn|>", "", "", gemma, "", trimmed=str.strip),
    "glm": Writes("<|user|>", "<|observation|>", "\n<think>{}</think>\n", glm, trimmed=str.strip),
    "gptoss": Harmony("<|return|>"),
    "idefics": Writes("<end_of_utterance>", space=" "),
    "lfm2": Writes("<|im_end|>", "", "<think>{}</think>", python_calls, ""),
    "lfm2_2_5_vl": Writes("<|im_end|>", "", "<think>{}</think>", calls_with_json_lists, ""),
    "lfm2_v2": Writes("<|im_end|>", "", "<think>{}</think>", calls_with_json_lists, ""),
    "llama3": Writes("<|eot_id|>", trimmed=str.strip),
    "llama3_1": Writes("<|eot_id|>", calls=llama, trimmed=str.strip),
    "llama3_2": Writes("<|eot_id|>", calls=llama, trimmed=str.strip),
    "llava": Writes("</s>", space=" "),
    "muse": Atem("<|eot|>"),
    "nemotron": replace(NEMOTRON, thought="{}\n</think>\n"),
    "nemotron_3_5": replace(NEMOTRON, thought="{}</think>"),
    "nemotron_3_ultra": replace(NEMOTRON, thought="{}</think>"),
    "phi3": Writes("<|end|>"),
    "qwen": QWEN,
    "qwen3": Writes("<|im_end|>", "", "<think>\n{}\n</think>\n\n", trimmed=lambda text: text.lstrip("\n")),
    "qwen3_5": Writes("<|im_end|>", "", "{}\n</think>\n\n", xml, "\n\n", trimmed=str.strip),
    "qwen3_6": Writes("<|im_end|>", "", "{}\n</think>\n\n", xml, "\n\n", trimmed=str.strip),
    "qwen3_8": Writes("<|im_end|>", "", "{}\n</think>\n\n", xml, "\n\n", trimmed=str.strip),
    "qwen3_instruct": QWEN,
    "qwen3_vl": QWEN,
    "smolvlm": Writes("<end_of_utterance>", space=" "),
}


# Chats that templates cannot hold, by prefix of the name, with the reason of the refusal. Every other chat is trained.
REASONS = {
    "reasoning": "leaves out the reasoning",
    "content": "leaves out the (content|empty message)",
    "call": "leaves out the name '.*' of call",
    "refuses": "refuses the messages",
    "tools": "shows no tools",
    "opening": "changes the prompt of this answer once the answer follows: '.*' becomes",
}
NO_REASONING = dict.fromkeys(
    ("reasoning", "reasoning once", "call and reasoning", "calls in turn with reasoning"), "reasoning"
)
NO_CALLS = NO_REASONING | {"calls without tools": "call"}
WITH_RESULTS = (
    "calls in turn",
    "calls in turn with texts",
    "results in any order",
    "lists and numbers",
    "no arguments",
)
WITH_RESULTS = (
    *WITH_RESULTS,
    "no result",
    "markup in a result",
    "call",
    "call and text",
    "parallel calls",
    "function role",
)
NO_RESULTS = dict.fromkeys(WITH_RESULTS, "refuses")
WITH_CALLS = (*WITH_RESULTS, "call and reasoning", "calls in turn with reasoning", "open call")
ALTERNATE = {"two answers": "refuses"}
JOINED = {"two answers": "opening"}
IN_TURN = {"calls in turn with texts": "opening"}
ONE_CALL = dict.fromkeys(("call and text", "calls in turn with texts"), "content")
ONE_CALL |= dict.fromkeys(("parallel calls", "results in any order"), "refuses")
REFUSED = {
    "cohere": ALTERNATE | NO_CALLS | NO_RESULTS | {"system changes": "refuses"},
    "cohere2": ALTERNATE | NO_CALLS | NO_RESULTS,
    "deepseek_r1": NO_CALLS | {"system changes": "content"},
    "deepseekv3": NO_REASONING | IN_TURN | {"calls in turn": "opening"},
    "diffusion": JOINED | IN_TURN | {"call and text": "opening"},
    "gemma": ALTERNATE
    | NO_CALLS
    | dict.fromkeys(WITH_CALLS, "tools")
    | dict.fromkeys(("several", "system changes", "developer"), "refuses"),
    "gemma3": ALTERNATE | NO_CALLS | NO_RESULTS | {"system changes": "refuses"},
    "gemma4": JOINED | {"reasoning": "reasoning", "reasoning once": "reasoning"},
    "gemma4_v2": NO_REASONING,
    "gemma4_v5": JOINED | IN_TURN | {"call and text": "opening"},
    "glm": {},
    "gptoss": {"parallel calls": "call", "results in any order": "call", "system changes": "content"},
    "idefics": NO_CALLS,
    "lfm2": NO_CALLS
    | dict.fromkeys(WITH_CALLS, "call")
    | dict.fromkeys(("call and reasoning", "calls in turn with reasoning"), "reasoning"),
    "lfm2_2_5": {},
    "lfm2_v2": NO_REASONING,
    "llama3": NO_CALLS,
    "llama3_1": NO_REASONING | ONE_CALL,
    "llama3_2": NO_REASONING | ONE_CALL,
    "llava": NO_CALLS | NO_RESULTS,
    "muse": dict.fromkeys(("call and text", "calls in turn with texts"), "content"),
    "nemotron": {},
    "phi3": NO_CALLS | dict.fromkeys(NO_RESULTS, "content"),
    "qwen2_5": NO_REASONING,
    "qwen2_5_vl": NO_CALLS,
    "qwen3": {},
    "qwen3_5": {"system changes": "refuses"},
    "qwen3_6": {"system changes": "refuses"},
    "qwen3_8": {"system changes": "refuses"},
    "qwen3_instruct": NO_REASONING,
    "qwen3_vl": NO_REASONING | {"system changes": "content"},
    "smolvlm": NO_CALLS,
}


def written_texts(name, chat):
    """Return the text that the model of a template has to write for each answer of a chat, transcribed by hand."""
    writes = of_family(name, WRITES)
    return [writes.answer(message) for message in CHATS[chat] if message["role"] == "assistant"]
