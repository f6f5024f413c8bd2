"""The endpoint before a real vLLM server: its token endpoint, its parsers, and log-probs equal to the model's own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import ExitStack

import anthropic
import httpx
import numpy as np
import openai
import pytest
import torch
from matrix import shows
from ports import free_port
from templates import QWEN
from tool_agents import CALCULATOR, tokenizer
from vllm_server import serving

from agentrl_core import Store
from agentrl_core.agents import Endpoint, VllmUpstream

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")
ARGUMENTS = (
    "--no-skip-tokenizer-init",
    "--max-model-len",
    "2048",
    "--max-num-batched-tokens",
    "2048",
    "--logprobs-mode",
    "processed_logprobs",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
)
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def policy():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    words = tokenizer(QWEN)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            eos_token_id=words.eos_token_id,
        )
    ).eval()


@pytest.fixture(scope="module")
def served(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents") / "model"
    policy.save_pretrained(folder)
    tokenizer(QWEN).save_pretrained(folder)
    with serving(folder, folder.parent / "log", *ARGUMENTS) as server:
        endpoint = Endpoint(VllmUpstream(server.url))
        with endpoint.running() as url:
            yield endpoint, url


@pytest.fixture
def opened():
    """Close the clients of a test."""
    with ExitStack() as stack:
        yield stack.enter_context


def logprobs_of(policy, context, output):
    """Return the log-probs of the model itself."""
    with torch.no_grad():
        path = torch.tensor([[*context, *output]])
        logprobs = (policy(path).logits[0].double() / TEMPERATURE).log_softmax(-1)
    return logprobs[len(context) - 1 : -1].gather(1, torch.tensor(output)[:, None])[:, 0].numpy()


def check_recorded(served, policy, name, turns):
    """Each turn continues the previous one, after tokens that the server received, with the model's log-probs."""
    recorded = served._recorder.sessions[name]
    assert len(recorded.turns) == turns
    for turn in recorded.turns:
        context = recorded.context(turn.number)
        assert turn.origin == turn.number - 1
        if turn.number:
            before = recorded.path(turn.number - 1)
            assert turn.shared == len(before), "the server read the tokens that it was given"
        np.testing.assert_allclose(turn.logprobs, logprobs_of(policy, context, turn.output), atol=2e-5)
    return recorded


@shows("openai SDK", "vLLM", "streaming")
def test_turns_go_on_from_the_very_tokens(served, opened, policy) -> None:
    endpoint, url = served
    client = opened(openai.OpenAI(base_url=f"{url}/s/chat/v1", api_key="none"))
    messages = [{"role": "user", "content": "hello"}]
    for turn in range(4):
        stream = turn % 2 == 1
        options = {"model": "m", "messages": messages, "max_tokens": 12, "temperature": TEMPERATURE, "seed": turn}
        if stream:
            parts = list(client.chat.completions.create(stream=True, **options))
            content = "".join(part.choices[0].delta.content or "" for part in parts)
        else:
            content = client.chat.completions.create(**options).choices[0].message.content
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": f"go on {turn}"}]
    recorded = check_recorded(endpoint, policy, "chat", 4)
    endpoint.close("chat", reward=1.0)
    batch = endpoint.commit()
    assert batch.column("token", "token").size == sum(len(turn.output) for turn in recorded.turns)


@shows("openai SDK", "vLLM", "tools")
def test_calls_of_tools_are_parsed_by_the_server(served, opened) -> None:
    endpoint, url = served
    client = opened(openai.OpenAI(base_url=f"{url}/s/tools/v1", api_key="none"))
    messages = [{"role": "user", "content": "6*7?"}]
    choice = {"type": "function", "function": {"name": "calculate"}}
    options = {"model": "m", "tools": [CALCULATOR], "max_tokens": 200, "temperature": TEMPERATURE}
    first = client.chat.completions.create(messages=messages, tool_choice=choice, seed=1, **options).choices[0]
    [tool_call] = first.message.tool_calls
    assert tool_call.function.name == "calculate"
    assert isinstance(tool_call.function.arguments, str)
    messages += [
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": tool_call.id, "content": "42"},
    ]
    client.chat.completions.create(messages=messages, seed=2, **(options | {"max_tokens": 8}))
    recorded = endpoint._recorder.sessions["tools"]
    second = recorded.turns[1]
    assert second.origin == 0
    assert second.shared == len(recorded.path(0)), "what it sampled, not what the template makes of the call"
    assert "42" in tokenizer(QWEN).decode(second.added)


def by_anthropic(base, opened):
    """Run two turns by the client of Anthropic."""
    client = opened(anthropic.Anthropic(base_url=base, api_key="none"))
    warm = {"temperature": TEMPERATURE}
    messages = [{"role": "user", "content": "hello"}]
    for _ in range(2):
        reply = client.messages.create(model="m", messages=messages, max_tokens=12, extra_body=warm)
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "go on"}]


def by_langgraph(base, opened):
    """Run two turns of a graph."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph

    del opened
    options = {"temperature": TEMPERATURE, "max_tokens": 12}
    model = ChatOpenAI(model="m", base_url=f"{base}/v1", api_key="none", **options)
    graph = StateGraph(MessagesState)
    graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "agent")
    first = graph.compile().invoke({"messages": [("user", "hello")]})
    graph.compile().invoke({"messages": [*first["messages"], ("user", "go on")]})


def by_openai_agents(base, opened):
    """Run two turns of an agent."""
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

    del opened
    set_tracing_disabled(disabled=True)

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as client:
            settings = ModelSettings(temperature=TEMPERATURE, max_tokens=12)
            agent = Agent(name="a", model=OpenAIChatCompletionsModel("m", client), model_settings=settings)
            first = await Runner.run(agent, "hello")
            await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "go on"}])

    asyncio.run(run())


@shows("anthropic SDK", "vLLM")
@shows("LangGraph", "vLLM")
@shows("OpenAI Agents SDK", "vLLM")
@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.parametrize("talk", [by_anthropic, by_langgraph, by_openai_agents])
def test_other_clients_go_on_from_the_very_tokens_too(talk, served, opened, policy) -> None:
    endpoint, url = served
    talk(f"{url}/s/{talk.__name__}", opened)
    check_recorded(endpoint, policy, talk.__name__, 2)


def test_the_vllm_server_passes_the_check_and_its_errors_reach_the_client(served, opened) -> None:
    endpoint, url = served

    async def look() -> None:
        upstream = VllmUpstream(endpoint.upstream._url)
        await upstream.check()
        await upstream.close()

    asyncio.run(look())
    client = opened(openai.OpenAI(base_url=f"{url}/s/bad/v1", api_key="none", max_retries=0))
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 5000}])
    assert json.loads(client.models.list().model_dump_json())["data"]
    assert endpoint._recorder.sessions["bad"].turns == []


def test_agentrl_serve_records_to_a_store(served, opened, tmp_path) -> None:
    endpoint, _ = served
    port = free_port()
    command = [sys.executable, "-m", "agentrl_core", "serve", "--upstream", endpoint.upstream._url]
    command += ["--store", str(tmp_path / "run"), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert f"recording at http://127.0.0.1:{port}" in process.stderr.readline()
        client = opened(openai.OpenAI(base_url=f"http://127.0.0.1:{port}/s/one/v1", api_key="none", max_retries=20))
        messages = [{"role": "user", "content": "hello"}]
        choice = client.chat.completions.create(model="m", messages=messages, max_tokens=8).choices[0]
        closed = httpx.post(f"http://127.0.0.1:{port}/sessions/one/close", json={"reward": 1.0}, timeout=600)
        assert closed.status_code == 200
        assert httpx.post(f"http://127.0.0.1:{port}/iterations", timeout=600).status_code == 200
        process.send_signal(signal.SIGINT)
        process.communicate()
    with Store.open(tmp_path / "run", read_only=True) as store:
        assert store.verify() == []
        batch = store.batch(0)
    assert batch.column("reward", "draw").tolist() == [1.0]
    assert choice.message.content or choice.message.tool_calls
    assert batch.column("token", "token").size <= 8
