"""Text actions on a screen, their facts, and pages as text, without a browser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.env.page_elements import page_text, target_of
from agentrl_core.env.screen_action import ScreenAction, parse_action
from agentrl_core.env.screen_facts import SCREEN_FACTS, ScreenFacts

FORMS = {
    "click(30, 44)": ScreenAction("click", (30.0, 44.0)),
    " click ( 30.5,44 ) ": ScreenAction("click", (30.5, 44.0)),
    "click(7)": ScreenAction("click", (7.0,)),
    "click(1, 2, 3, 4)": ScreenAction("click", (1.0, 2.0, 3.0, 4.0)),
    'type("a  b, (c)")': ScreenAction("type", text="a  b, (c)"),
    'type("say \\"hi\\"\\n")': ScreenAction("type", text='say "hi"\n'),
    'key("Control+a")': ScreenAction("key", text="Control+a"),
    "scroll(1, 2, -30)": ScreenAction("scroll", (1.0, 2.0, -30.0)),
    "scroll(4, 30)": ScreenAction("scroll", (4.0, 30.0)),
    "I see it. <action>click(1)</action> No: <action>click(2)</action>.": ScreenAction("click", (2.0,)),
}
MALFORMED = (
    "",
    "click",
    "click()",
    "click(1, 2, 3)",
    "click(a, b)",
    'click("7")',
    "click(true)",
    "click(NaN, 1)",
    "click(1e999, 1)",
    "click(1, 2) click(3, 4)",
    "type(abc)",
    'type("a", "b")',
    "type(3)",
    'type("a" + "b")',
    f'type("{"x" * 2000}")',
    "scroll(1)",
    "drag(1, 2)",
    f"click({'[' * 900})",
    "press the button ONE",
)


@pytest.mark.parametrize("text", FORMS)
def test_an_action_is_read(text):
    assert parse_action(text) == FORMS[text]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_actions_parse_to_none(text):
    assert parse_action(text) is None


@given(st.text() | st.from_regex(r"(click|type|key|scroll)\(.*\)", fullmatch=True))
def test_no_text_raises(text):
    parsed = parse_action(text)
    assert parsed is None or parsed.kind in ("click", "type", "key", "scroll")


@given(st.text(max_size=200))
def test_any_typed_text_is_parsed_unchanged(text):
    import json

    assert parse_action(f"type({json.dumps(text)})") == ScreenAction("type", text=text)


def test_facts_of_clicks_by_hand():
    """A target of 40 x 40 on a screen of 160 x 210."""
    facts = ScreenFacts(160, 210, (60.0, 80.0, 100.0, 120.0))
    hit = facts.of(ScreenAction("click", (70, 90)), (70, 90, 70, 90))
    assert hit["matched"] == hit["reward.argument"] == hit["reward.action"] == hit["reward.format"] == 1.0
    assert [hit[f"target_{edge}"] for edge in ("x1", "y1", "x2", "y2")] == [60, 80, 100, 120]
    assert hit["task_weight"] == pytest.approx(0.2 / math.sqrt(1600 / 33600))
    missed = facts.of(ScreenAction("click", (0, 0, 50, 100)), (0, 0, 50, 100))
    assert (missed["click_x"], missed["click_y"], missed["matched"]) == (25.0, 50.0, 0.0)
    assert [missed[f"box_{edge}"] for edge in ("x1", "y1", "x2", "y2")] == [0, 0, 50, 100]
    typed = facts.of(ScreenAction("type", text="x"), None)
    assert (typed["reward.action"], typed["matched"]) == (0.0, 0.0)
    assert "click_x" not in typed
    assert facts.of(None, None, cut=True)["reward.format"] == 1.0, "a limit cut it"
    assert facts.of(None, None)["reward.format"] == 0.0
    assert facts.of(ScreenAction("click", (70, 90)), (70, 90, 70, 90))["reward.format"] == 0.0, "of all actions"
    assert set(hit) | {"points", "command"} == set(SCREEN_FACTS)


def test_without_a_target_no_target_facts_are_reported():
    facts = ScreenFacts(160, 210, None).of(ScreenAction("click", (1, 2)), (1, 2, 1, 2))
    assert not {name for name in facts if "target" in name} | ({"matched", "task_weight", "reward.action"} & set(facts))
    assert (facts["click_x"], facts["image_height"]) == (1, 210)


def element(tag, number, text="", children=(), left=0.0, **more):
    place = {"left": left, "top": 10.0, "width": 20.0, "height": 5.0}
    return {"tag": tag, "ref": number, "id": "", "text": text, "children": list(children), **place, **more}


PAGE = element(
    "BODY",
    1,
    children=[
        element("BUTTON", 2, "ok", left=3.0),
        element("BUTTON", 3, "Okay"),
        element("INPUT_text", 4, value="a", focused=True),
        element("INPUT_checkbox", 5, value=True),
        element("t", -1, "words"),
        element("DIV", 6, children=[element("SPAN", 7)]),
    ],
)


def test_a_page_as_text():
    assert page_text(PAGE).splitlines() == [
        '[2] button "ok" (3, 10, 23, 15)',
        '[3] button "Okay" (0, 10, 20, 15)',
        '[4] input_text value "a" focused (0, 10, 20, 15)',
        "[5] input_checkbox checked (0, 10, 20, 15)",
        '"words"',
    ]


def test_the_target_is_the_only_element_that_is_named():
    assert target_of("Click ok.", PAGE) == (3.0, 10.0, 23.0, 15.0)
    assert target_of("Click ok or Okay.", PAGE) is None, "two are named"
    assert target_of("Click it.", PAGE) is None, "there are several controls"
    assert target_of("Click it.", element("BODY", 1, children=[element("A", 2, "x")])) == (0.0, 10.0, 20.0, 15.0)
