"""Concurrent use of one forest: threads, asyncio tasks, other processes, and a freeze in the middle."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
from forests import GROUPS, MEMBERS, empty, frames, grow_member, grown, rebuilt, same

from agentrl_core import Batch, Forest


def alone() -> Batch:
    return grown(range(GROUPS))


def test_threads_give_the_same_batch_as_one_after_the_other() -> None:
    forest = empty()
    places = [(group, member) for member in reversed(range(MEMBERS)) for group in range(GROUPS)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda place: grow_member(forest, *place), places))
    batch = forest.freeze()
    assert len(batch.trajectories) > GROUPS * MEMBERS * 3
    assert same(batch, alone())


def test_asyncio_tasks_give_the_same_batch() -> None:
    forest = empty()

    async def member(group: int, number: int) -> None:
        await asyncio.sleep(0.001 * ((group * 7 + number * 3) % 5))
        await asyncio.to_thread(grow_member, forest, group, number)

    async def everyone() -> None:
        await asyncio.gather(*(member(group, number) for number in range(MEMBERS) for group in range(GROUPS)))

    asyncio.run(everyone())
    assert same(forest.freeze(), alone())


def test_a_freeze_beside_writers_takes_whole_groups() -> None:
    forest = Forest(iteration=1, seed=3)
    parts: list[Batch] = []

    def write(group: int) -> None:
        forest.add_group(group, f"task {group}")
        # The first member starts before any freeze, and the last one ends at the end.
        handle = forest.start(group, MEMBERS)
        for member in range(MEMBERS):
            grow_member(forest, group, member, turns=3)
        forest.append(handle, [1], kind="action", logprobs=[-1.0])
        forest.finish(handle, reward=0.0)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(write, group) for group in range(40)]
        while not all(job.done() for job in jobs):
            parts.append(forest.freeze())
        for job in jobs:
            job.result()
    parts.append(forest.freeze())
    assert len(forest) == 0
    sizes = [size for part in parts for size in pl.DataFrame(part.trajectories).group_by("group_id").len()["len"]]
    assert len(sizes) == 40
    assert set(sizes) == {MEMBERS * 7 + 1}, "no group is cut in two"


def test_forests_of_several_processes_are_one_batch() -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        parts = pool.map(grown, [range(2), range(2, GROUPS)])
    assert same(Batch.concat(parts), alone())


def test_many_appends_at_once_are_single_appends() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, 30)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens, logprobs = rng.integers(0, 99, offsets[-1]), -rng.random(offsets[-1]).astype(np.float32)
    mask, seeds = rng.random(offsets[-1]) < 0.5, rng.integers(0, 1 << 60, 30)
    options = {"kind": "action", "policy_version": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 3}
    batches = []
    for at_once in (True, False):
        forest = empty(range(1))
        handles = np.array([forest.start(0, member) for member in range(10)] * 3)
        if at_once:
            forest.append_many(
                handles,
                (tokens, offsets),
                logprobs=(logprobs, offsets),
                entropies=(-logprobs, offsets),
                trainable=(mask, offsets),
                state=[str(row) for row in range(30)],
                seed=seeds,
                finish_reason="stop",
                **options,
            )
        else:
            for row, handle in enumerate(handles.tolist()):
                part = slice(offsets[row], offsets[row + 1])
                forest.append(
                    handle,
                    tokens[part],
                    logprobs=logprobs[part],
                    entropies=-logprobs[part],
                    trainable=mask[part],
                    state=str(row).encode(),
                    seed=int(seeds[row]),
                    finish_reason="stop",
                    **options,
                )
        forest.abort()
        batches.append(forest.freeze())
    assert same(*batches)
    assert len(rebuilt(frames(batches[0])["nodes"], frames(batches[0])["trajectories"])[0]) == sum(lengths[::10])
