"""The example of the docs in a short form: the LangGraph program runs unchanged, and is trained."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from matrix import shows

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_calculator.py"


@shows("LangGraph", "in a loop")
@pytest.mark.filterwarnings("ignore")  # of the framework
def test_the_example_runs(capsys) -> None:
    example = runpy.run_path(str(EXAMPLE))
    result = example["learned"](0, iterations=1, rollouts=16, steps=40, held_out=3)
    assert len(result["success"]) == 1
    for which in ("before", "after"):
        success, low, high = result[which]
        assert 0.0 <= low <= success <= high <= 1.0
    assert "seed 0 iteration 0 success" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<call>73+15</call>", {"name": "calculator", "arguments": '{"expression": "73+15"}'}),
        ("<answer>88</answer>", None),
    ],
)
def test_the_small_model_calls_as_it_was_shown(text, message) -> None:
    from agentrl_core import env, warm_start
    from agentrl_core.agents.answer_messages import parse_message

    example = runpy.run_path(str(EXAMPLE))
    tokenizer = example["with_response_format"](warm_start.build(env.ReasoningGym(["lcm"]), seed=0)[1])
    parsed = parse_message(tokenizer, text, "<assistant>")
    if message is None:
        assert parsed == {"content": text}
    else:
        assert parsed["tool_calls"][0]["function"] == message
    rendered = tokenizer.apply_chat_template([{"role": "tool", "content": "88"}], tokenize=False)
    assert rendered == "<result>88</result>"
