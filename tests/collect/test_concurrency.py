"""Places for branches: the oldest iteration first, never above the limit, all free again after a cancellation."""

from __future__ import annotations

import asyncio

from agentrl_core.collect.event_loop import SlotLimiter, slot_limiters


def test_those_that_wait_are_cancelled_with_the_one_that_runs() -> None:
    async def run() -> list[object]:
        room = SlotLimiter(2)

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


def test_slots_go_to_the_oldest_iteration_first_then_in_request_order() -> None:
    async def run() -> list[str]:
        room, order = SlotLimiter(2), list[str]()

        async def hold(name: str, count: int, iteration: int) -> None:
            async with room.take(count, iteration):
                order.append(name)
                await asyncio.sleep(0)

        requests = [
            ("first", 2, 3),
            ("young", 1, 4),
            ("old a", 2, 2),
            ("old b", 1, 2),
            ("older", 9, 1),
            ("young b", 1, 4),
        ]
        await asyncio.gather(*(hold(*each) for each in requests))
        return order

    assert asyncio.run(run()) == ["first", "older", "old a", "old b", "young", "young b"]


def test_environments_share_one_slot_limiter_or_have_their_own() -> None:
    shared, separate = slot_limiters(4, ["a", "b"]), slot_limiters({"a": 1, "b": 2}, ["a", "b"])
    assert shared["a"] is shared["b"]
    assert separate["a"] is not separate["b"]


def test_places_that_are_given_back_go_to_who_waits() -> None:
    async def run() -> list[str]:
        room, order = SlotLimiter(4), list[str]()
        goes_on = asyncio.Event()

        async def hold(name: str, count: int, released: int) -> None:
            async with room.take(count) as places:
                order.append(name)
                places.release_slots(released)
                await goes_on.wait()

        # 4 of 4; one waits for 2; and 9, of which 4 are held: after 4 are released, 5 more are needed, and 4 are held.
        tasks = [asyncio.ensure_future(hold("pruned", 4, 2)), asyncio.ensure_future(hold("waits", 2, 0))]
        for _ in range(4):
            await asyncio.sleep(0)
        assert order == ["pruned", "waits"], "while the first goes on"
        tasks.append(asyncio.ensure_future(hold("large", 9, 4)))
        tasks.append(asyncio.ensure_future(hold("last", 1, 5)))
        for _ in range(4):
            await asyncio.sleep(0)
        assert order == ["pruned", "waits"]
        goes_on.set()
        await asyncio.gather(*tasks)
        async with asyncio.timeout(60), room.take(4):  # all places are free again, and no more than at first
            pass
        assert (room.size, room._free) == (4, 4)
        return order

    assert asyncio.run(run()) == ["pruned", "waits", "large", "last"]
