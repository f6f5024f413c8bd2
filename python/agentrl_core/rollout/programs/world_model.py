"""World models: a model generates observations in place of an environment."""

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
    """Environment whose episodes a world model simulates, in place of a slow or expensive real environment.

    A simulated episode starts like the real one. Then the model gets the task, observations and actions, and generates
    the next observation. If it generates `<success>` or `<failure>`, the episode ends with reward 1 or 0. The fact
    `confidence` of a step is the geometric mean of the probabilities of its tokens.

    It has no tasks: pass it to the collector beside the environment, as `{"real": world, "imagined":
    WorldModelEnvironment(world, model)}`, and start branches in it by a program, `group.start(environment="imagined")`.
    Such trajectories have the origin `imagined`. Its observations are recorded like other answers. After a kill an
    episode is generated again with the same seeds, and must be equal. Source: DynaWeb.

    Args:
        environment: the environment of the tasks.
        engine: the world model.
        sampling: sampling of its observations; by default greedy, at most 256 tokens.
        instruction: its instruction.

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

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> Sequence[Task]:  # noqa: ARG002 -- as in the protocol
        """Return no tasks."""
        return []

    def reset(self, task: Task, seed: int) -> WorldModelEpisode:
        """Start a simulated episode of a task.

        Raises:
            UnsupportedError: the environment shows images, or has episodes of several agents.
        """
        return WorldModelEpisode(self, task, seed, [])

    def restore(self, task: Task, seed: int, actions: Sequence[str], snapshot: bytes | None) -> Any:
        """Restore a simulated episode after some actions: from recorded text, or by generating again."""
        if snapshot is not None:
            return WorldModelEpisode(self, task, seed, json.loads(snapshot))
        return self._again(task, seed, actions)

    async def _again(self, task: Task, seed: int, actions: Sequence[str]) -> WorldModelEpisode:
        episode = WorldModelEpisode(self, task, seed, [])
        for action in actions:
            await episode.step(action)
        return episode


class WorldModelEpisode:
    """A simulated episode: pairs of actions and observations."""

    def __init__(self, world: WorldModelEnvironment, task: Task, seed: int, past: list[list[str]]) -> None:
        self._world = world
        self._task = task
        self._seed = seed
        self._past = past
        real: Any = world.environment.reset(task, seed)
        title = type(world.environment).__name__
        if not hasattr(real, "observation"):
            raise UnsupportedError(
                f"WorldModelEnvironment: an episode of {title} has several agents; give an environment with one agent"
            )
        self.observation = real.observation
        self.tools = getattr(real, "tools", None)
        if images_in(self.observation):
            raise UnsupportedError(
                f"WorldModelEnvironment: {title} shows images, but world models generate text only; give an "
                f"environment without images"
            )
        if hasattr(real, "close"):
            real.close()

    async def step(self, action: str) -> StepResult:
        """Generate the observation after an action.

        Raises:
            EngineError: its generation was interrupted; retry it.
        """
        world = self._world
        seed = _core.rng.structural_seed(self._seed, len(self._past))
        request = Request(world.engine.chat.prompt(self._world_prompt(action)), seed, world.sampling)
        segment = await world.engine.generate(request)
        if segment.finish_reason == "abort":
            raise EngineError(
                f"WorldModelEnvironment: the observation after action {len(self._past) + 1} was interrupted; "
                "submit the action again"
            )
        observation = world.engine.chat.decode(segment.tokens)
        self._past.append([action, observation])
        facts = {"confidence": float(np.exp(segment.logprobs.mean()))}
        if "<success>" in observation or "<failure>" in observation:
            success = "<success>" in observation
            return StepResult(reward=float(success), terminated=True, success=success, facts=facts)
        return StepResult(observation, facts=facts)

    def state_key(self) -> bytes:
        """Return the task's id and all actions and observations as JSON."""
        return json.dumps([self._task.task_id, self._past]).encode()

    def snapshot(self) -> bytes:
        """Return all actions and observations as JSON."""
        return json.dumps(self._past).encode()

    def _world_prompt(self, action: str) -> str:
        """Return the prompt of the world model: instruction, first observation, past turns and the action."""
        first = "\n\n".join(str(message.get("content") or "") for message in as_messages(self.observation))
        past = "".join(
            f"Action:\n{past_action}\n\nObservation:\n{observation}\n\n" for past_action, observation in self._past
        )
        return f"{self._world.instruction}\n\nObservation:\n{first}\n\n{past}Action:\n{action}\n\nObservation:"
