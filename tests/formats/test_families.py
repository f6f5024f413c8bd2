"""Template families of no package: trained tokens of a chat, and requests to an engine."""

import json
import pickle
import re
from itertools import pairwise

import numpy as np
import pytest
from chat_gallery import assistant, call, tokenizer_of, tool
from model_templates import FAMILIES
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl_core.engine import Chat
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_atif, from_chats

WARM, MORE = {"role": "user", "content": "how warm is it?"}, {"role": "user", "content": "And tomorrow?"}
COLD, MILD = assistant("Cold."), assistant("Warm.")
CALLED = [WARM, assistant("", call()), tool(), COLD]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": {}}}]


def tokenizer(name, merges=()):
    template, special, end = FAMILIES[name]
    return tokenizer_of(template, "<s>", end, special, merges)


def trained(messages, tok, **chat):
    batch = from_chats([{"messages": messages, **chat}], tok)
    offsets, tokens = batch.offsets("token"), batch.column("token", "token")
    return [tok.decode(tokens[a:b].tolist()) for a, b in pairwise(offsets)]


def contexts(messages, tok, **chat):
    token_contexts = from_chats([{"messages": messages, **chat}], tok).contexts()
    texts = []
    for place in range(len(token_contexts.draws)):
        begin = int(token_contexts.offsets[place])
        steps = range(int(token_contexts.steps[place]), int(token_contexts.steps[place + 1]))
        texts += [
            tok.decode(token_contexts.tokens[begin : begin + int(token_contexts.begins[step])].tolist())
            for step in steps
        ]
    return texts


@pytest.mark.parametrize(
    ("name", "stops", "end"),
    [
        ("plain", ["<|im_end|>"], "<|im_end|>"),
        ("kimi", ["<|im_end|>"], "<|im_end|>"),
        ("glm", ["<|user|>", "<|observation|>", "<|endoftext|>"], "<|user|>"),
        ("late", ["<|im_end|>"], "<|im_end|>"),
        # A thought ends with <|end|>, so that token does not end a turn.
        ("harmony", ["<|return|>", "<|call|>"], "<|return|>"),
        ("one call", ["<|eot|>", "<|eom|>"], "<|eot|>"),
        ("exaone", ["[|endofturn|]"], "[|endofturn|]"),
    ],
)
def test_stop_tokens_are_all_that_end_a_turn(name, stops, end):
    tok = tokenizer(name)
    chat = Chat(tok)
    assert tok.convert_ids_to_tokens(list(chat.stop_token_ids)) == stops
    assert tok.convert_ids_to_tokens(chat.end_of_turn) == end


@pytest.mark.parametrize(
    ("name", "called"),
    [
        (
            "kimi",
            "<|calls_begin|><|call_begin|>call00001 weather<|call_arguments|>{}<|call_end|><|calls_end|><|im_end|>",
        ),
        ("mistral", '[TOOL_CALLS]{{"name": "weather", "arguments": {}}}</s>'),
        ("glm", '<tool_call>{{"name": "weather", "arguments": {}}}</tool_call><|observation|>'),
        ("harmony", " to=weather<|message|>{}<|call|>"),
        ("one call", '{{"name": "weather", "arguments": {}}}<|eom|>'),
    ],
)
def test_tool_calls_are_trained_up_to_their_end_token(name, called):
    texts = trained(CALLED, tokenizer(name))
    assert texts[0] == called.format('{"city": "Oslo", "days": 3}')
    assert "Cold." in texts[1]
    assert "4 degrees" in contexts(CALLED, tokenizer(name))[1]


def test_an_answer_ends_where_the_next_message_begins():
    chat = [WARM, COLD, MORE, MILD]
    for name, ends in (("glm", ["<|user|>", "<|user|>"]), ("late", ["<|im_end|>", "<|im_end|>"])):
        tok = tokenizer(name)
        assert trained(chat, tok) == [f"Cold.{ends[0]}", f"Warm.{ends[1]}"]
        second = contexts(chat, tok)[1]
        assert second == tok.apply_chat_template(chat[:3], tokenize=False, add_generation_prompt=True)
        assert from_chats([{"messages": chat}], tok).contexts().draws.tolist() == [0], "one context, which goes on"


@pytest.mark.parametrize("name", ["glm", "late", "kimi", "one call", "harmony"])
def test_pieces_of_a_chat_join_to_the_conversation(name):
    tok = tokenizer(name)
    chat = Chat(tok)
    action = np.append(tok("Cold.")["input_ids"], chat.end_of_turn).astype(np.int32)
    pieces = [chat.prompt("how warm is it?"), action, chat.observation(MORE, int(action[-1]))]
    conversation = tok.apply_chat_template([WARM, COLD, MORE], tokenize=False, add_generation_prompt=True)
    if name == "harmony":  # the engine generates the end of a last answer, and the header of its channel
        conversation = conversation.replace("<|channel|>final<|message|>Cold.<|end|>", "Cold.<|return|>")
    assert tok.decode(np.concatenate(pieces).tolist()) == conversation


def test_an_end_that_was_not_generated_is_written():
    tok = tokenizer("glm")
    chat = Chat(tok)
    for after in (None, int(tok("x")["input_ids"][0]), tok.convert_tokens_to_ids("<|user|>")):
        assert tok.decode(chat.observation(tool(), after)) == "<|observation|>\n4 degrees<|assistant|>\n"
    assert tok.decode(chat.observation(tool(), tok.convert_tokens_to_ids("<|observation|>"))) == (
        "\n4 degrees<|assistant|>\n"
    )


def test_results_of_tools_follow_a_call_if_the_template_wants_one():
    tok = tokenizer("mistral")
    assert tok.decode(Chat(tok).observation(tool())) == '[TOOL_RESULTS]"4 degrees"[/TOOL_RESULTS]'
    assert tok.decode(Chat(tok).observation("4")) == "[INST]4[/INST]", "a text is a user's, as before"


def test_a_template_that_takes_no_null_as_tools():
    tok = tokenizer("no null")
    assert trained([WARM, COLD], tok) == ["Cold.<|im_end|>"]
    assert tok.decode(Chat(tok).prompt("Hello")) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert '<tool>{"type": "function"' in tok.decode(Chat(tok).prompt("Hello", TOOLS))


@pytest.mark.parametrize("name", ["exaone", "thinking"])
def test_a_thought_is_trained_if_there_is_one(name):
    tok = tokenizer(name)
    end = FAMILIES[name][2]
    chat = [WARM, assistant("Cold.", reasoning="It is winter."), MORE, MILD]
    opening = "" if name == "exaone" else "<think>\n"
    assert trained(chat, tok) == [f"{opening}It is winter.\n</think>\n\nCold.{end}", f"Warm.{end}"]
    first, second = contexts([WARM, COLD, MORE, MILD], tok)
    assert first.endswith("<think>\n\n</think>\n\n")
    assert second.endswith("<think>\n\n</think>\n\n")


def test_options_of_the_template_are_passed_on():
    tok = tokenizer("thinking")
    off = {"enable_thinking": False}
    chat = [WARM, COLD, MORE, MILD]
    assert trained(chat, tok, chat_template_kwargs=off) == ["Cold.<|im_end|>", "Warm.<|im_end|>"]
    assert contexts(chat, tok, chat_template_kwargs=off) == [
        tok.apply_chat_template(chat[:place], tokenize=False, add_generation_prompt=True, enable_thinking=False)
        for place in (1, 3)
    ]
    steps = [{"step_id": 1, "source": "user", "message": "Hi"}, {"step_id": 2, "source": "agent", "message": "Yo"}]
    record = {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}, "steps": steps}
    read = from_atif([record], tok, chat_template_kwargs=off).contexts()
    assert tok.decode(read.tokens.tolist()).endswith("assistant\n<think>\n\n</think>\n\nYo<|im_end|>")
    without_thinking = Chat(tok, off)
    assert tok.decode(without_thinking.prompt("Hi")).endswith("assistant\n<think>\n\n</think>\n\n")
    assert tok.decode(without_thinking.observation("4")).endswith("assistant\n<think>\n\n</think>\n\n")
    assert without_thinking.prompt("Hi").tolist() == Chat(tok).with_options(off).prompt("Hi").tolist()
    assert Chat(tok).with_options(None).prompt("Hi").tolist() == Chat(tok).prompt("Hi").tolist()
    for wrong, match in (({"tokenize": True}, "has 'tokenize'"), ("off", "chat_template_kwargs is 'off'")):
        with pytest.raises(InvalidInputError, match=match):
            Chat(tok, wrong)
        with pytest.raises(InvalidInputError, match=match):
            from_chats([{"messages": chat}], tok, chat_template_kwargs=wrong)


def test_a_pickled_chat_keeps_its_options_and_stops():
    chat = pickle.loads(pickle.dumps(Chat(tokenizer("thinking"), {"enable_thinking": False}, stop_token_ids=(7,))))
    assert chat.decode(chat.prompt("Hi")).endswith("assistant\n<think>\n\n</think>\n\n")
    assert 7 in chat.stop_token_ids


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_pieces_are_the_tokens_of_the_whole_where_spaces_are_letters(scheme):
    # Like Llama 2's tokenizer: a text gets a leading space, unless it follows another one.
    letters = ["<unk>", "\u2581", *map(chr, range(33, 127)), "\u2581w", "\u2581C"]
    core = Tokenizer(
        models.BPE({x: n for n, x in enumerate(letters)}, [("\u2581", "w"), ("\u2581", "C")], unk_token="<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    core.decoder = decoders.Metaspace(prepend_scheme=scheme)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    tok = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tok.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    )
    chat = [WARM, COLD, MORE, MILD]
    tokens = from_chats([{"messages": chat}], tok).contexts().tokens
    assert tokens.tolist() == tok.apply_chat_template(chat, tokenize=True, return_dict=False)


def test_an_answer_is_tokenised_separately_if_a_token_would_span_its_start():
    tok = tokenizer("plain", merges=[("Ċ", "Ċ")])
    assert len(tok("\n\n")["input_ids"]) == 1
    for content in ("\n\nCold.", "\nCold."):
        assert trained([WARM, assistant(content)], tok) == [f"{content}<|im_end|>"]


def test_a_long_chat_is_tokenised_once():
    tok = tokenizer("plain")
    chat = [message for turn in range(30) for message in ({**WARM, "content": f"question {turn} " * 9}, COLD)]
    lengths = []
    encode = tok._encode_plus
    tok._encode_plus = lambda text, **options: lengths.append(len(text)) or encode(text, **options)
    assert trained(chat, tok) == ["Cold.<|im_end|>"] * 30
    assert sum(lengths) < 2 * len(tok.apply_chat_template(chat, tokenize=False))


@pytest.mark.parametrize(
    ("name", "messages", "missing"),
    [
        # A text about a call is not the call; nor are calls of other messages.
        ("plain", [WARM, assistant("weather of Oslo, 3 days: city, days", call())], "message 1 .* the name 'weather'"),
        ("known", CALLED, "message 2 of role 'tool': .* leaves out the content '4 degrees'"),
        ("known", [WARM, assistant("", call()), tool("is"), COLD], "message 2 of role 'tool'"),
        ("known", [WARM, COLD, {"role": "critic", "content": "Cold."}, MORE, MILD], "message 2 of role 'critic'"),
        ("harmony", [WARM, assistant("", call(), call())], "message 1 .* of call 1"),
        ("harmony", [WARM, assistant("I look.", call())], "message 1 .* the content 'I look.'"),
        ("plain", [WARM, assistant("It is Cold.", reasoning="Cold.")], "message 1 .* the reasoning 'Cold.'"),
        ("one call", [WARM, assistant("", call(), call("time", 2))], "message 1: .*one call at a time"),
        ("mistral", [{"role": "system", "content": "Be brief."}, WARM, COLD], "message 0: .*only user, assistant"),
        ("mistral", [WARM, COLD, tool(), COLD], "message 2: .*a result without a call"),
    ],
)
def test_parts_that_a_template_omits_or_refuses_are_named(name, messages, missing):
    good = {"messages": [WARM, COLD]}
    with pytest.raises(UnsupportedError, match=f"^chat 1, {missing}"):
        from_chats([good, {"messages": messages}], tokenizer(name))


@pytest.mark.parametrize(
    ("message", "error", "match"),
    [
        ("Cold.", InvalidInputError, r"chat 0: messages\[1\] is \'Cold\.\'"),
        ({"role": "assistant", "content": 4}, InvalidInputError, "message 1: content is 4"),
        ({"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}, UnsupportedError, "has an image"),
        ({"role": "assistant", "content": [7]}, UnsupportedError, r"content\[0\] is 7; give a text part"),
        ({"role": "assistant", "content": [{"type": "text", "text": 7}]}, InvalidInputError, "holds 7"),
        ({**COLD, "reasoning": 4}, InvalidInputError, "the reasoning is 4"),
        ({**COLD, "reasoning": "a", "thinking": "b"}, InvalidInputError, "two reasonings, 'a' and 'b'"),
        ({**COLD, "refusal": "No."}, UnsupportedError, "has content .* and refusal 'No.'"),
        ({**COLD, "tool_calls": "x"}, InvalidInputError, "tool_calls is 'x'"),
        ({**COLD, "tool_calls": ["x"]}, InvalidInputError, "message 1, call 0 is 'x'"),
        ({**COLD, "tool_calls": [{"id": "c"}]}, InvalidInputError, "call 0 is"),
        ({**COLD, "tool_calls": [{"type": "custom", "custom": {}}]}, UnsupportedError, "of type 'custom'"),
        (assistant("Cold \ud800"), InvalidInputError, r"message 1 holds '\\ud800', half of a surrogate pair"),
        (assistant("", call(city="\ud800")), InvalidInputError, "half of a surrogate pair"),
        ({**COLD, "weight": 0.5}, UnsupportedError, "weight is 0.5; an answer is trained or not"),
        ({**COLD, "loss_weight": "0"}, InvalidInputError, "loss_weight is '0'; give 0 or 1"),
        ({**WARM, "weight": 1}, UnsupportedError, "weight is 1 on a message of role 'user'"),
    ],
)
def test_messages_of_another_shape_are_named(message, error, match):
    with pytest.raises(error, match=match):
        from_chats([{"messages": [WARM, message, COLD]}], tokenizer("kimi"))


def test_records_and_tools_of_another_shape_are_named():
    tok = tokenizer("kimi")
    for record in (None, [WARM, COLD], {"messages": None}):
        with pytest.raises(InvalidInputError, match=r"chat 0(: messages)? is "):
            from_chats([record], tok)
    for tools in ("weather", 7, ["weather"], '{"name": "weather"}'):
        with pytest.raises(InvalidInputError, match="chat 0: tools"):
            from_chats([{"messages": [WARM, COLD], "tools": tools}], tok)


@pytest.mark.parametrize(
    "given",
    [
        {"tool_calls": [{"id": "call00001", "function": "weather", "arguments": {"city": "Oslo"}}]},
        {"tool_calls": [{"id": "call00001", "name": "weather", "arguments": '{"city": "Oslo"}'}]},
        {
            "tool_calls": [
                {"id": "call00001", "type": None, "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
            ]
        },
        {"function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
    ],
)
def test_calls_of_many_shapes_are_one(given):
    [text] = trained([WARM, {"role": "assistant", "content": None, **given}], tokenizer("one call"))
    assert text == '{"name": "weather", "arguments": {"city": "Oslo"}}<|eom|>'


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning": "Winter."},
        {"reasoning_content": "Winter."},
        {"thinking": "Winter."},
        {"content": [{"type": "thinking", "thinking": "Winter."}, {"type": "text", "text": "Cold."}]},
        {"content": [{"type": "reasoning", "reasoning": "Winter."}, "Cold."]},
        {"reasoning": "Winter.", "reasoning_content": "Winter.", "thinking": None},
    ],
)
def test_reasoning_has_many_names(thought):
    [text] = trained([WARM, {"role": "assistant", "content": "Cold.", **thought}], tokenizer("thinking"))
    assert text == "<think>\nWinter.\n</think>\n\nCold.<|im_end|>"


@pytest.mark.parametrize(
    ("mark", "is_trained"),
    [
        ({"weight": 0}, False),
        ({"weight": 1.0}, True),
        ({"loss_weight": 0.0}, False),
        ({"train": False}, False),
        ({"trainable": True}, True),
        ({"is_demo": True}, False),
        ({"is_demo": False}, True),
        ({"weight": None}, True),
    ],
)
def test_fields_of_a_message_decide_whether_it_is_trained(mark, is_trained):
    tok = tokenizer("plain")
    chat = {"messages": [{**WARM, "weight": 0}, {**COLD, **mark}, MORE, MILD], "step_rewards": [0.25, 0.75]}
    batch = from_chats([chat], tok)
    offsets = batch.offsets("token").tolist()
    mask = batch.column("trainable", "token").tolist() if batch.has("trainable", "token") else [True] * offsets[-1]
    assert mask == [is_trained] * offsets[1] + [True] * (offsets[2] - offsets[1])
    assert batch.column("reward", "step").tolist() == [0.25, 0.75], "a masked answer is a turn"
    assert contexts(chat["messages"], tok)[1].count("Cold.") == 1, "and context of the next"


def test_refusals_and_empty_parts_are_texts():
    tok = tokenizer("plain")
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": None}, "two"]},
        {"role": "assistant", "content": None, "refusal": "I cannot."},
    ]
    assert trained(chat, tok) == ["I cannot.<|im_end|>"]
    assert "user\none\ntwo<|im_end|>" in contexts(chat, tok)[0], "joined by newlines, as in vLLM"
    assert trained([WARM, assistant("Cold."), {"role": "assistant", "content": []}], tok) == [
        "Cold.<|im_end|>",
        "<|im_end|>",
    ]


def test_developers_are_a_system_where_the_template_does_not_know_them():
    tok = tokenizer("known")
    chat = [
        {"role": "developer", "content": "Be kind."},
        WARM,
        COLD,
        {"role": "developer", "content": "Be brief."},
        MORE,
        MILD,
    ]
    first, second = contexts(chat, tok)
    assert first.startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert second.startswith("<|im_start|>system\nBe kind.\n\nBe brief.<|im_end|>"), "one message, as in vLLM"


def test_tools_that_a_template_does_not_show_are_described():
    plain, known = tokenizer("plain"), tokenizer("known")
    first = contexts(CALLED, plain, tools=TOOLS)[0]
    assert first.startswith("<|im_start|>system\n# Tools")
    assert '{"type": "function", "function": {"name": "weather"' in first
    assert '<tool_call>\n{"name": ' in first
    assert trained(CALLED, plain, tools=json.dumps(TOOLS))[0] == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call><|im_end|>'
    )
    # A template with its own form of calls keeps it.
    chat = [{"role": "system", "content": "Be brief."}, WARM, assistant("", call())]
    [context] = contexts(chat, known, tools=TOOLS)
    assert context.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert "<tool_call>" not in context
    assert trained(chat, known, tools=TOOLS)[0].startswith('<call>{"name": "weather"')
    with pytest.raises(UnsupportedError, match="shows no tools; describe them in a message"):
        trained([WARM, COLD], tokenizer("mistral"), tools=TOOLS)


def test_the_generation_config_beside_a_tokenizer_is_read(tmp_path):
    tok = tokenizer("plain")
    tok.add_special_tokens({"additional_special_tokens": ["<|stop|>"]})
    stop = tok.convert_tokens_to_ids("<|stop|>")
    tok.save_pretrained(tmp_path)
    ids = [stop, tok.eos_token_id, 5]  # 5 is not a special token: the default of a class
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}), encoding="utf-8")
    again = type(tok).from_pretrained(tmp_path)
    assert Chat(again).stop_token_ids == (tok.eos_token_id, stop)
    (tmp_path / "generation_config.json").write_text("[", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"generation_config\.json cannot be read"):
        Chat(again)


def test_two_answers_in_one_turn_are_refused():
    # The template joins them, so that the second one would be trained with the first.
    joins = (
        "{% for m in messages %}{% if m.role == 'user' or loop.previtem.role == 'user' %}"
        "<|im_start|>{{ m.role }}\n{% endif %}{{ m.content }}"
        "{% if m.role == 'user' or loop.last or loop.nextitem.role == 'user' %}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tok = tokenizer_of(joins, "<s>", "<|im_end|>")
    assert trained([WARM, COLD, MORE, MILD], tok) == ["Cold.<|im_end|>", "Warm.<|im_end|>"]
    for first in (COLD, assistant("user")):
        with pytest.raises(UnsupportedError, match=r"chat 0, message 2: .* changes the prompt of this answer"):
            trained([WARM, first, MILD], tok)


@pytest.mark.parametrize("name", ["plain", "glm", "harmony"])
def test_an_answer_with_the_end_of_a_turn_in_it_is_refused(name):
    tok = tokenizer(name)
    end = tok.convert_ids_to_tokens(Chat(tok).end_of_turn)
    chat = [WARM, COLD, {"role": "user", "content": f"What is {end}?"}, assistant(f"{end} ends a turn.")]
    assert trained(chat[:3], tok)
    with pytest.raises(
        UnsupportedError, match=f"chat 0, message 3 holds '{re.escape(end)}', the token at which the model stops"
    ):
        trained(chat, tok)
