"""Agents of frameworks in typical user code: each calls its tool, gets the result, ends, and is recorded."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import ExitStack

import pytest
from matrix import shows
from tool_agents import call, endpoint

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the frameworks about each other
KEY = "none"


@pytest.fixture
def served_url():
    """Serve an endpoint. Objects that frameworks leave open are collected at the end."""
    with ExitStack() as stack:

        def serve(replies):
            served = endpoint(replies)
            return served, stack.enter_context(served.running())

        yield serve
    gc.collect()


def turns_of(served, count, name="s"):
    """Return the turns of a session, each of which continues the previous one."""
    recorded = served._recorder.sessions[name]
    assert len(recorded.turns) == count
    for number, turn in enumerate(recorded.turns[1:], 1):
        before = recorded.turns[number - 1]
        assert turn.origin == number - 1
        assert turn.shared == before.shared + len(before.added) + len(before.output), "all that was sampled is kept"
    return recorded.turns


def added(served, turn):
    return served.upstream._tokenizer.decode(turn.added, skip_special_tokens=False)


@shows("LangGraph", "answers", "tools", "history")
def test_langgraph(served_url) -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    @tool
    def calculate(sum: str) -> str:  # noqa: A002 -- the name that the model reads
        """Does sums."""
        return {"6*7": "42"}[sum]

    served, url = served_url([f"let me see {call(sum='6*7')}", "it is 42"])
    model = ChatOpenAI(model="m", base_url=f"{url}/s/s/v1", api_key=KEY).bind_tools([calculate])
    graph = StateGraph(MessagesState)
    graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([calculate]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    answer = graph.compile().invoke({"messages": [("user", "6*7?")]})
    assert answer["messages"][-1].content == "it is 42"
    _, second = turns_of(served, 2)
    assert "<tool_response>\n42\n</tool_response>" in added(served, second)


@shows("OpenAI Agents SDK", "answers", "tools", "history")
@pytest.mark.parametrize("door", ["chat", "responses"])
def test_openai_agents(served_url, door) -> None:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)

    @function_tool
    def calculate(sum: str) -> str:  # noqa: A002 -- the name that the model reads
        """Does sums."""
        return {"6*7": "42"}[sum]

    served, url = served_url([f"let me see {call(sum='6*7')}", "it is 42"])
    client = AsyncOpenAI(base_url=f"{url}/s/s/v1", api_key=KEY)
    kind = OpenAIChatCompletionsModel if door == "chat" else OpenAIResponsesModel
    agent = Agent(name="a", instructions="be brief", tools=[calculate], model=kind("m", client))
    assert asyncio.run(Runner.run(agent, "6*7?")).final_output == "it is 42"
    _, second = turns_of(served, 2)
    assert "<tool_response>\n42\n</tool_response>" in added(served, second)


@shows("smolagents", "answers", "tools", "rewriting")
def test_smolagents_which_rewrites_its_memory(served_url) -> None:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def calculate(sum: str) -> str:  # noqa: A002 -- the name that the model reads
        """Does sums.

        Args:
            sum: the sum.
        """
        return {"6*7": "42"}[sum]

    final = json.dumps({"name": "final_answer", "arguments": {"answer": "it is 42"}})
    served, url = served_url([call(sum="6*7"), f"<tool_call>\n{final}\n</tool_call>"])
    model = OpenAIServerModel("m", api_base=f"{url}/s/s/v1", api_key=KEY)
    agent = ToolCallingAgent(tools=[calculate], model=model, verbosity_level=0)
    assert agent.run("6*7?") == "it is 42"
    recorded = served._recorder.sessions["s"]
    first, second = recorded.turns
    text = served.upstream._tokenizer.decode(recorded.context(1), skip_special_tokens=False)
    assert "Calling tools:" in text, "it tells its call in words of its own"
    # The model's context differs from its own output: the second turn leaves the first before its answer.
    assert second.shared <= len(first.added) + 1
    served.close("s", reward=1.0)
    assert served.commit().column("token", "token").size == len(first.output) + len(second.output)


@shows("mini-swe-agent (LiteLLM)", "answers", "tools", "history")
def test_mini_swe_agent(served_url, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    last_command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 42"

    def bash(command):
        return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"

    served, url = served_url([f"look {bash('echo 6 times 7')}", f"done {bash(last_command)}"])
    model = LitellmModel(
        model_name="openai/m", model_kwargs={"api_base": f"{url}/s/s/v1", "api_key": KEY}, cost_tracking="ignore_errors"
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=str(tmp_path)),
        system_template="You work in a shell.",
        instance_template="{{task}}",
        step_limit=4,
    )
    agent.run("how much is 6 times 7?")
    _, second = turns_of(served, 2)
    assert "6 times 7" in added(served, second)


@shows("an agent that compacts (openai SDK)", "answers", "rewriting")
def test_an_agent_that_compacts_its_history(served_url) -> None:
    import openai

    served, url = served_url(["a long story", "a summary", "the end"])

    def ask(messages):
        with openai.OpenAI(base_url=f"{url}/s/s/v1", api_key=KEY) as client:
            message = client.chat.completions.create(model="m", messages=messages).choices[0].message
        return {"role": "assistant", "content": message.content}

    system, question = {"role": "system", "content": "be brief"}, {"role": "user", "content": "tell me"}
    story = ask([system, question])
    summary = ask([system, question, story, {"role": "user", "content": "sum up"}])
    ask([system, {"role": "user", "content": f"so far: {summary['content']}. Go on"}])
    recorded = served._recorder.sessions["s"]
    third = recorded.turns[2]
    text = served.upstream._tokenizer.decode(recorded.context(2), skip_special_tokens=False)
    assert "a long story" not in text, "the compacted context is what the model saw"
    assert third.shared <= len(recorded.turns[0].added)
    served.close("s", reward=1.0)
    batch = served.commit()
    assert batch.column("token", "token").size == sum(len(turn.output) for turn in recorded.turns)
