"""Room for branches: in the order of asking, never more than there is, and all of it again after a cancellation."""

from __future__ import annotations

import asyncio

from agentrl_core.collect.room import Room


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
