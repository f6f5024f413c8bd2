"""Room for branches: for the oldest iteration first, never more than there is, all of it again after a cancellation."""

from __future__ import annotations

import asyncio

from agentrl_core.collect.room import Room, rooms


def test_those_that_wait_are_cancelled_with_the_one_that_runs() -> None:
    async def run() -> list[object]:
        room = Room(2)

        async def hold(count: int) -> None:
            async with room.take(count):
                await asyncio.sleep(60)

        tasks = [asyncio.ensure_future(hold(count)) for count in (2, 1, 1, 2)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(60), room.take(2):  # all places are free again
            return ended

    assert [type(error) for error in asyncio.run(run())] == [asyncio.CancelledError] * 4


def test_the_oldest_iteration_comes_first_and_then_who_asked_first() -> None:
    async def run() -> list[str]:
        room, order = Room(2), list[str]()

        async def hold(name: str, count: int, iteration: int) -> None:
            async with room.take(count, iteration):
                order.append(name)
                await asyncio.sleep(0)

        asked = [("first", 2, 3), ("young", 1, 4), ("old a", 2, 2), ("old b", 1, 2), ("older", 9, 1), ("young b", 1, 4)]
        await asyncio.gather(*(hold(*each) for each in asked))
        return order

    assert asyncio.run(run()) == ["first", "older", "old a", "old b", "young", "young b"]


def test_environments_share_one_room_or_have_their_own() -> None:
    shared, own = rooms(4, ["a", "b"]), rooms({"a": 1, "b": 2}, ["a", "b"])
    assert shared["a"] is shared["b"]
    assert own["a"] is not own["b"]
