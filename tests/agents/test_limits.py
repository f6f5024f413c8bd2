"""What strangers cannot do to an endpoint."""

from __future__ import annotations

import asyncio

import pytest
from tool_agents import client, endpoint, told

from agentrl_core import Store
from agentrl_core.cli import serve
from agentrl_core.exceptions import InvalidInputError

ASK = {"messages": [{"role": "user", "content": "?"}]}


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_others_are_let_in_with_a_key_alone(host) -> None:
    with pytest.raises(InvalidInputError, match="where others can reach it: give a --key-file"):
        serve.run("http://127.0.0.1:1", None, None, host, 0, None)


def test_sessions_have_a_limit_until_some_are_committed() -> None:
    served = endpoint(lambda _: "yes", max_sessions=2)

    async def work():
        async with client(served) as agent:
            for name in ("a", "b"):
                assert (await agent.post(f"/s/{name}/v1/chat/completions", json=ASK)).status_code == 200
            refused = await agent.post("/s/c/v1/chat/completions", json=ASK)
            assert refused.status_code == 400
            assert "2 sessions are open, and no more are taken" in refused.json()["error"]["message"]
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
                lone = rb'{"messages": [{"role": "user", "content": "\ud800"}]}'
                found = await agent.post("/s/a/v1/chat/completions", content=lone)
                assert found.status_code in (200, 400)
                task = {"session_id": "t", "task_id": hostile.replace("\ud800", "")}
                assert (await agent.post("/sessions", json=task)).status_code == 200

        asyncio.run(work())
        recorded = served._recorder.sessions["a"]
        assert "{{ 7*7 }} {% raw %}" in told(served, recorded.context(0))
        assert "../../etc/passwd $(rm -rf /)" in told(served, recorded.context(0))
    with Store.open(tmp_path) as store:
        again = endpoint([], store=store)
        assert again._recorder.sessions["t"].task.startswith("</script>")
