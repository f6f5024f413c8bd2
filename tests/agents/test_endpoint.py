"""Records of a session by the endpoint, and known mistakes of other recorders."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from templates import QWEN3
from tool_agents import CALCULATOR, call, client, decoded, endpoint

from agentrl_core import Store, recipes
from agentrl_core.agents.history_digest import digests
from agentrl_core.exceptions import InvalidInputError

ASK = {"role": "user", "content": "what is 6*7?"}


def run(work):
    return asyncio.run(work)


async def say(agent, messages, path="/s/one/v1/chat/completions", headers=None, **options):
    body = {"model": "m", "messages": messages, "max_tokens": 200, **options}
    reply = await agent.post(path, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def tool_session(agent, turns=5, **options):
    """Run an agent that calls its tool in every turn; return its responses."""
    messages, answers = [ASK], []
    for turn in range(turns):
        message = (await say(agent, messages, tools=[CALCULATOR], **options))["choices"][0]["message"]
        answers.append(message)
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": one["id"], "content": f"result {turn}"}
            for one in message.get("tool_calls") or []
        ]
    return answers


def calls(count):
    return [f"turn {turn} {call(sum=f'{turn}+1')}" for turn in range(count)]


def session_of(served, name="one"):
    return served._recorder.sessions[name]


def test_a_tool_agent_receives_the_tool_call_and_text_of_each_turn() -> None:
    served = endpoint(calls(5))

    async def work():
        async with client(served) as agent:
            return await tool_session(agent)

    answers = run(work())
    sums = [json.loads(answer["tool_calls"][0]["function"]["arguments"])["sum"] for answer in answers]
    assert sums == [f"{turn}+1" for turn in range(5)]
    assert [answer["content"] for answer in answers] == [f"turn {turn}" for turn in range(5)]


def test_a_prompt_is_the_previous_prompt_and_output_plus_the_new_messages() -> None:
    served = endpoint(calls(5))

    async def work():
        async with client(served) as agent:
            await tool_session(agent)

    run(work())
    recorded, prompts = session_of(served), served.upstream.prompts
    assert [recorded.context(turn).tolist() for turn in range(5)] == prompts
    for turn in range(1, 5):
        before = prompts[turn - 1] + recorded.turns[turn - 1].output.tolist()
        assert prompts[turn][: len(before)] == before
        assert decoded(served, prompts[turn][len(before) :]) == (
            f"\n<|im_start|>user\n<tool_response>\nresult {turn - 1}\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    # Only the first prompt of its kind is rendered whole; later turns render the new messages.
    assert served.upstream.tokenized == 1 + 2 + 2 + 1 + 4


def test_every_sampled_token_is_in_one_node_and_trained_once() -> None:
    served = endpoint(calls(5))

    async def work():
        async with client(served) as agent:
            await tool_session(agent)
            await agent.post("/sessions/one/close", json={"reward": 1.0, "success": True})

    run(work())
    recorded = session_of(served)
    batch = served.commit()
    outputs = [turn.output.tolist() for turn in recorded.turns]
    assert batch.num_draws == 1
    assert batch.column("reward", "draw").tolist() == [1.0]
    assert batch.column("token", "token").tolist() == [token for output in outputs for token in output]
    logprobs = np.concatenate([turn.logprobs for turn in recorded.turns])
    assert batch.column("behaviour_logprob", "token").tolist() == logprobs.tolist()
    assert served.commit() is None


def test_reasoning_that_a_client_drops_stays_in_the_context() -> None:
    served = endpoint(["<think>six sevens</think>42", "sure"], template=QWEN3)

    async def work():
        async with client(served) as agent:
            first = (await say(agent, [ASK]))["choices"][0]["message"]
            assert first["reasoning"] == "six sevens"
            await say(agent, [ASK, {"role": "assistant", "content": " 42\n"}, {"role": "user", "content": "sure?"}])

    run(work())
    assert "six sevens" in decoded(served, served.upstream.prompts[1])
    assert session_of(served).turns[1].origin == 0


def test_an_edited_answer_is_a_branch_and_never_the_sampled_one() -> None:
    served = endpoint(["42", "right", "as you say"])

    async def work():
        async with client(served) as agent:
            first = (await say(agent, [ASK]))["choices"][0]["message"]
            more = {"role": "user", "content": "sure?"}
            await say(agent, [ASK, first, more])
            await say(agent, [ASK, {"role": "assistant", "content": "43"}, more])

    run(work())
    prompts = [decoded(served, prompt) for prompt in served.upstream.prompts]
    assert "42<|im_end|>" in prompts[1]
    assert "43<|im_end|>" in prompts[2]
    assert "42<|im_end|>" not in prompts[2]
    served.close("one", reward=0.0)
    batch = served.commit()
    assert batch.column("token", "token").size == sum(len(text) for text in ("42", "right", "as you say")) + 3


def test_a_retried_request_returns_the_first_response() -> None:
    served = endpoint(lambda request: f"answer {request.seed}")

    async def work():
        async with client(served) as agent:
            first = await say(agent, [ASK])
            again = await say(agent, [ASK], headers={"x-stainless-retry-count": "1"})
            assert again["choices"] == first["choices"]
            both = await asyncio.gather(
                say(agent, [ASK, ASK]), say(agent, [ASK, ASK], headers={"x-stainless-retry-count": "1"})
            )
            assert both[0]["choices"] == both[1]["choices"]
            other = await say(agent, [ASK])
            assert other["choices"] != first["choices"], "who does not ask again wants another answer"

    run(work())
    assert len(session_of(served).turns) == 3


def test_several_choices_are_several_turns() -> None:
    served = endpoint(lambda request: f"answer {request.seed}")

    async def work():
        async with client(served) as agent:
            reply = await say(agent, [ASK], n=3)
            chosen = reply["choices"][1]["message"]
            await say(agent, [ASK, chosen, {"role": "user", "content": "go on"}])

    run(work())
    turns = session_of(served).turns
    assert [turn.origin for turn in turns] == [-1, -1, -1, 1]
    served.close("one", reward=1.0)
    batch = served.commit()
    assert batch.column("token", "token").size == sum(len(turn.output) for turn in turns)


def test_a_truncated_answer_is_closed_before_the_next_message() -> None:
    served = endpoint(["a long answer", "more"])

    async def work():
        async with client(served) as agent:
            first = (await say(agent, [ASK], max_tokens=4))["choices"][0]
            assert first["finish_reason"] == "length"
            await say(agent, [ASK, first["message"], {"role": "user", "content": "go on"}])

    run(work())
    assert decoded(served, served.upstream.prompts[1]).endswith(
        "assistant\na lo<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    assert session_of(served).turns[1].origin == 0


def test_bytes_grow_with_the_turns_alone(tmp_path) -> None:
    sizes = []
    for turns in (50, 100, 200):
        with Store.open(tmp_path / str(turns)) as store:
            served = endpoint(lambda _: "x" * 20, store=store)

            async def work(served=served, turns=turns):
                async with client(served) as agent:
                    messages = [ASK]
                    for turn in range(turns):
                        messages.append((await say(agent, messages))["choices"][0]["message"])
                        messages.append({"role": "user", "content": f"result {turn:04d}"})

            run(work())
            sizes.append(sum(path.stat().st_size for path in (tmp_path / str(turns)).rglob("*") if path.is_file()))
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])


def test_nothing_answered_is_lost_with_the_process(tmp_path) -> None:
    store = Store.open(tmp_path)
    served = endpoint(calls(3), store=store)

    async def first():
        async with client(served) as agent:
            return await tool_session(agent, 3)

    answers = run(first())
    before = [(turn.output.tolist(), turn.logprobs.tolist()) for turn in session_of(served).turns]
    contexts = [session_of(served).context(turn).tolist() for turn in range(3)]
    del served
    store.close()  # a kill leaves the same: a rollout log

    store = Store.open(tmp_path)
    served = endpoint(["the end"], store=store)
    recorded = session_of(served)
    assert [(turn.output.tolist(), turn.logprobs.tolist()) for turn in recorded.turns] == before
    assert [recorded.context(turn).tolist() for turn in range(3)] == contexts
    messages = [ASK]
    for turn, answer in enumerate(answers):
        messages += [
            answer,
            {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": f"result {turn}"},
        ]

    async def second():
        async with client(served) as agent:
            again = await say(agent, messages[:5], tools=[CALCULATOR], headers={"x-stainless-retry-count": "2"})
            assert again["choices"][0]["message"] == answers[2], (
                "asked before the kill, and answered from the rollout log"
            )
            await say(agent, messages, tools=[CALCULATOR])
            await agent.post("/sessions/one/close", json={"reward": 1.0})
            assert (await agent.post("/iterations")).status_code == 200

    run(second())
    assert len(recorded.turns) == 4
    assert recorded.turns[3].origin == 2
    store.close()
    with Store.open(tmp_path) as store:
        assert store.verify() == []
        assert store.iteration == 1
        assert store.batch(0).column("reward", "draw").tolist() == [1.0]


def test_sessions_that_still_talk_go_into_the_next_iteration(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        served = endpoint(lambda request: f"{request.seed}", store=store)

        async def work():
            async with client(served) as agent:
                for name in ("one", "two"):
                    await say(agent, [ASK], path=f"/s/{name}/v1/chat/completions")
                await agent.post("/sessions/one/close", json={"reward": 1.0})
                await agent.post("/iterations")

        run(work())
        turn = session_of(served, "two").turns[0].output.tolist()
    with Store.open(tmp_path) as store:
        served = endpoint(["more"], store=store)
        assert sorted(served._recorder.sessions) == ["two"]
        assert session_of(served, "two").turns[0].output.tolist() == turn
        served.close("two", reward=0.0)
        batch = served.commit()
        assert batch is not None
        assert (batch.num_draws, store.iteration) == (1, 2)


def test_wrong_requests_are_one_clear_error() -> None:
    served = endpoint(["never"], api_key="secret", max_bytes=1000)

    async def status(agent, path, **options):
        reply = await agent.post(path, **options)
        return reply.status_code, reply.json()["error"]["message"]

    async def work():
        async with client(served, authorization="Bearer wrong") as agent:
            assert (await status(agent, "/s/a/v1/chat/completions", json={}))[0] == 401
            assert (await status(agent, "/sessions", json={}))[0] == 401
        async with client(served, authorization="Bearer secret") as agent:
            served.open("a")
            for path, body, words in (
                ("/s/a/v1/chat/completions", b"{", "the body is not JSON"),
                ("/s/a/v1/chat/completions", b"[]", "the body is []; send a JSON object"),
                ("/s/a/v1/chat/completions", b"{}", "messages"),
                ("/s/a/v1/chat/completions", b'{"messages": [], "n": 2}', "messages"),
                ("/s/a/v1/completions", b'{"prompt": ["a", "b"]}', "prompt"),
                ("/s/a/v1/responses", b'{"input": [{"type": "web_search_call"}]}', "web_search_call"),
                ("/v1/chat/completions", b'{"messages": [{}]}', "names no session"),
                ("/sessions/a/close", b'{"reward": "much"}', "reward is 'much'"),
                ("/sessions/a/reward", b'{"reward": 1}', "no turn yet"),
                ("/sessions/nobody/close", b"{}", "no session"),
                ("/sessions", b'{"session_id": "../../etc"}', "letters"),
                ("/weights", b'{"version": -1}', "version is -1"),
            ):
                code, message = await status(agent, path, content=body)
                assert 400 <= code < 500, (path, body)
                assert words in message, message
            assert (await status(agent, "/s/a/v1/messages", content=b'{"messages": []}'))[0] == 400
            assert (await status(agent, "/s/a/v1/messages", content=b"x" * 2000))[0] == 413

    run(work())


def test_a_key_of_a_session_opens_no_other() -> None:
    served = endpoint(lambda _: "yes", api_key="secret")
    opened = served.open("mine", task="t")

    async def work():
        async with client(served, authorization=f"Bearer {opened['api_key']}") as agent:
            await say(agent, [ASK], path="/v1/chat/completions")
            refused = await agent.post("/s/yours/v1/chat/completions", json={"messages": [ASK]})
            assert refused.status_code == 401
            assert (await agent.post("/sessions", json={})).status_code == 401

    run(work())
    assert len(session_of(served, "mine").turns) == 1


def test_a_response_id_is_valid_only_in_its_own_session() -> None:
    served = endpoint(lambda _: "yes")

    async def work():
        async with client(served) as agent:
            first = (await agent.post("/s/mine/v1/responses", json={"input": "hello"})).json()
            body = {"input": "and?", "previous_response_id": first["id"]}
            refused = await agent.post("/s/yours/v1/responses", json=body)
            assert refused.status_code == 404
            assert (await agent.post("/s/mine/v1/responses", json=body)).status_code == 200

    run(work())
    assert len(session_of(served, "mine").turns) == 2


def test_an_equal_request_that_was_sampled_twice_is_answered_with_the_last() -> None:
    served = endpoint(lambda request: f"answer {request.seed}")

    async def work():
        async with client(served) as agent:
            await say(agent, [ASK])
            second = await say(agent, [ASK])
            again = await say(agent, [ASK], headers={"x-stainless-retry-count": "1"})
            assert again["choices"] == second["choices"]
            assert again["usage"] == second["usage"]

    run(work())
    assert len(session_of(served).turns) == 2


def test_digests_ignore_reformatting_by_clients_but_not_edits() -> None:
    prompt = [{"role": "user", "content": "hi"}]
    first = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}],
    }
    same = {
        "role": "assistant",
        "content": "",
        "reasoning": "x",
        "tool_calls": [{"id": "z", "type": "function", "function": {"name": "f", "arguments": '{"a":2,"b":1}'}}],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": "3"}
    other = {"role": "tool", "tool_call_id": "z", "content": [{"type": "text", "text": "3"}]}
    assert digests([*prompt, first, result], None) == digests([*prompt, same, other], None)
    for edit in (
        same | {"content": "well"},
        same | {"tool_calls": []},
        same | {"tool_calls": [{"id": "z", "function": {"name": "f", "arguments": '{"a":2,"b":2}'}}]},
    ):
        assert digests([*prompt, edit], None)[-1] != digests([*prompt, first], None)[-1]
    assert digests(prompt, [1]) != digests(prompt, [2]), "other tools are another prompt"


def test_an_endpoint_refuses_bad_names() -> None:
    served = endpoint(["a"])
    with pytest.raises(InvalidInputError, match="letters"):
        served.open("a b")
    served.open("a")
    with pytest.raises(InvalidInputError, match="already"):
        served.open("a")


def test_a_token_without_a_log_prob_is_not_trained(monkeypatch) -> None:
    served = endpoint(["42"])
    generated = served.upstream._generated

    async def forgets(request, tokens, *, is_chat):
        answer = await generated(request, tokens, is_chat=is_chat)
        answer.choices[0].logprobs[1] = float("nan")
        return answer

    monkeypatch.setattr(served.upstream, "_generated", forgets)

    async def work():
        async with client(served) as agent:
            await say(agent, [ASK])
            await agent.post("/sessions/one/close", json={"reward": 1.0})

    run(work())
    batch = served.commit()
    assert batch.column("trainable", "token").tolist() == [1, 0, 1]


def test_a_retried_request_returns_the_log_probs_again(monkeypatch) -> None:
    served = endpoint(["42"])
    generated, details = served.upstream._generated, {"content": [{"token": "4", "logprob": -0.5, "top_logprobs": []}]}

    async def detailed(request, tokens, *, is_chat):
        answer = await generated(request, tokens, is_chat=is_chat)
        return replace(answer, choices=[replace(choice, details=details) for choice in answer.choices])

    monkeypatch.setattr(served.upstream, "_generated", detailed)

    async def work():
        async with client(served) as agent:
            first = await say(agent, [ASK], logprobs=True)
            again = await say(agent, [ASK], logprobs=True, headers={"x-stainless-retry-count": "1"})
            assert again["choices"] == first["choices"]
            assert again["choices"][0]["logprobs"] == details

    run(work())
    assert len(session_of(served).turns) == 1


def test_new_weights_begin_with_the_next_answer() -> None:
    served = endpoint(["one", "two"])

    async def work():
        async with client(served) as agent:
            first = (await say(agent, [ASK]))["choices"][0]["message"]
            assert (await agent.post("/weights", json={"version": 3})).status_code == 200
            await say(agent, [ASK, first, ASK])
            await agent.post("/sessions/one/close", json={"reward": 1.0})

    run(work())
    batch = served.commit()
    assert batch.column("policy_version", "token").tolist() == [0] * 4 + [3] * 4


def test_members_of_a_group_are_compared() -> None:
    served = endpoint(lambda request: f"{request.seed}")

    async def work():
        async with client(served) as agent:
            for member in range(4):
                opened = (await agent.post("/sessions", json={"task_id": "6*7"})).json()
                await say(agent, [ASK], path=f"{opened['path']}/chat/completions")
                await agent.post(f"/sessions/{opened['session_id']}/close", json={"reward": float(member == 0)})

    run(work())
    batch = recipes.GRPO.credit(served.commit())
    assert batch.num_draws == 4
    advantages = batch.column("advantage", "draw")
    assert advantages[0] > 0
    assert (advantages[1:] < 0).all()
    assert abs(advantages.sum()) < 1e-6


@pytest.mark.parametrize("shape", ["openenv", "rllm", "agent-lightning"])
def test_other_trainers_read_the_turns_in_their_shapes(shape) -> None:
    served = endpoint(calls(2))

    async def work():
        async with client(served) as agent:
            await tool_session(agent, 2)
            await agent.post("/sessions/one/reward", json={"reward": 0.5, "turn": 0})
            await agent.post("/sessions/one/close", json={"reward": 1.0})
            assert (await agent.get("/sessions/one/traces", params={"shape": "csv"})).status_code == 400
            arrow = await agent.get("/sessions/one/traces", params={"shape": "arrow"})
            return (await agent.get("/sessions/one/traces", params={"shape": shape})).json(), arrow.content

    exported, arrow = run(work())
    [key] = [name for name in ("entries", "traces", "events") if name in exported]
    turns = [entry for entry in exported[key] if "completion_token_ids" in entry]
    recorded = session_of(served)
    assert [turn["completion_token_ids"] for turn in turns] == [turn.output.tolist() for turn in recorded.turns]
    frame = pl.read_ipc_stream(io.BytesIO(arrow))
    assert frame["tokens"].to_list() == [turn.output.tolist() for turn in recorded.turns]
    assert frame["outcome"].to_list() == [1.0, 1.0]
    assert frame["reward"].to_list() == [0.5, None]
