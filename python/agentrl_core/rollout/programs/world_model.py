"""Worlds that a model makes up: it says what comes of an action, in the place of an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agentrl_core import _core
from agentrl_core.engine.base import Engine, Request, Sampling
from agentrl_core.env.base import Environment, ExtraColumn, Split, StepResult, Task, as_messages
from agentrl_core.env.image import images_in
from agentrl_core.exceptions import EngineError, UnsupportedError

_INSTRUCTION = (
    "You are the environment of an agent. Say what it observes after its last action, and nothing else. Where its task "
    "is done say <success>, and where it cannot be done any more say <failure>."
)


class WorldModelEnvironment:
    """The episodes of an environment as a world model dreams them, to train where the real world is slow or dear.

    A dream begins with what the real episode begins with. Then the model is shown the task, what was observed and what
    was done, and says the next observation; where it says `<success>` or `<failure>` the dream is over and pays 1 or 0,
    by its own judgement. The fact `confidence` of a step is the geometric mean of the probabilities of what it said.

    It has no tasks of its own: give it to the collector beside the environment, as `{"real": world, "imagined":
    WorldModelEnvironment(world, model)}`, and have a program begin branches in it,
    `group.start(environment="imagined")`. Such trajectories have the origin `imagined`. What was dreamt is recorded
    like any answer; an episode that is brought back after a kill is dreamt anew, with the seeds that it had, and has to
    be the same. Source: DynaWeb.

    Args:
        environment: whose tasks are dreamt of.
        engine: the world model.
        sampling: of what it says; the default is the likeliest text of at most 256 tokens.
        instruction: what it is told to do.

    Example:
        >>> from agentrl_core import engine, env, rollout, warm_start
        >>> world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
        >>> _, tokenizer = warm_start.build(world, seed=0)
        >>> dreams = rollout.WorldModelEnvironment(world, engine.Scripted(tokenizer, ["a page", "<success>"]))
        >>> episode = dreams.reset(world.tasks(1)[0], seed=0)
        >>> import asyncio
        >>> [asyncio.run(episode.step(action)).reward for action in ("open it", "answer it")]
        [None, 1.0]
    """

    runs = "inline"
    imagined = True

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        *,
        sampling: Sampling | None = None,
        instruction: str = _INSTRUCTION,
    ) -> None:
        self.environment = environment
        self.engine = engine
        stops = tuple(engine.chat.stop_token_ids)
        self.sampling = replace(sampling or Sampling(temperature=0.0, max_tokens=256), stop_token_ids=stops)
        self.instruction = instruction
        self.facts = {"confidence": ExtraColumn("step")}

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> Sequence[Task]:  # noqa: ARG002 -- the protocol's
        """None of its own."""
        return []

    def reset(self, task: Task, seed: int) -> WorldModelEpisode:
        """A dream of a task.

        Raises:
            UnsupportedError: the environment shows images, or has episodes of several agents.
        """
        return WorldModelEpisode(self, task, seed, [])

    def restore(self, task: Task, seed: int, actions: Sequence[str], snapshot: bytes | None) -> Any:
        """A dream as it is behind some actions: by what was said, or else dreamt anew."""
        if snapshot is not None:
            return WorldModelEpisode(self, task, seed, json.loads(snapshot))
        return self._again(task, seed, actions)

    async def _again(self, task: Task, seed: int, actions: Sequence[str]) -> WorldModelEpisode:
        dream = WorldModelEpisode(self, task, seed, [])
        for action in actions:
            await dream.step(action)
        return dream


class WorldModelEpisode:
    """An episode that was dreamt so far: pairs of what was done and what came of it."""

    def __init__(self, world: WorldModelEnvironment, task: Task, seed: int, past: list[list[str]]) -> None:
        self._world = world
        self._task = task
        self._seed = seed
        self._past = past
        real: Any = world.environment.reset(task, seed)
        title = type(world.environment).__name__
        if not hasattr(real, "observation"):
            raise UnsupportedError(
                f"WorldModelEnvironment: an episode of {title} is played by several agents; give one that one plays"
            )
        self.observation = real.observation
        self.tools = getattr(real, "tools", None)
        if images_in(self.observation):
            raise UnsupportedError(
                f"WorldModelEnvironment: {title} shows images, and a dream is in words; give one that shows none"
            )
        if hasattr(real, "close"):
            real.close()

    async def step(self, action: str) -> StepResult:
        """What the model says comes of an action.

        Raises:
            EngineError: what it said was interrupted; it can be asked again.
        """
        world = self._world
        seed = _core.rng.structural_seed(self._seed, len(self._past))
        request = Request(world.engine.chat.prompt(self._asked(action)), seed, world.sampling)
        segment = await world.engine.generate(request)
        if segment.finish_reason == "abort":
            raise EngineError(f"WorldModelEnvironment: what comes of action {len(self._past) + 1} was interrupted")
        said = world.engine.chat.decode(segment.tokens)
        self._past.append([action, said])
        facts = {"confidence": float(np.exp(segment.logprobs.mean()))}
        if "<success>" in said or "<failure>" in said:
            done = "<success>" in said
            return StepResult(reward=float(done), terminated=True, success=done, facts=facts)
        return StepResult(said, facts=facts)

    def state_key(self) -> bytes:
        """All that was observed and done."""
        return json.dumps([self._task.task_id, self._past]).encode()

    def snapshot(self) -> bytes:
        """What was done and said."""
        return json.dumps(self._past).encode()

    def _asked(self, action: str) -> str:
        """What the model is shown."""
        first = "\n\n".join(str(message.get("content") or "") for message in as_messages(self.observation))
        past = "".join(f"Action:\n{done}\n\nObservation:\n{said}\n\n" for done, said in self._past)
        return f"{self._world.instruction}\n\nObservation:\n{first}\n\n{past}Action:\n{action}\n\nObservation:"
