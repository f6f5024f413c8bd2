"""An endpoint rejects bad requests on arrival, so that no record makes a later commit fail."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from odd_values import ODD, committed, deep, post, served_with
from tool_agents import client

from agentrl_core import Store
from agentrl_core.agents.upstream import ChatResponse
from agentrl_core.exceptions import InvalidInputError

ASK = {"role": "user", "content": "what is 6*7?"}


SESSION = {"session_id": "odd", "task_id": "t", "group": "g"}
CLOSE = {"reward": 1.0, "success": True, "status": "finished", "info": {"a": 1}}
PAID = {"reward": 1.0, "turn": 0}


@pytest.mark.parametrize("place", ["open", "close", "reward"])
def test_no_field_of_a_session_makes_a_commit_fail(tmp_path, place) -> None:
    path, body = {
        "open": ("/sessions", SESSION),
        "close": ("/sessions/odd/close", CLOSE),
        "reward": ("/sessions/odd/reward", PAID),
    }[place]
    refused = set()
    with Store.open(tmp_path, sync="never") as store:
        served = served_with(store)

        async def work():
            async with client(served) as agent:
                for field in body:
                    for value in ODD:
                        for name in ("innocent",) if place == "open" else ("innocent", "odd"):
                            assert (await post(agent, "/sessions", {"session_id": name})).status_code == 200
                            await agent.post(f"/s/{name}/v1/chat/completions", json={"messages": [ASK]})
                        reply = await post(agent, path, body | {field: value})
                        assert reply.status_code in (200, 400), (field, value, reply.text)
                        if reply.status_code == 400:
                            message = reply.json()["error"]["message"]
                            assert field in message or "the body" in message, message
                            refused.add(field)
                        elif place == "open":
                            talk = f"{reply.json()['path']}/chat/completions"
                            assert (await agent.post(talk, json={"messages": [ASK]})).status_code == 200
                        assert committed(served, store) > 0, (field, value)

        asyncio.run(work())
        assert refused == set(body)
        assert served.commit() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", True),
        ("reward", float("nan")),
        ("reward", float("inf")),
        ("reward", 1e39),
        ("reward", 10**400),
        ("reward", "much"),
        ("success", 1),
        ("success", "yes"),
        ("status", "done"),
        ("status", None),
        ("status", 3),
        ("info", "solved"),
        ("info", ["solved"]),
        ("info", {"a": deep(70)}),
        ("info", {"a": object()}),
        ("info", {"a": "\ud800"}),
        ("info", {"\ud800": 1}),
        ("info", {"a": "x" * 300_000}),
    ],
)
def test_close_in_python_refuses_invalid_session_fields(field, value) -> None:
    served = served_with()
    served.open("a")
    with pytest.raises(InvalidInputError, match=field):
        served.close("a", **{field: value})
    assert served._recorder.sessions["a"].closed is None


def test_close_fields_of_a_session_are_equal_after_reopening(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)
        served.open("a", task="t")
        info = {"steps": np.int64(3), "parts": (1, 2), 7: "seven"}
        served.close("a", reward=np.float32(0.5), success=np.bool_(True), info=info)
        before = served._recorder.sessions["a"].closed
    assert before["info"] == {"steps": 3, "parts": [1, 2], "7": "seven"}
    with Store.open(tmp_path) as store:
        assert served_with(store)._recorder.sessions["a"].closed == before


@pytest.mark.parametrize("value", ["", "\ud800", "x" * 5000, 5, ["t"]])
def test_names_that_cannot_be_kept_are_refused(value) -> None:
    served = served_with()
    for name in ("task", "group"):
        with pytest.raises(InvalidInputError, match=name):
            served.open("a", **{name: value})
    assert served._recorder.sessions == {}


def test_a_group_is_of_one_task() -> None:
    served = served_with()
    served.open("a", task="t1", group="g")
    with pytest.raises(InvalidInputError, match="task is 't2', but group 'g' has task 't1'; use another group"):
        served.open("b", task="t2", group="g")
    served.open("b", task="t1", group="g")
    for name in "ab":
        served.close(name)
    served.commit()
    served.open("c", task="t2", group="g")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": [], "logprobs": [], "finish_reason": "abort"}, "outputs is empty"),
        ({"tokens": [-1], "logprobs": [-1.0]}, "give token ids of at least 0"),
        ({"tokens": [2**31], "logprobs": [-1.0]}, "out of bounds"),
        ({"tokens": [1], "logprobs": [0.5]}, "logprobs[0] is 0.5"),
        ({"tokens": [1, 2], "logprobs": [-1.0]}, "logprobs"),
        ({"message": {"content": "\ud800"}}, "surrogates"),
        ({"message": {"content": float("nan")}}, "not JSON compliant"),
        ({"details": {"content": [float("-inf")]}}, "not JSON compliant"),
        ({"prompt": []}, "prompts is empty"),
        ({"prompt": [-5]}, "give token ids of at least 0"),
    ],
)
def test_a_response_that_cannot_be_stored_returns_502_and_can_be_retried(tmp_path, monkeypatch, change, words) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)
        generated, spoils = served.upstream._generated, [True]

        async def spoiled(request, tokens, *, is_chat):
            answer = await generated(request, tokens, is_chat=is_chat)
            if not spoils:
                return answer
            prompt = change.get("prompt", answer.prompt)
            changes = {name: value for name, value in change.items() if name != "prompt"}
            return ChatResponse(prompt, [answer.choices[0], replace(answer.choices[1], **changes)], answer.usage)

        monkeypatch.setattr(served.upstream, "_generated", spoiled)

        async def work():
            async with client(served) as agent:
                body = {"messages": [ASK], "n": 2}
                reply = await agent.post("/s/a/v1/chat/completions", json=body)
                assert reply.status_code == 502, "the clients of OpenAI and Anthropic send it again"
                assert words in reply.json()["error"]["message"]
                assert served._recorder.sessions["a"].turns == []
                spoils.clear()
                again = await agent.post(
                    "/s/a/v1/chat/completions", json=body, headers={"x-stainless-retry-count": "1"}
                )
                assert again.status_code == 200

        asyncio.run(work())
        turns = served._recorder.sessions["a"].turns
        assert len(turns) == 2
        assert committed(served, store) == sum(len(turn.output) for turn in turns)


def test_a_session_that_cannot_become_rows_is_left_out_of_the_batch_and_kept(tmp_path, caplog) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)

        async def talk():
            async with client(served) as agent:
                for name in ("good", "bad", "stranger"):
                    await agent.post("/sessions", json={"session_id": name, "task_id": name, "group": name})
                    await agent.post(f"/s/{name}/v1/chat/completions", json={"messages": [ASK]})

        asyncio.run(talk())
        # Records of a version without this check.
        served._recorder._write("bad", "close", {"reward": 1.0, "status": "finished", "info": "solved"})
        served._recorder._write("stranger", "open", {"task": "another", "group": "good", "member": 1})
        served._recorder._write("stranger", "close", {"reward": 1.0, "status": "aborted"})
        served.close("good", reward=1.0)

    with Store.open(tmp_path) as store:
        served = served_with(store)

        async def commit():
            async with client(served) as agent:
                with caplog.at_level(logging.ERROR):
                    reply = await agent.post("/iterations")
                assert reply.status_code == 200
                assert reply.headers["x-excluded-sessions"] == "bad, stranger"
                # The name is free again.
                assert (await agent.post("/s/bad/v1/chat/completions", json={"messages": [ASK]})).status_code == 200
                assert (await agent.post("/sessions/bad/close", json={"reward": 0.5})).status_code == 200
                again = await agent.post("/iterations")
                assert again.status_code == 200
                assert "x-excluded-sessions" not in again.headers
                return (await agent.get("/excluded")).json()["sessions"]

        aside = asyncio.run(commit())
        assert "session bad cannot become rows" in caplog.text
        assert store.iteration == 2
        assert [store.batch(number).num_draws for number in (0, 1)] == [1, 1]
        assert pl.DataFrame(store.metrics).filter(name="sessions.excluded")["value"].to_list() == [2.0, 2.0]
        assert store.verify() == []
    assert [one["session_id"] for one in aside] == ["bad", "stranger"]
    assert "mapping" in aside[0]["reason"]
    assert "'another'" in aside[1]["reason"]
    assert len(aside[0]["entries"]) == 1
    with Store.open(tmp_path) as store:
        served = served_with(store)
        assert served.excluded() == aside
        assert served.commit() is None


def test_a_commit_of_nothing_but_a_spoiled_session_makes_no_iteration(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)
        served.open("bad", task="t")
        served._recorder.sessions["bad"].closed = {"status": "finished", "info": [1]}

        async def commit():
            async with client(served) as agent:
                return await agent.post("/iterations")

        reply = asyncio.run(commit())
        assert (reply.status_code, reply.headers["x-excluded-sessions"]) == (204, "bad")
        assert store.iteration == 0


def test_weights_have_a_version_that_a_row_holds() -> None:
    served = served_with()

    async def work():
        async with client(served) as agent:
            for value in (10**30, -1, 1.5, True, "3", None, [3]):
                reply = await post(agent, "/weights", {"version": value})
                assert reply.status_code == 400
                assert "version" in reply.json()["error"]["message"]
            assert (await post(agent, "/weights", {"version": 3})).status_code == 200

    asyncio.run(work())
    assert served.policy_version == 3


def test_tokens_are_counted_as_the_request_would_read_them() -> None:
    served = served_with()
    first = {"role": "user", "content": "what is 6*7?"}
    tools = [{"name": "calculate", "description": "does sums", "input_schema": {"type": "object"}}]

    async def work():
        async with client(served) as agent:
            body = {"model": "m", "messages": [first], "system": "be brief", "tools": tools}
            counted = (await agent.post("/s/a/v1/messages/count_tokens", json=body)).json()
            assert served._recorder.sessions == {}, "to count is no request of a session"
            reply = (await agent.post("/s/a/v1/messages", json=body | {"max_tokens": 3})).json()
            assert counted == {"input_tokens": reply["usage"]["input_tokens"]}
            history = [first, {"role": "assistant", "content": reply["content"]}, first]
            counted = (await agent.post("/s/a/v1/messages/count_tokens", json=body | {"messages": history})).json()
            again = (await agent.post("/s/a/v1/messages", json=body | {"messages": history, "max_tokens": 3})).json()
            assert counted == {"input_tokens": again["usage"]["input_tokens"]}
            refused = await agent.post("/s/a/v1/messages/count_tokens", json={"messages": [{"role": "user"}]})
            assert (refused.status_code, refused.json()["type"]) == (400, "error")

    asyncio.run(work())
    assert len(served._recorder.sessions["a"].turns) == 2


@pytest.mark.parametrize("key", ["", "ключ", "a\nb"])
def test_a_key_that_no_client_can_show_is_refused(key) -> None:
    with pytest.raises(InvalidInputError, match="api_key"):
        served_with(api_key=key)
