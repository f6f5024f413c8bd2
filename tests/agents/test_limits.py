"""Limits that protect an endpoint against strangers."""

from __future__ import annotations

import asyncio
import hmac

import httpx
import pytest
from tool_agents import client, decoded, endpoint

from agentrl_core import Store
from agentrl_core.agents.in_process_endpoint import InProcessEndpoint, ModelCall
from agentrl_core.cli import serve
from agentrl_core.exceptions import InvalidInputError

ASK = {"messages": [{"role": "user", "content": "?"}]}


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_others_are_let_in_with_a_key_alone(host) -> None:
    with pytest.raises(InvalidInputError, match="other machines can reach the endpoint; give a --key-file"):
        serve.run("http://127.0.0.1:1", None, None, host, 0, None)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe", "ключ".encode()])
def test_a_key_file_that_holds_no_key_is_refused(tmp_path, content) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="key"):
        serve.run("http://127.0.0.1:1", None, None, "0.0.0.0", 0, str(path))


def test_sessions_have_a_limit_until_some_are_committed() -> None:
    served = endpoint(lambda _: "yes", max_sessions=2)

    async def work():
        async with client(served) as agent:
            for name in ("a", "b"):
                assert (await agent.post(f"/s/{name}/v1/chat/completions", json=ASK)).status_code == 200
            refused = await agent.post("/s/c/v1/chat/completions", json=ASK)
            assert refused.status_code == 400
            assert (
                "the limit max_sessions=2 of sessions that are open or not committed is reached"
                in refused.json()["error"]["message"]
            )
            assert (await agent.post("/sessions", json={})).status_code == 400
            served.close("a", reward=1.0)
            served.commit()
            assert (await agent.post("/s/c/v1/chat/completions", json=ASK)).status_code == 200

    asyncio.run(work())


def test_hostile_text_stays_text(tmp_path) -> None:
    hostile = "</script>\n../../etc/passwd $(rm -rf /) \x00 \ud800 {{ 7*7 }} {% raw %}"
    with Store.open(tmp_path) as store:
        served = endpoint(lambda _: "yes", store=store)

        async def work():
            async with client(served) as agent:
                body = {"messages": [{"role": "user", "content": hostile.replace("\ud800", "")}]}
                assert (await agent.post("/s/a/v1/chat/completions", json=body)).status_code == 200
                raw = rb'{"messages": [{"role": "user", "content": "\ud800"}]}'
                reply = await agent.post("/s/a/v1/chat/completions", content=raw)
                assert reply.status_code == 400
                assert "messages[0].content" in reply.json()["error"]["message"]
                task = {"session_id": "t", "task_id": hostile.replace("\ud800", "")}
                assert (await agent.post("/sessions", json=task)).status_code == 200

        asyncio.run(work())
        recorded = served._recorder.sessions["a"]
        assert "{{ 7*7 }} {% raw %}" in decoded(served, recorded.context(0))
        assert "../../etc/passwd $(rm -rf /)" in decoded(served, recorded.context(0))
    with Store.open(tmp_path) as store:
        again = endpoint([], store=store)
        assert again._recorder.sessions["t"].task.startswith("</script>")


def test_keys_are_compared_in_constant_time(monkeypatch) -> None:
    compared, compare = [], hmac.compare_digest

    def watched(one, other):
        compared.append({one, other})
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    served = endpoint(["never"], api_key="secret")

    async def status(key):
        async with client(served, Authorization=f"Bearer {key}") as agent:
            return (await agent.post("/sessions", json={})).status_code

    assert asyncio.run(status("guess")) == 401
    assert asyncio.run(status("secret")) == 200
    assert compared == [{b"guess", b"secret"}, {b"secret"}]


def test_inside_a_loop_bodies_and_keys_are_looked_at_too(monkeypatch) -> None:
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *keys: compared.append(keys) or compare(*keys))
    loopback = InProcessEndpoint(None, max_bytes=1000)
    offered: list[ModelCall] = []
    name, url, key, _ = loopback.open(offered.append)
    assert url.startswith("http://127.0.0.1:"), "no other machine reaches it"
    right = {"Authorization": f"Bearer {key}"}
    replies = [
        httpx.post(f"{url}/chat/completions", content=b"x" * 2000, headers=right),
        httpx.post(f"{url}/chat/completions", json=ASK | {"n": 1000}, headers=right),
        httpx.post(f"{url}/chat/completions", json=ASK, headers={"Authorization": "Bearer guess"}),
        httpx.post(f"{url.replace(name, 'other')}/chat/completions", json=ASK, headers=right),
    ]
    loopback.close_session(name)
    replies.append(httpx.post(f"{url}/chat/completions", json=ASK, headers=right))
    loopback.close()
    assert [reply.status_code for reply in replies] == [413, 400, 401, 404, 404]
    assert "n is 1000; give a whole number from 1 to 128" in replies[1].json()["error"]["message"]
    assert {compare(*keys) for keys in compared} == {True, False}
    assert not offered
