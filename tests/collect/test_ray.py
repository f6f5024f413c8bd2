"""Environments, engines and collectors in the actors of a real Ray cluster on this machine."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import failing_world
import numpy as np
import polars as pl
import pytest
import torch
from failing_world import FailingWorld
from in_actors import Holder, Slow, Waiting
from looking import looking
from small_world import SmallWorld
from vision_models import build, screenshot

import agentrl_core as arl
from agentrl_core import engine, recipes, warm_start
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import EngineError, InvalidInputError, StoreError

ray: Any = pytest.importorskip("ray")
STATUS = ("finished", "truncated", "aborted", "pruned", "failed", "partial")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    variables = pytest.MonkeyPatch()
    variables.setenv("RAY_USAGE_STATS_ENABLED", "0")
    variables.setenv("PYTHONPATH", str(Path(failing_world.__file__).parent), prepend=os.pathsep)
    for attempt in range(5):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
            break
        except Exception as error:  # Ray raises nothing more specific, and waits only half a minute
            ray.shutdown()
            if attempt == 4 or "timed out" not in str(error):
                raise
    yield
    ray.shutdown()
    variables.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray ends its processes and does not wait for them
        gc.collect()


def tables(batch: arl.Batch) -> dict[str, list[Any]]:
    names = ("nodes", "steps", "trajectories", "draws")
    return {name: pl.DataFrame(getattr(batch, name)).drop("created_us", strict=False).rows() for name in names}


def collected(folder: Path, hows: tuple[str, ...], runs: str, tasks: int, **options: Any) -> arl.Batch:
    folder.mkdir()
    world = FailingWorld(str(folder), hows, runs)
    collect = arl.Collector(SmallWorld(), world, recipes.GRPO, task_pool=8, processes=2, **options)
    batch = collect(tasks=tasks, group_size=3)
    collect.close()
    return batch


def test_episodes_in_actors_give_the_same_trees(tmp_path: Path) -> None:
    hows = ("fine", "raise 2", "resetraise 2", "fail")
    inline, actors = (collected(tmp_path / runs, hows, runs, 8) for runs in ("inline", "ray"))
    assert tables(actors) == tables(inline)


def test_all_episodes_finish_after_a_ray_actor_hangs_or_dies(tmp_path: Path) -> None:
    hows = ("fine", "die 1", "hang 1")
    batch = collected(tmp_path / "run", hows, "ray", 6, call_seconds=3.0)
    statuses = pl.DataFrame(batch.trajectories)["status"].to_list()
    assert statuses == [STATUS.index("finished")] * 18
    assert batch.num_draws == 18


def test_killed_actors_lose_and_double_nothing(tmp_path: Path) -> None:
    """Actors are killed from outside repeatedly: the tree equals that of an undisturbed run."""
    quiet = collected(tmp_path / "quiet", ("fine",), "inline", 8)
    world = Waiting(str(tmp_path), ("fine",), "ray")
    collect = arl.Collector(SmallWorld(), world, recipes.GRPO, task_pool=8, processes=2)
    killed: list[int] = []

    def kill() -> None:
        """Kill two actors that have a waiting episode; then let all continue."""
        while len(killed) < 2:
            time.sleep(0.01)
            for path in tmp_path.glob("* in process *"):
                process = int(path.name.rpartition(" ")[2])
                if process not in killed and len(killed) < 2:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
        (tmp_path / "go on").touch()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    batch = collect(tasks=8, group_size=3)
    thread.join()
    collect.close()
    assert tables(batch) == tables(quiet)


def request(seed: int) -> Request:
    return Request(np.array([1, 2], np.int32), seed, Sampling())


def test_an_engine_in_an_actor_answers_aborts_and_fails_as_itself() -> None:
    remote = engine.RayActor(lambda: Slow(600.0))
    waiting_request = request(1)

    async def stopped() -> Segment:
        waiting = asyncio.ensure_future(remote.generate(waiting_request))
        await asyncio.sleep(0.5)
        remote.abort(waiting_request)
        return await waiting

    segment = asyncio.run(stopped())
    assert (segment.finish_reason, segment.tokens.tolist(), segment.seed) == ("abort", [3], 1)
    with pytest.raises(InvalidInputError, match="token 77, outside the vocabulary of 10 tokens"):
        asyncio.run(remote.generate(Request(np.array([77], np.int32), 0, Sampling())))
    remote.close()
    remote.close()
    with pytest.raises(InvalidInputError, match="this RayActor is closed"):
        asyncio.run(remote.generate(waiting_request))

    def unmade() -> Any:
        raise OSError("no such weights")

    with pytest.raises((EngineError, OSError), match=r"no such weights|actor of the engine died"):
        engine.RayActor(unmade)


class ReportedError(Exception):
    """Return the message of a log record."""


class Raising(logging.Handler):
    """Interrupts the caller at its warning: a thread waiting in Ray at the cluster's end takes the process with it."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ReportedError(record.getMessage())


@pytest.mark.parametrize(("resource", "share", "count", "room"), [("nobody's", 1.0, 1, 0), ("memory", 0.6, 3, 1)])
def test_actors_without_a_node_are_reported(resource: str, share: float, count: int, room: int) -> None:
    (node,) = ray.nodes()
    amount = int(share * node["Resources"].get(resource, 1))
    resources = {"memory": amount} if resource == "memory" else {"resources": {resource: amount}}
    each = f"RayActor waits for room for {count} actors with {resource}: {amount} each, but the nodes of the cluster"
    logger, handler = logging.getLogger("agentrl_core.engine.ray_actor"), Raising()
    logger.addHandler(handler)
    try:
        with pytest.raises(ReportedError, match=f"{each} have room for {room}"):
            engine.RayActor(SmallWorld, options={"num_cpus": 0, **resources}, count=count)
    finally:
        logger.removeHandler(handler)


def test_weights_reach_an_engine_in_an_actor_and_outlive_it(world: Any) -> None:
    (policy, tokenizer), (other, _) = (warm_start.build(world, seed=seed) for seed in (0, 1))
    local = engine.Transformers(policy, tokenizer, batch_invariant=True)
    remote = engine.RayActor(lambda: engine.Transformers(other, tokenizer, batch_invariant=True))
    prompt = local.chat.prompt("2 + 2 =")
    requests = [Request(prompt, seed, Sampling(max_tokens=6)) for seed in range(4)]
    expected = [segment.tokens.tolist() for segment in generate_all(local, requests)]
    assert [segment.tokens.tolist() for segment in generate_all(remote, requests)] != expected
    remote.update_weights(policy, version=7)

    def check() -> None:
        segments = generate_all(remote, requests)
        assert [segment.tokens.tolist() for segment in segments] == expected
        assert [segment.policy_version for segment in segments] == [7] * 4

    check()
    ray.kill(remote._pool[0].actor)
    with pytest.raises(EngineError, match="the actor of the engine died"):
        generate_all(remote, requests)
    check()
    remote.close()
    local.close()


def test_a_pool_answers_as_one_engine_and_outlives_its_actors() -> None:
    pool = engine.RayActor(SmallWorld, options={"num_cpus": 0}, count=2)
    requests = [Request(np.array([1, 2], np.int32), seed, Sampling(), str(seed // 2)) for seed in range(6)]
    expected = [segment.tokens.tolist() for segment in generate_all(SmallWorld(), requests)]  # type: ignore[arg-type]

    def check(version: int) -> None:
        segments = generate_all(pool, requests)
        assert [segment.tokens.tolist() for segment in segments] == expected
        assert {segment.policy_version for segment in segments} == {pool.policy_version} == {version}

    check(0)
    actors = [member.actor for member in pool._pool]
    homes = {name: pool._homes.choose(name, pool._pool, load=lambda member: member.busy) for name in ("0", "1", "2")}
    assert set(homes.values()) == set(pool._pool), "the groups are shared out"
    ray.kill(actors[0])  # during an update: the other one has the weights, and a third one receives them
    weights = {"weight": torch.ones(2)}
    pool.update_weights(weights, version=3)
    check(3)
    assert [member.actor is actor for member, actor in zip(pool._pool, actors, strict=True)] == [False, True]
    for member in pool._pool:
        ray.kill(member.actor)
    with pytest.raises(EngineError, match="the actor of the engine died"):
        pool.update_weights(weights, version=4)
    check(3)
    pool.close()
    with pytest.raises(InvalidInputError, match="count is 0"):
        engine.RayActor(SmallWorld, count=0)


def test_flaky_episodes_in_actors_are_retried_with_pauses(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine", "raise 4"), "ray", patience=600.0)
    collect = arl.Collector(SmallWorld(), world, recipes.GRPO, task_pool=4, processes=2)
    with pytest.warns(RuntimeWarning, match="its episodes are retried for 600 s"):
        batch = collect(tasks=2, group_size=1)
    collect.close()
    assert pl.DataFrame(batch.trajectories)["status"].to_list() == [STATUS.index("finished")] * 2


def test_images_reach_an_engine_in_an_actor() -> None:
    (model, processor), (other, _) = (build("smolvlm", seed) for seed in (0, 1))
    local = engine.Transformers(model, processor, batch_invariant=True)
    remote = engine.RayActor(lambda: engine.Transformers(other, processor, batch_invariant=True))
    assert remote.takes_images
    requests = [looking(remote, ["a", "b"], [screenshot(seed)], seed) for seed in range(2)]
    expected = [segment.tokens.tolist() for segment in generate_all(local, requests)]
    assert [segment.tokens.tolist() for segment in generate_all(remote, requests)] != expected
    remote.update_weights(model, version=1)
    assert [segment.tokens.tolist() for segment in generate_all(remote, requests)] == expected
    remote.close()
    local.close()


def test_a_collector_in_an_actor_is_the_one_writer(tmp_path: Path) -> None:
    holder = ray.remote(Holder).remote(str(tmp_path / "run"))
    batch = ray.get(holder.batch.remote())
    assert batch.num_draws == 4
    with pytest.raises(StoreError, match=r"lock|writ|open"):
        arl.Store.open(tmp_path / "run")
    assert ray.get(holder.update.remote(recipes.GRPO.credit(batch))) == 1
    ray.kill(holder)
    deadline = time.monotonic() + 600
    while True:
        try:
            with arl.Store.open(tmp_path / "run") as store:
                assert store.iteration == 1
            break
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_connected_returns_the_ray_module() -> None:
    from agentrl_core._util.ray_cluster import connected

    assert connected("this") is ray
