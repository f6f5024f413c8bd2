"""Rendering all answers of a chat takes time linear in its length, and equals rendering each answer alone."""

import random

import pytest
from chat_gallery import NAMES, TOOLS, assistant, call, gallery_tokenizer, tool

from agentrl_core.engine.chat_messages import plain_message
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.engine.rendered_history import RenderedHistory
from agentrl_core.exceptions import UnsupportedError

# Each has another way to write thoughts in history, to end turns or to write calls.
TEMPLATES = [
    "qwen2_5",
    "qwen3",
    "qwen3_5_think",
    "gptoss",
    "glm4moe",
    "nemotron_3_nano",
    "lfm2_2_5",
    "deepseek_r1_distill",
]


def user(text):
    return {"role": "user", "content": text}


def long_chat(kind, answers):
    messages = [user("how warm is it?")]
    for number in range(answers - 1):
        if kind == "calls":
            messages += [assistant("", call("weather", 1, city=f"city {number}")), tool(f"{number} degrees")]
        else:
            thought = {"reasoning_content": f"because {number}"} if kind == "thoughts" else {}
            messages += [assistant(f"Cold {number}.", **thought), user(f"And day {number}?")]
    return plain([*messages, assistant("Warm.")])


def plain(messages):
    return [plain_message(message, "a message") for message in messages]


def each_on_its_own(template, messages, tools):
    """The naive reference: no answer is cut out of the history."""
    return template._answers(messages, tools, "chat", RenderedHistory("", template._closes_in_history), None)


def rendered_characters(template, work):
    count, render = 0, template.render

    def counted(*arguments, **options):
        nonlocal count
        text = render(*arguments, **options)
        count += len(text)
        return text

    template.render = counted
    try:
        work()
    finally:
        template.render = render
    return count


def outcome(work, *arguments):
    """Return the answers as plain values, or the error."""
    try:
        return [(each.message, each.context.tolist(), each.action.tolist()) for each in work(*arguments)]
    except UnsupportedError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["calls", "answers", "thoughts"])
@pytest.mark.parametrize(
    "name", [*TEMPLATES, *(pytest.param(name, marks=pytest.mark.full) for name in NAMES if name not in TEMPLATES)]
)
def test_the_characters_for_an_answer_do_not_grow_with_the_chat(name, kind):
    template = ChatTemplate(gallery_tokenizer(name))
    tools = TOOLS if kind == "calls" else ()
    few, many = long_chat(kind, 24), long_chat(kind, 96)
    refused = outcome(template.answers, few, tools)
    if isinstance(refused, str):
        assert name not in TEMPLATES or name in ("qwen2_5", "deepseek_r1_distill")
        assert "the template of tokenizer" in refused
        return
    before = rendered_characters(template, lambda: each_on_its_own(template, few, tools)) / 24
    short = rendered_characters(template, lambda: template.answers(few, tools)) / 24
    long = rendered_characters(template, lambda: template.answers(many, tools)) / 96
    assert long < 1.2 * short  # four times as much would be quadratic
    assert short < 0.9 * before
    assert outcome(template.answers, few, tools) == outcome(each_on_its_own, template, few, tools)


def any_chat(source, length):
    """A chat with repeated texts, texts that contain markup, or texts with spaces around them."""
    messages, thinks = [user(source.choice(["hi", "how  warm? ", "a"]))], source.random() < 0.5
    while len(messages) < length:
        thought = (
            {"reasoning_content": source.choice(["why", "It is", "cold"])} if source.random() < 0.7 * thinks else {}
        )
        if source.random() < 0.6:
            messages.append(assistant("", call("weather", 1, city=source.choice(["Oslo", 'R"m', "a"])), **thought))
            messages.append(tool(source.choice(["4 degrees", "warm", '{"a": 1}', "a"])))
        else:
            text = source.choice(["Cold.", "a", "user", "\n\nWarm\n", "", "<|im_start|>assistant\nno"])
            messages.append(assistant(text, **thought))
            messages.append(user(source.choice(["And?", "tomorrow", "a", "assistant"])))
    return plain([*messages, assistant("Warm.")])


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_that_are_rendered_one_by_one(name):
    template = ChatTemplate(gallery_tokenizer(name))
    source = random.Random(name)
    for length in (8, 14, 22):
        messages, tools = any_chat(source, length), TOOLS if source.random() < 0.7 else ()
        assert outcome(template.answers, messages, tools) == outcome(each_on_its_own, template, messages, tools)
    simple = long_chat("answers", 12)
    answers = outcome(template.answers, simple)
    assert len(answers) == 12
    assert answers == outcome(each_on_its_own, template, simple, ())


def test_a_template_that_counts_is_not_cut():
    # From the seventh answer on it writes another header: the last answer differs from the cut one.
    tok = gallery_tokenizer("qwen2_5")
    tok.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ ' late' if messages | length > 12 and m.role == 'user' }}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate(tok)
    messages = long_chat("answers", 12)
    answers = template.answers(messages)
    assert outcome(template.answers, messages) == outcome(each_on_its_own, template, messages, ())
    assert "late" not in tok.decode(answers[3].context)
    assert "late" in tok.decode(answers[-1].context)


CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\nOWN{{ m.content }}NOTE<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\nOPENING{% endif %}"
)
LAST_WINS = (
    "{%- set ns = namespace(off=false) %}{%- for m in messages if m.role == 'user' %}"
    "{%- if '/no_think' in m.content %}{%- set ns.off = true %}{%- elif '/think' in m.content %}"
    "{%- set ns.off = false %}{%- endif %}{%- endfor %}"
)


def chatml(own="", note="", opening=""):
    return CHATML.replace("OWN", own).replace("NOTE", note).replace("OPENING", opening)


def opens(flag):
    """The next answer starts with an empty thought if a question has a property, which the history does not show."""
    last = "{% if loop.last and m.role == 'assistant' and " + flag.format("messages[loop.index0 - 1].content") + " %}"
    thought = "<think></think>{% endif %}"
    return chatml(own=last + thought, opening="{% if " + flag.format("messages[-1].content") + " %}" + thought)


ADVERSARIAL = {
    "a flag in the question": opens("{}.startswith('!')"),
    "a long question": opens("{} | length > 40"),
    "the last flag": LAST_WINS + opens("ns.off"),
    "a mark in history": chatml(note="{% if not loop.last and m.content | length > 40 %} (read){% endif %}"),
    "a mark at the end": chatml(
        note="{% if loop.last and m.role == 'assistant' and m.content | length > 40 %} (long){% endif %}"
    ),
    "a cut history": CHATML.replace("OPENING", "")
    .replace("OWN", "")
    .replace("{{ m.content }}NOTE", "{{ m.content if loop.revindex < 4 else m.content[:40] }}"),
}


@pytest.mark.parametrize("odd", [3, 5, 6, 7, 9, 11])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_an_answer_that_is_not_rendered_after_all_before_it_hides_nothing(name, odd):
    """The texts of one turn, which no other rendering includes, change the template's output."""
    tok = gallery_tokenizer("qwen2_5")
    tok.chat_template = ADVERSARIAL[name]
    template = ChatTemplate(tok)
    messages = long_chat("answers", 16)
    question, answer = messages[2 * odd], messages[2 * odd + 1]
    question["content"] = "!" + question["content"] + " /no_think, and do say it at some length, please"
    answer["content"] = answer["content"] + " It is said at some length, as it was asked for."
    answers = outcome(template.answers, messages)
    assert answers == outcome(each_on_its_own, template, messages, ())
    texts = ["".join(map(tok.decode, pair)) for _, *pair in answers] if isinstance(answers, list) else []
    assert texts == [] or any(text != texts[0] for text in texts)


def test_flags_of_earlier_turns_are_remembered_in_their_order():
    tok = gallery_tokenizer("qwen2_5")
    tok.chat_template = ADVERSARIAL["the last flag"]
    template = ChatTemplate(tok)
    for flags in ({3: "/no_think", 7: "/think"}, {1: "/think", 3: "/no_think", 5: "/think", 9: "/no_think"}):
        messages = long_chat("answers", 14)
        for place, flag in flags.items():
            messages[2 * place]["content"] += f" {flag}"
        answers = outcome(template.answers, messages)
        assert answers == outcome(each_on_its_own, template, messages, ())
        opened = [tok.decode(context).endswith("<think></think>") for _, context, _ in answers]
        assert True in opened
        assert False in opened
