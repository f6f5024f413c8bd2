"""Episodes in actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import Any

from agentrl_core._util.ray_cluster import connected
from agentrl_core.env.base import Environment
from agentrl_core.env.runtime.remote_worker import RemoteWorker, WorkerServer


class RayWorker(RemoteWorker):
    """A worker in a Ray actor, on any machine of the cluster.

    One message per direction is in transit; later data wait for the next message.
    """

    def __init__(self, environment: Environment) -> None:
        ray = connected(f'environment {type(environment).__name__} has runs="ray"')
        # Like Ray, pickle classes of notebooks and scripts by value.
        super().__init__(environment, "ray", ray.cloudpickle.dumps)
        self._ray = ray
        self._actor = ray.remote(_WorkerActor).options(scheduling_strategy="SPREAD").remote()
        self._outgoing: list[bytes] = []
        self._sender: asyncio.Task[None] | None = None
        self._listener = self._loop.create_task(self._receive_answers())

    def deliver(self, messages: list[bytes]) -> None:
        """Queue messages for the actor; one call at a time sends them."""
        self._outgoing += messages
        if self._sender is None or self._sender.done():
            self._sender = self._loop.create_task(self._send())

    def stop(self) -> None:
        """Kill the actor."""
        if self._ray.is_initialized():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(self._actor)

    def detach(self) -> None:
        """Stop listening to a stopped actor."""
        self._listener.cancel()

    async def _send(self) -> None:
        while self._outgoing and not self.dead:
            messages, self._outgoing = self._outgoing, []
            # If it died, the listener reports it.
            with contextlib.suppress(self._ray.exceptions.RayError):
                await self._actor.take.remote(messages)

    async def _receive_answers(self) -> None:
        while not self.dead:
            try:
                answers = await self._actor.answers.remote()
            except self._ray.exceptions.RayError as error:
                self.died(f"the actor of the episode died ({type(error).__name__})")
                return
            self.answered(answers)


class _WorkerActor:
    """Class of the Ray actor: a thread processes calls, and a poll returns the available answers."""

    def __init__(self) -> None:
        from ray import cloudpickle

        self._hosted = WorkerServer(cloudpickle.dumps)
        self._calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answers: list[bytes] = []
        self._some = asyncio.Event()
        self._thread: threading.Thread | None = None

    async def take(self, messages: list[bytes]) -> None:
        """Queue calls for the thread that processes them."""
        if self._thread is None:
            work: Any = self._work
            self._thread = threading.Thread(target=work, args=(asyncio.get_running_loop(),), daemon=True)
            self._thread.start()
        for message in messages:
            self._calls.put(message)

    async def answers(self) -> list[bytes]:
        """Wait for answers, and return all available ones."""
        await self._some.wait()
        self._some.clear()
        answers, self._answers = self._answers, []
        return answers

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            answer = self._hosted.answer(self._calls.get())
            loop.call_soon_threadsafe(self._done, answer)

    def _done(self, answer: bytes) -> None:
        self._answers.append(answer)
        self._some.set()
