"""Programs inside a collector: their sampled tokens are trained, whatever the program does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import anthropic
import httpx
import openai
import polars as pl
import pytest
from loop_agents import (
    TASKS,
    TOKENIZER,
    Client,
    RecordingEngine,
    collected,
    collector,
    scripted_answer,
    tool_user,
    user,
)
from matrix import shows

import agentrl_core as arl
from agentrl_core import Store, engine, env, recipes
from agentrl_core.advantage import Discounted
from agentrl_core.env.protocol_check import CheckReport
from agentrl_core.exceptions import AgentRLError, AgentRLWarning, InvalidInputError

SUPPORT = Path(__file__).parents[1] / "support"
STATUS = ("finished", "truncated", "aborted", "pruned", "failed", "partial")


def statuses(batch):
    return [STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"]]


def right_or_wrong(request):
    """Return a right or a wrong answer, depending on the request's seed."""
    question = TOKENIZER.decode(request.tokens).partition("*7?")[0]
    return str(7 * int(question[-1])) if request.seed % 2 else "0"


def test_an_agent_with_a_tool_is_trained_on_its_sampled_tokens() -> None:
    model = RecordingEngine(scripted_answer)
    batch = collected(tool_user, tasks=4, group_size=2, model=model)
    assert batch.num_draws == 8
    assert batch.column("reward", "draw").tolist() == [1.0] * 8
    assert batch.column("success", "draw").all()
    sampled = [token for _, segment in model.exchanges for token in segment.tokens.tolist()]
    assert sorted(batch.column("token", "token").tolist()) == sorted(sampled)
    second = [prompt for prompt, _ in model.exchanges if "<tool_response>" in prompt]
    assert len(second) == 8
    for prompt in second:
        assert '"calculate"' in prompt.partition("<|im_start|>user")[0], "tools are shown as the template shows them"
        # Sampled tokens are stored unchanged, followed by the program's answer.
        assert "let me see <tool_call>" in prompt
        assert prompt.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("recipe", [recipes.GRPO, recipes.GIGPO], ids=["grpo", "gigpo"])
def test_recipes_compute_advantages_of_agent_rollouts(recipe) -> None:
    async def run(task, base_url, api_key):
        ask = Client(base_url, api_key)
        first = await ask([user(task.question)])
        second = await ask([user(task.question), first, user("sure?")])
        return float(second["content"] == task.payload)

    batch = collected(run, tasks=1, group_size=8, recipe=recipe, speaker=right_or_wrong)
    credited = recipe.credit(batch)
    advantages = credited.column("advantage", "token")
    rewards = batch.column("reward", "draw")
    assert 0 < rewards.sum() < 8
    assert advantages.max() > 0 > advantages.min()


@shows("openai SDK", "in a loop")
@shows("openai SDK, Responses", "in a loop")
@shows("anthropic SDK", "in a loop")
@pytest.mark.parametrize("speak", ["chat", "responses", "messages"])
def test_real_clients_inside_a_loop(speak) -> None:
    model = RecordingEngine(lambda tokens: f"answer {len(tokens)}")

    async def answer_of(client, messages):
        if speak == "chat":
            reply = await client.chat.completions.create(model="m", messages=messages)
            return reply.choices[0].message.content
        if speak == "responses":
            return (await client.responses.create(model="m", input=messages)).output_text
        return (await client.messages.create(model="m", messages=messages, max_tokens=64)).content[0].text

    async def run(task, base_url, api_key):
        kind = anthropic.AsyncAnthropic if speak == "messages" else openai.AsyncOpenAI
        url = base_url.removesuffix("/v1") if speak == "messages" else base_url
        async with kind(base_url=url, api_key=api_key) as client:
            messages = [user(task.question)]
            for _ in range(2):
                answer = await answer_of(client, messages)
                messages += [{"role": "assistant", "content": answer}, user("go on")]
        return 1.0

    batch = collected(run, group_size=1, model=model)
    assert batch.num_draws == 1
    first, second = model.exchanges
    assert second[0].startswith(first[0] + TOKENIZER.decode(first[1].tokens, skip_special_tokens=False))
    sampled = [token for _, segment in model.exchanges for token in segment.tokens.tolist()]
    assert batch.column("token", "token").tolist() == sampled


@shows("OpenAI Agents SDK", "in a loop")
@pytest.mark.filterwarnings("ignore")  # of the framework
def test_the_openai_agents_sdk_inside_a_loop() -> None:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(disabled=True)

    @function_tool
    def calculate(sum: str) -> str:  # noqa: A002 -- the name that the model reads
        """Does sums."""
        return str(7 * int(sum.partition("*")[0]))

    async def run(task, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            agent = Agent(name="a", tools=[calculate], model=OpenAIChatCompletionsModel("m", client))
            answer = (await Runner.run(agent, task.question)).final_output
        return float(answer == task.payload)

    batch = collected(run, tasks=2, group_size=2)
    assert batch.column("reward", "draw").tolist() == [1.0] * 4
    assert pl.DataFrame(batch.steps)["step"].to_list() == [0, 1] * 4


@shows("an agent that compacts (openai SDK)", "in a loop")
def test_a_compacted_history_is_trained_as_a_separate_sequence() -> None:
    model = RecordingEngine(["a long story", "the end"] * 2)

    async def run(_, base_url, api_key):
        ask = Client(base_url, api_key)
        system = {"role": "system", "content": "be brief"}
        await ask([system, user("tell me")])
        await ask([system, user("so far: a story. Go on")])
        return 1.0

    batch = collected(run, group_size=2, model=model)
    assert batch.num_draws == 2, "a history that was summed up goes on in the same lane"
    prompts = [prompt for prompt, _ in model.exchanges if "so far" in prompt]
    assert len(prompts) == 2
    assert not any("a long story" in prompt for prompt in prompts)
    assert batch.column("token", "token").size == sum(len(segment.tokens) for _, segment in model.exchanges)
    contexts = batch.plan(range(2), max_tokens=10_000)[0]
    assert len(contexts.cu_seqlens) - 1 == 4, "each context trains as a sequence of its own"


@shows("sub-agents (openai SDK)", "in a loop")
def test_sub_agents_are_lanes_that_do_not_discount_each_other() -> None:
    async def run(task, base_url, api_key):
        ask = Client(base_url, api_key)
        main = [{"role": "system", "content": "you lead"}, user(task.question)]
        plan = await ask(main)

        async def sub(number):
            messages = [{"role": "system", "content": f"you help {number}"}, user("do it")]
            messages += [await ask(messages), user("more")]
            return (await ask(messages))["content"]

        answers = await asyncio.gather(sub(1), sub(2))
        await ask([*main, plan, user(" ".join(answers))])
        return 0.5

    batch = collected(run, tasks=1, group_size=2, recipe=recipes.GIGPO)
    # A session has three lanes of two turns each, and each lane has the reward of the session.
    assert batch.num_draws == 6
    assert batch.column("reward", "draw").tolist() == [0.5] * 6
    rewards = pl.DataFrame(batch.steps)["reward"].fill_nan(None).to_list()
    assert rewards == [None, 0.5] * 6, "the last turn of each lane is paid, and no other"
    # A = r_2 at the second turn of a lane, 0.95 * r_2 at its first: no turn of another lane is between them.
    returns = Discounted(gamma=0.95)(batch).column("advantage", "step")
    assert returns.tolist() == pytest.approx([0.475, 0.5] * 6)
    frame = pl.DataFrame(batch.trajectories)
    assert frame["episode_id"].n_unique() == 2


def test_a_resumed_conversation_continues_from_its_own_tokens() -> None:
    model = RecordingEngine(lambda tokens: f"said {len(tokens)}")

    async def run(_, base_url, api_key):
        ask = Client(base_url, api_key)
        main = [user("lead")]
        main += [await ask(main), user("on")]
        await ask([{"role": "system", "content": "help"}, user("other")])
        await ask(main)
        return 1.0

    batch = collected(run, group_size=1, model=model)
    assert batch.num_draws == 2
    first, _, third = model.exchanges
    assert third[0].startswith(first[0])
    assert TOKENIZER.decode(first[1].tokens) in third[0]


@shows("openai SDK, Completions", "in a loop")
def test_a_prompt_that_is_completed_is_a_lane_of_one_turn() -> None:
    model = RecordingEngine(lambda request: f"seven and {request.seed % 1000}")
    texts = []
    ids = TOKENIZER("six times seven is", add_special_tokens=False)["input_ids"]

    async def run(task, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            completion = await client.completions.create(model="m", prompt="two times seven is", n=2)
            texts.extend(choice.text for choice in completion.choices)
            stream = await client.completions.create(model="m", prompt=ids, max_tokens=2, stream=True)
            texts.append("".join([part.choices[0].text async for part in stream]))
            chat = await client.chat.completions.create(model="m", messages=[user(task.question)])
            texts.append(chat.choices[0].message.content)
        return 1.0

    batch = collected(run, group_size=1, model=model)
    prompts, segments = zip(*model.exchanges, strict=True)
    assert prompts[:3] == ("two times seven is", "two times seven is", "six times seven is"), "no template"
    assert prompts[3].startswith("<|im_start|>")
    assert [segment.finish_reason for segment in segments] == ["stop", "stop", "length", "stop"]
    assert texts == [TOKENIZER.decode(segment.tokens, skip_special_tokens=True) for segment in segments]
    assert len(set(texts)) == 4
    assert batch.num_draws == 4
    assert batch.column("reward", "draw").tolist() == [1.0] * 4
    assert pl.DataFrame(batch.steps).group_by("trajectory_id").len()["len"].to_list() == [1] * 4
    nodes = pl.DataFrame(batch.nodes)["tokens"].to_list()
    assert ids in nodes, "ids stay as they were given"
    assert {tuple(segment.tokens.tolist()) for segment in segments} <= set(map(tuple, nodes))


def test_ids_need_a_tokenizer() -> None:
    replies = []

    async def run(_, base_url, api_key):
        async with httpx.AsyncClient(timeout=60, headers={"Authorization": f"Bearer {api_key}"}) as client:
            replies.append(await client.post(f"{base_url}/completions", json={"prompt": [1, 2]}))
            replies.append(await client.post(f"{base_url}/completions", json={"prompt": "a text"}))
        return 1.0

    world = env.Agents(run, TASKS)
    collect = arl.Collector(engine.Scripted(TOKENIZER, ["yes"]), world, recipes.GRPO, task_pool=1)
    assert collect(tasks=1, group_size=1).num_draws == 1
    collect.close()
    world.close()
    assert [reply.status_code for reply in replies] == [400, 200]
    assert "env.Agents(tokenizer=...)" in replies[0].json()["error"]["message"]


def test_programs_that_break_down_fail_and_harm_no_other() -> None:
    tries = dict.fromkeys((task.task_id for task in TASKS), 0)
    ended = []

    async def run(task, base_url, api_key):
        tries[task.task_id] += 1
        ask = Client(base_url, api_key)
        if task.task_id == "2*7":
            return 1.0  # sends no request
        await ask([user(task.question)])
        if task.task_id == "3*7":
            raise ValueError("a bug of the program")
        if task.task_id == "4*7":
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(task.task_id)
        return 1.0

    with pytest.warns(RuntimeWarning, match="failed 3 times"):
        batch = collected(run, tasks=4, group_size=1, call_seconds=2.0)
    status_codes = dict(pl.DataFrame(batch.trajectories).select("task_id", "status").iter_rows())
    status_names = {task: STATUS[status] for task, status in status_codes.items()}
    # A program without requests has no tokens to store.
    assert status_names == {"3*7": "failed", "4*7": "failed", "5*7": "finished"}
    # On a busy machine others may fail too, and are retried.
    assert min(tries["2*7"], tries["3*7"], tries["4*7"]) >= 3, "a program that breaks down is run twice more"
    assert batch.num_draws == 1
    assert set(ended) == {"4*7"}
    assert len(ended) >= 3, "what hangs is ended"


@pytest.mark.filterwarnings("ignore:iteration 0 has no draws")
@pytest.mark.parametrize("raised", [SystemExit("enough"), asyncio.CancelledError()], ids=["exit", "cancelled"])
@pytest.mark.parametrize("blocks", [False, True])
def test_an_agent_that_exits_fails_its_trajectory_after_three_attempts(raised, blocks) -> None:
    attempts = []

    async def run(task, base_url, api_key):
        attempts.append(await Client(base_url, api_key)([user(task.question)]))
        raise raised

    def plain(task, base_url, api_key):
        asyncio.run(Client(base_url, api_key)([user(task.question)]))
        attempts.append(task)
        raise raised

    with (
        pytest.warns(RuntimeWarning, match="iteration 0 has no draws, .* 1 trajectories failed"),
        pytest.warns(RuntimeWarning, match=f"run raised {type(raised).__name__}"),
    ):
        batch = collected(plain if blocks else run, group_size=1)
    assert statuses(batch) == ["failed"]
    assert len(attempts) == 3


@pytest.mark.parametrize("runs", ["a coroutine", "a thread"])
def test_an_agent_that_sends_no_request_is_reported_with_its_task(runs) -> None:
    async def coroutine(*_):
        return 1.0

    task = env.Task("silent", "?", "sums", None)
    world = env.Agents(coroutine if runs == "a coroutine" else lambda *_: 1.0, [task])
    with pytest.raises(AgentRLError, match="run of task 'silent' ended without a request to the model; call"):
        asyncio.run(world.reset(task, 0))
    world.close()


def test_a_request_after_the_end_of_an_episode_is_rejected() -> None:
    outcomes, episode_ended = [], threading.Event()

    def later(base_url, api_key):
        episode_ended.wait(60)
        body = {"messages": [user("still there?")]}
        headers = {"Authorization": f"Bearer {api_key}"}
        try:
            outcomes.append(
                httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60).status_code
            )
        except httpx.HTTPError as error:
            outcomes.append(error)

    threads = []

    async def run(task, base_url, api_key):
        await Client(base_url, api_key)([user(task.question)])
        threads.append(threading.Thread(target=later, args=(base_url, api_key)))
        threads[-1].start()
        return 1.0

    collect, world = collector(run)
    batch = collect(tasks=1, group_size=1)
    episode_ended.set()
    for thread in threads:
        thread.join()
    collect.close()
    world.close()
    assert outcomes == [404]
    assert statuses(batch) == ["finished"]


def test_a_plain_function_may_block() -> None:
    def run(task, base_url, api_key):
        headers = {"Authorization": f"Bearer {api_key}"}
        body = {"messages": [user(task.question)]}
        reply = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60).json()
        return float(reply["choices"][0]["message"]["content"] == task.payload)

    batch = collected(run, tasks=2, group_size=8, speaker=right_or_wrong)
    assert 0 < batch.column("reward", "draw").sum() < 16


def test_a_retried_request_is_generated_once() -> None:
    model = RecordingEngine(["one", "two"])
    answers = []

    async def run(task, base_url, api_key):
        ask = Client(base_url, api_key)
        answers.append((await ask([user(task.question)]))["content"])
        answers.append((await ask([user(task.question)], headers={"x-stainless-retry-count": "1"}))["content"])
        return 1.0

    batch = collected(run, group_size=1, model=model)
    assert answers == ["one", "one"]
    assert len(model.exchanges) == 1
    assert batch.column("token", "token").size == len(model.exchanges[0][1].tokens)


@pytest.mark.parametrize(
    ("request_body", "headers", "status"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "n": 0}, {}, 400),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": "x"}, {}, 400),
        ({"messages": [{"role": "user", "content": "a"}], "stop": [3]}, {}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, {}, 400),
        ({"messages": [{"role": "user", "content": "a"}]}, {"Authorization": "Bearer other"}, 401),
    ],
    ids=["no answer", "no number", "no text", "an image", "another key"],
)
def test_unsupported_requests_get_an_http_error_with_a_message(request_body, headers, status) -> None:
    replies = []

    async def run(_, base_url, api_key):
        authorization = {"Authorization": f"Bearer {api_key}"}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{base_url}/chat/completions"
            replies.append(await client.post(url, json=request_body, headers=authorization | headers))
            assert (await client.get(f"{base_url}/models", headers=authorization)).json()["data"][0]["id"] == "policy"
            for wrong in ({"prompt": ["a", "b"]}, {"prompt": [0, 10**6]}, {"prompt": "a", "n": 0}, {"echo": True}):
                refused = await client.post(f"{base_url}/completions", json=wrong, headers=authorization)
                assert refused.status_code == 400, refused.text
            prompt = {"role": "prompt", "content": "a"}
            for path, raw in (
                ("chat/completions", {"messages": [prompt]}),
                ("responses", {"instructions": "be short", "input": [prompt]}),
            ):
                refused = await client.post(f"{base_url}/{path}", json=raw, headers=authorization)
                assert refused.status_code == 400
                assert refused.json()["error"]["message"] == (
                    "messages: the role of the message with content 'a' is 'prompt'; send text that needs no chat "
                    "template to /v1/completions"
                )
            raw = {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}
            refused = await client.post(url, json=raw, headers=authorization)
            assert refused.json()["error"]["message"] == (
                "messages: the content of a message is [{'type': 'input_audio'}]; send a text, or a list of texts and "
                "images"
            )
        await Client(base_url, api_key)([user("a")])
        return 1.0

    collected(run, group_size=1)
    assert replies[0].status_code == status
    assert replies[0].json()["error"]["message"]


def test_an_agent_that_does_not_return_a_number_is_reported() -> None:
    async def run(task, base_url, api_key):
        await Client(base_url, api_key)([user(task.question)])

    collect, world = collector(run)
    refused = pytest.warns(AgentRLWarning, match=r"run returned None for task .*; return the reward, a number")
    with refused, pytest.warns(AgentRLWarning, match="has no draws"):
        collect(tasks=1, group_size=1)
    collect.close()
    world.close()


def test_the_protocol_of_environments_is_kept() -> None:
    async def run(task, base_url, api_key):
        ask, messages = Client(base_url, api_key), [user(task.question)]
        for _ in range(2):
            messages += [await ask(messages), user("go on")]
        return float(messages[-2]["content"] == task.payload)

    world = env.Agents(run, {"train": TASKS[:2], "held_out": TASKS[2:]})
    assert env.check(world, tasks=2, actions=["14", "21"]) == CheckReport(tasks=2, steps=4, ended=2, hints=())
    world.close()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="run is 3; give a function"):
        env.Agents(3, TASKS)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="Agents: tasks has no training task"):
        env.Agents(tool_user, [])
    with pytest.raises(InvalidInputError, match="two tasks have the task_id"):
        env.Agents(tool_user, [TASKS[0], TASKS[0]])


def test_a_kill_in_the_middle_loses_and_doubles_nothing(tmp_path) -> None:
    def exit_code(folder, answers, *order):
        command = [sys.executable, str(SUPPORT / "loop_agents.py"), str(folder), str(answers), *order]
        return subprocess.run(command, cwd=SUPPORT, check=False).returncode

    # Eight episodes have two requests, and eight with helpers have six, some of them concurrent.
    request_count = 8 * 2 + 8 * 6
    assert exit_code(tmp_path / "killed", 29, "ann", "ben") == 9
    rest = request_count - 29
    assert exit_code(tmp_path / "killed", rest + 1, "ben", "ann") == 0, "what was answered before is not sampled again"
    assert exit_code(tmp_path / "whole", 1000, "ann", "ben") == 0
    tables = []
    for name in ("killed", "whole"):
        with Store.open(tmp_path / name) as store:
            assert store.verify() == []
            batch = store.batch(0)
            tables.append(
                (pl.DataFrame(batch.nodes).drop("created_us"), pl.DataFrame(batch.steps), json.dumps(statuses(batch)))
            )
    for killed, whole in zip(*tables, strict=True):
        assert killed.equals(whole) if isinstance(killed, pl.DataFrame) else killed == whole
