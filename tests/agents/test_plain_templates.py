"""Programs with tools and options on templates without tools: nothing is dropped, calls are found."""

import asyncio
import json

import httpx
import pytest
from chat_gallery import tokenizer_of
from loop_agents import Client, user
from model_templates import FAMILIES
from tool_agents import CALCULATOR, call

import agentrl_core as arl
from agentrl_core import engine, env, recipes
from agentrl_core.agents import Endpoint, EngineUpstream
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

TASK = env.Task("6*7", "what is 6*7?", "products", "42")


def tokenizer(name):
    template, special, end = FAMILIES[name]
    return tokenizer_of(template, "<s>", end, special)


PLAIN, THINKING, GLM = tokenizer("plain"), tokenizer("thinking"), tokenizer("glm")


def contexts(batch, tok):
    stored = batch.contexts()
    texts = []
    for place in range(len(stored.draws)):
        begin = int(stored.offsets[place])
        steps = range(int(stored.steps[place]), int(stored.steps[place + 1]))
        texts += [tok.decode(stored.tokens[begin : begin + int(stored.begins[step])].tolist()) for step in steps]
    return texts


def collected(run, tok, replies, *, tasks=(TASK,), **options):
    world = env.Agents(run, list(tasks), tokenizer=tok, **options)
    collect = arl.Collector(
        engine.Scripted(tok, replies), world, recipes.GRPO, task_pool=1, sampling=engine.Sampling(max_tokens=200)
    )
    try:
        return collect(tasks=1, group_size=1)
    finally:
        collect.close()
        world.close()


async def uses_its_tool(task, base_url, api_key):
    ask = Client(base_url, api_key)
    messages = [{"role": "system", "content": "Add."}, user(task.question)]
    first = await ask(messages, tools=[CALCULATOR])
    [tool_call] = first["tool_calls"]
    assert tool_call["function"]["name"] == "calculate"
    assert json.loads(tool_call["function"]["arguments"]) == {"sum": "6*7"}
    assert first["content"] == "let me see"
    messages += [first, {"role": "tool", "tool_call_id": tool_call["id"], "content": "42"}]
    return float((await ask(messages, tools=[CALCULATOR]))["content"] == task.payload)


def test_tools_of_a_program_are_described_to_the_model():
    batch = collected(uses_its_tool, PLAIN, [f"let me see {call(sum='6*7')}", "42"])
    assert batch.column("reward", "draw").tolist() == [1.0]
    first, second = contexts(batch, PLAIN)
    assert first.startswith("<|im_start|>system\nAdd.\n\n# Tools")
    assert '"name": "calculate"' in first
    assert second.startswith(first + "let me see <tool_call>"), "the context goes on from what was sampled"
    assert second.endswith("<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n")
    assert len(batch.contexts().draws) == 1


def test_a_rewritten_history_keeps_its_calls():
    async def rewrites(task, base_url, api_key):
        ask = Client(base_url, api_key)
        messages = [user(task.question)]
        first = await ask(messages, tools=[CALCULATOR])
        messages += [first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "42"}]
        messages[0] = user("again: " + task.question)
        await ask(messages, tools=[CALCULATOR])
        return 1.0

    second = contexts(collected(rewrites, PLAIN, [call(sum="6*7"), "42"]), PLAIN)[1]
    assert '<tool_call>\n{"name": "calculate", "arguments": {"sum": "6*7"}}\n</tool_call>' in second


def test_a_template_with_neither_tools_nor_a_system_is_refused():
    tok = tokenizer("mistral")
    with pytest.raises(UnsupportedError, match="shows no tools; describe them in a message"):
        collected(uses_its_tool, tok, ["42", "42"])


@pytest.mark.parametrize("place", ["request", "argument", "both"])
def test_options_of_a_request_reach_its_contexts(place):
    async def run_agent(task, base_url, api_key):
        messages = [user(task.question)]
        body = {"model": "m", "messages": messages}
        kwargs = {"argument": {}, "request": {"enable_thinking": False}, "both": {"enable_thinking": True}}[place]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}) as client:
            for _ in range(2):
                request = body | ({"chat_template_kwargs": kwargs} if kwargs else {})
                reply = await client.post(f"{base_url}/chat/completions", json=request)
                messages += [reply.json()["choices"][0]["message"], user("sure?")]
            wrong = await client.post(
                f"{base_url}/chat/completions", json=body | {"chat_template_kwargs": {"tokenize": 1}}
            )
        assert wrong.status_code == 400
        assert "chat_template_kwargs has 'tokenize'" in wrong.text
        return 1.0

    arguments = {} if place == "request" else {"chat_template_kwargs": {"enable_thinking": False}}
    shown = contexts(collected(run_agent, THINKING, ["42", "yes"], **arguments), THINKING)
    off = "" if place == "both" else "<think>\n\n</think>\n\n"
    assert [text.rpartition("assistant\n")[2] for text in shown] == [off, off]
    with pytest.raises(InvalidInputError, match="chat_template_kwargs has 'tools'"):
        env.Agents(run_agent, [TASK], tokenizer=THINKING, chat_template_kwargs={"tools": []})


def test_texts_in_parts_are_joined_as_in_vllm():
    parts = [{"type": "text", "text": "<reminder>be brief</reminder>"}, {"type": "text", "text": "is it cold?"}]

    async def run_agent(_, base_url, api_key):
        await Client(base_url, api_key)([{"role": "user", "content": parts}])
        return 1.0

    [shown] = contexts(collected(run_agent, PLAIN, ["yes"]), PLAIN)
    assert "</reminder>\nis it cold?<|im_end|>" in shown


@pytest.mark.parametrize("name", ["plain", "glm"])
def test_an_environment_with_tools_needs_no_template_with_tools(name):
    tok = {"plain": PLAIN, "glm": GLM}[name]
    world = env.ToolEnvironment([TASK], [env.Calculator()], lambda task, answer: float(answer == task.payload))
    tool_call = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'
    replies = [tool_call + ("<|observation|>" if name == "glm" else ""), "42"]
    sampling = engine.Sampling(max_tokens=200)
    collect = arl.Collector(engine.Scripted(tok, replies), world, recipes.GRPO, task_pool=1, sampling=sampling)
    batch = collect(tasks=1, group_size=1)
    assert batch.column("reward", "draw").tolist() == [1.0]
    first, second = contexts(batch, tok)
    assert '"name": "calculator"' in first
    assert ("<tool_call>" in first) == (name == "plain"), "a template with a form of its own for calls keeps it"
    assert second.startswith(first + tool_call)
    if name == "glm":
        # The token that ended the call starts the tool's message, and appears once.
        assert second == f"{first}{tool_call}<|observation|>\n42<|assistant|>\n"


def test_an_answer_that_was_cut_is_closed_by_the_next_message():
    async def run_agent(task, base_url, api_key):
        messages = [user(task.question)]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}) as client:
            for most in (2, 100):
                request = {"model": "m", "messages": messages, "max_tokens": most}
                reply = await client.post(f"{base_url}/chat/completions", json=request)
                messages += [reply.json()["choices"][0]["message"], user("sure?")]
        return 1.0

    shown = contexts(collected(run_agent, GLM, ["42 and more", "yes"]), GLM)
    assert shown[1] == f"{shown[0]}42<|user|>\nsure?<|assistant|>\n"


def replies_and_prompts(tok, replies, messages, **body):
    """Return the replies of an endpoint, and the prompts of its turns."""
    served = Endpoint(EngineUpstream(engine.Scripted(tok, replies)))

    async def work():
        transport = httpx.ASGITransport(app=served.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as agent:
            responses = []
            for chat in messages:
                request = {"model": "m", "messages": chat, "max_tokens": 200, **body}
                responses.append(await agent.post("/s/one/v1/chat/completions", json=request))
            return responses

    responses = asyncio.run(work())
    turns = served._recorder.sessions["one"].turns if "one" in served._recorder.sessions else []
    return responses, [tok.decode(served._recorder.sessions["one"].context(turn.number).tolist()) for turn in turns]


def test_an_endpoint_describes_tools_and_continues_after_tool_calls():
    question = user("what is 6*7?")
    answer = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]}
    answer["tool_calls"][0]["function"] = {"name": "calculate", "arguments": '{"sum": "6*7"}'}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    replies = [call(sum="6*7"), "It is 42."]
    responses, prompts = replies_and_prompts(
        PLAIN, replies, [[question], [question, answer, result]], tools=[CALCULATOR]
    )
    message = responses[0].json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "calculate", "arguments": '{"sum": "6*7"}'}
    assert responses[0].json()["choices"][0]["finish_reason"] == "tool_calls"
    assert "# Tools" in prompts[0]
    assert prompts[1].startswith(prompts[0] + call(sum="6*7") + "<|im_end|>")
    assert prompts[1].endswith("tool\n42<|im_end|>\n<|im_start|>assistant\n")


def test_an_endpoint_refuses_a_message_that_its_template_omits():
    known = tokenizer("known")
    [reply], _ = replies_and_prompts(known, ["yes"], [[user("hi"), {"role": "critic", "content": "No."}]])
    assert reply.status_code == 400
    assert "message 1 of role 'critic'" in reply.text
    assert "leaves out the content 'No.'" in reply.text
    [reply], [prompt] = replies_and_prompts(
        THINKING, ["yes"], [[user("hi")]], chat_template_kwargs={"enable_thinking": False}
    )
    assert reply.status_code == 200
    assert prompt.endswith("<think>\n\n</think>\n\n")
