"""The conversations of a session: each is a trajectory of its own, so that no reward leaks into another."""

from __future__ import annotations

import asyncio

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_agents import client, endpoint

from agentrl_core import Store
from agentrl_core.advantage import Discounted
from agentrl_core.agents.conversations import SessionConversations


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


async def ask(agent, messages, **options):
    reply = await agent.post("/s/one/v1/chat/completions", json={"model": "m", "messages": messages, **options})
    assert reply.status_code == 200, reply.text
    return [choice["message"] for choice in reply.json()["choices"]]


def lanes_of(served):
    return [turn.lane for turn in served._recorder.sessions["one"].turns]


def outputs_of(served):
    return [turn.output.tolist() for turn in served._recorder.sessions["one"].turns]


async def team(agent):
    """A leader calls two helpers at the same time, which take two turns each, and then continues."""
    main = [system("you lead"), user("begin")]
    [plan] = await ask(agent, main)

    async def helper(number):
        messages = [system(f"you help {number}"), user("do it")]
        messages += [*await ask(agent, messages), user("more")]
        await ask(agent, messages)

    await asyncio.gather(helper(1), helper(2))
    await ask(agent, [*main, plan, user("go on")])


def counted(tokens):
    return f"said {len(tokens)}"


def test_sub_agents_do_not_discount_each_other() -> None:
    served = endpoint(counted)

    async def work():
        async with client(served) as agent:
            await team(agent)

    asyncio.run(work())
    served.close("one", reward=0.5)
    outputs = outputs_of(served)
    batch = served.commit()
    assert batch.num_draws == 3
    assert batch.column("reward", "draw").tolist() == [0.5] * 3, "every lane has the reward of its session"
    assert pl.DataFrame(batch.trajectories)["episode_id"].n_unique() == 1
    # Each lane has two turns; the last one is rewarded: A_2 = 0.5, A_1 = 0.95 * 0.5, whatever happened in between.
    returns = Discounted(gamma=0.95)(batch).column("advantage", "step")
    assert returns.tolist() == pytest.approx([0.475, 0.5] * 3)
    assert sorted(batch.column("token", "token").tolist()) == sorted(token for output in outputs for token in output)


def test_a_step_reward_stays_in_its_own_conversation() -> None:
    served = endpoint(counted)

    async def work():
        async with client(served) as agent:
            await ask(agent, [system("you lead"), user("begin")])
            await ask(agent, [system("you help"), user("do it")])

    asyncio.run(work())
    served.reward("one", 0.25, 1)
    served.close("one", reward=1.0)
    batch = served.commit()
    assert pl.DataFrame(batch.steps)["reward"].fill_nan(None).to_list() == [None, 0.25]
    assert batch.column("reward", "draw").tolist() == [1.0, 1.0]


def test_a_history_that_was_summed_up_stays_in_its_lane() -> None:
    served = endpoint(counted)

    async def work():
        async with client(served) as agent:
            [first] = await ask(agent, [system("be brief"), user("tell me")])
            await ask(agent, [system("be brief"), user("so far: much. Go on")])
            await ask(agent, [system("be brief"), user("tell me"), first, user("again")])
            await ask(agent, [user("another agent")])

    asyncio.run(work())
    assert lanes_of(served) == [0, 0, 0, 1]
    served.close("one", reward=1.0)
    assert served.commit().num_draws == 2


def test_several_answers_are_forks_of_one_prompt_and_each_is_trained_once() -> None:
    served = endpoint([f"answer {number}" for number in range(7)])

    async def work():
        async with client(served) as agent:
            messages = [user("begin")]
            for _ in range(3):
                choices = await ask(agent, messages, n=2)
                messages += [choices[1], user("go on")]
            await ask(agent, messages)

    asyncio.run(work())
    assert lanes_of(served) == [0, 1, 1, 2, 2, 3, 3]
    outputs = outputs_of(served)
    served.close("one", reward=1.0)
    batch = served.commit()
    assert batch.num_draws == 4
    trained = batch.column("token", "token")[batch.column("trainable", "token").astype(bool)]
    assert sorted(trained.tolist()) == sorted(token for output in outputs for token in output)
    # Each sampled token is in one node, however many lanes continue from it.
    nodes = pl.DataFrame(batch.nodes).filter(pl.col("kind") == 1)["tokens"].to_list()
    assert sorted(nodes) == sorted(outputs)


def test_requests_at_the_same_time_with_one_history_are_lanes() -> None:
    served = endpoint(counted)

    async def work():
        async with client(served) as agent:
            [first] = await ask(agent, [user("begin")])
            await asyncio.gather(*(ask(agent, [user("begin"), first, user(f"way {way}")]) for way in range(3)))

    asyncio.run(work())
    assert sorted(lanes_of(served)) == [0, 0, 1, 2]
    outputs = outputs_of(served)
    served.close("one", reward=1.0)
    batch = served.commit()
    nodes = pl.DataFrame(batch.nodes).filter(pl.col("kind") == 1)["tokens"].to_list()
    assert sorted(nodes) == sorted(outputs)


def test_lanes_survive_a_kill(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        served = endpoint(counted, store=store)

        async def work():
            async with client(served) as agent:
                await team(agent)

        asyncio.run(work())
        before = lanes_of(served)
    with Store.open(tmp_path) as store:
        again = endpoint(counted, store=store)

        async def more():
            async with client(again) as agent:
                await ask(agent, [system("you help 2"), user("start afresh")])

        asyncio.run(more())
        [*resumed, last] = lanes_of(again)
    assert resumed == before
    assert last == [turn.lane for turn in again._recorder.sessions["one"].turns if turn.opening][-1]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_conversations_that_share_nothing_are_lanes_in_the_order_in_which_they_began(turns) -> None:
    lanes, chains, expected = SessionConversations(), {}, {}
    for number, (agent, rewrites) in enumerate(turns):
        expected.setdefault(agent, len(expected))
        previous = chains.get(agent)
        goes_on = previous is not None and not rewrites
        chain = [*previous, f"{agent} asks {number}"] if goes_on else [f"agent {agent}", f"{agent} asks {number}"]
        place = lanes.begin(chain)
        assert place.conversation == expected[agent]
        assert place.is_new == (previous is None)
        assert place.last_answer == (len(previous) - 1 if goes_on else None)
        chains[agent] = [*chain, f"answer {number}"]
        lanes.end(place.conversation, chains[agent][-1])
