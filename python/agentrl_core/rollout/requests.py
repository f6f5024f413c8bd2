"""The requests of a branch to its engine."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.rollout.runtime import Runtime
from agentrl_core.rollout.token_path import TokenPath


class BranchRequests:
    """The requests of a branch to its engine, numbered by path, so that a resumed run finds the responses.

    Args:
        runtime: sends them.
        agent: name of the agent.
        group: name of the branch's group.
        title: title of its environment, for messages.
    """

    def __init__(self, runtime: Runtime, agent: str, group: str, title: str) -> None:
        self._runtime = runtime
        self._agent = agent
        self._group = group
        self._title = title
        self._sent: dict[str, int] = {}
        """Number of requests, by path name."""
        self._open: set[str] = set()

    async def send(self, path: TokenPath, sampling: Sampling, max_tokens: int) -> Segment:
        """Request at most `max_tokens` more tokens of a path, and return the response."""
        runtime, images = self._runtime, path.images
        number = self._sent.get(path.name, 0)
        self._sent[path.name] = number + 1
        name = f"{path.name}/segment{number}"
        if images:
            runtime.check_images(self._agent, self._title)
        tokens, seed = runtime.forest.tokens(path.handle), runtime.forest.segment_seed(path.handle)
        request = Request(tokens, seed, _limited(sampling, max_tokens, path.stop_tokens), self._group, images)
        self._open.add(name)
        try:
            return await runtime.generate(name, self._agent, request)
        finally:
            self._open.discard(name)

    def stop(self) -> None:
        """Stop those that wait, and keep their tokens."""
        for name in self._open:
            self._runtime.stop(name)


@lru_cache(maxsize=256)
def _limited(sampling: Sampling, max_tokens: int, stops: tuple[int, ...]) -> Sampling:
    stops = tuple(dict.fromkeys((*sampling.stop_token_ids, *stops)))
    return replace(sampling, max_tokens=max_tokens, stop_token_ids=stops)
