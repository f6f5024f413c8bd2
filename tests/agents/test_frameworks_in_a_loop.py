"""Programs of frameworks as `env.Agents`, in typical user code: they sample from the model, which is trained."""

from __future__ import annotations

import gc
import json

import polars as pl
import pytest
from loop_agents import TOKENIZER, RecordingEngine, collected
from matrix import shows
from tool_agents import call

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the frameworks about each other


@pytest.fixture(autouse=True)
def _collected_in_the_end():
    """Warnings about objects that frameworks leave open."""
    yield
    gc.collect()


def tool_call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def check(batch, model, turns):
    """Check that two episodes reached their ends, with every token sampled for them stored once."""
    assert batch.column("reward", "draw").tolist() == [1.0, 1.0]
    assert len(pl.DataFrame(batch.steps)) == 2 * turns
    sampled = [token for _, segment in model.exchanges for token in segment.tokens.tolist()]
    assert sorted(batch.column("token", "token").tolist()) == sorted(sampled)


@shows("smolagents", "in a loop")
def test_smolagents() -> None:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    def reply(tokens):
        text = TOKENIZER.decode(tokens, skip_special_tokens=False)
        return tool_call("final_answer", answer="14") if "the sum is 14" in text else call(sum="2*7")

    @tool
    def calculate(sum: str) -> str:  # noqa: A002 -- the name that the model reads
        """Does sums.

        Args:
            sum: the sum.
        """
        return {"2*7": "the sum is 14"}[sum]

    def run(task, base_url, api_key):
        model = OpenAIServerModel("m", api_base=base_url, api_key=api_key)
        agent = ToolCallingAgent(tools=[calculate], model=model, verbosity_level=0, max_steps=3)
        return float(agent.run(task.question) == "14")

    model = RecordingEngine(reply)
    batch = collected(run, model=model, context_tokens=100_000)
    check(batch, model, 2)
    second = [prompt for prompt, _ in model.exchanges if "the sum is 14" in prompt]
    assert len(second) == 2
    assert all("Calling tools:" in prompt for prompt in second), "it tells its call in words of its own"


@shows("mini-swe-agent (LiteLLM)", "in a loop")
def test_mini_swe_agent(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    last_command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 14"

    def reply(tokens):
        text = TOKENIZER.decode(tokens, skip_special_tokens=False)
        return "look " + tool_call("bash", command=last_command if "2 times 7" in text else "echo 2 times 7")

    def run(task, base_url, api_key):
        options = {"api_base": base_url, "api_key": api_key}
        model = LitellmModel(model_name="openai/m", model_kwargs=options, cost_tracking="ignore_errors")
        shell = LocalEnvironment(cwd=str(tmp_path))
        templates = {"system_template": "You work in a shell.", "instance_template": "{{task}}"}
        ended = DefaultAgent(model, shell, step_limit=4, **templates).run(task.question)
        return float("14" in str(ended))

    model = RecordingEngine(reply)
    batch = collected(run, model=model, context_tokens=100_000)
    check(batch, model, 2)
    first = next(prompt for prompt, _ in model.exchanges if "2 times 7" not in prompt)
    second = next(prompt for prompt, _ in model.exchanges if "2 times 7" in prompt)
    assert second.startswith(first + "look <tool_call>"), "what it said stands there as it was sampled"
