"""Environments of the package `gymnasium` with discrete actions, played in text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from agentrl_core.env.base import Content, Split, Task
from agentrl_core.env.image import Image
from agentrl_core.env.text_game import GAME_FACTS, GameEpisode, GameStep, check_counts, payload_of, seeded_tasks
from agentrl_core.env.toy_text import TOY_TEXT, GameText
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    import gymnasium

    Maker = Callable[[int], gymnasium.Env[Any, Any]]


class Gymnasium:
    """Text form of any gymnasium environment with a discrete action space.

    The first observation describes the game, its actions and the view; later ones only the view. An action is the name
    of one, alone or in `<action>…</action>`; any other text is answered with the names, flagged StepFlag.FORMAT_ERROR,
    and costs a turn. The reward is that of the game at each step, the fact `points` their sum.

    FrozenLake, Taxi, Blackjack and CliffWalking are described by themselves; other environments show the raw
    observation and numbered actions, unless `describe` and `actions` are given.

    Tasks are seeds: a task's seed determines the start of the game, the episode's seed all later randomness, so that
    members of a group start equally. If the game always starts equally (FrozenLake's standard map), all tasks are the
    same problem; then pass a function from the seed to a map. Episodes of the four games run inline, those of others in
    threads.

    Args:
        game: name of a registered environment, or a function from the task's seed to an environment.
        describe: text of the view: a function of (the unwrapped environment, the observation).
        actions: names of the actions, in the order of their numbers.
        instruction: description of the game and its goal.
        solved: success of an episode that ended by itself: a function of (sum of rewards, last reward). Default: the
            last reward is positive.
        name: name of the tasks; default: the environment's id.
        max_turns: most actions in an episode; the environment's own limit also applies.
        seed: seed of the tasks; two seeds share none.
        held_out: number of held-out tasks.

    Raises:
        MissingDependencyError: gymnasium, or the package of an environment, is not installed.
        InvalidInputError: the environment does not exist, its actions are not discrete, or an argument is out of range.

    Example:
        >>> world = Gymnasium("FrozenLake-v1", max_turns=20)
        >>> episode = world.reset(world.tasks(1)[0], seed=0)
        >>> print(episode.observation)
        Walk over the frozen lake from S to the goal G; in a hole H you drown. The ice is slippery: you may slide
        sideways.
        Actions: left, down, right, up
        <BLANKLINE>
        [S]F F F
         F H F H
         F F F H
         H F F G
        >>> episode.step("jump").observation
        "No action 'jump'. Actions: left, down, right, up"
        >>> episode.step("I go on. <action>left</action>").reward
        0.0
    """

    facts = GAME_FACTS

    def __init__(
        self,
        game: str | Maker,
        *,
        describe: Callable[[Any, Any], str] | None = None,
        actions: Sequence[str] | None = None,
        instruction: str | None = None,
        solved: Callable[[float, float], bool] | None = None,
        name: str | None = None,
        max_turns: int = 100,
        seed: int = 0,
        held_out: int = 512,
    ) -> None:
        check_counts("Gymnasium", max_turns=max_turns, seed=seed, held_out=held_out)
        self._game = game
        environment = self._make(0)
        identity = type(environment.unwrapped).__name__ if environment.spec is None else environment.spec.id
        self.name = name or identity
        count = _discrete(environment, self.name)
        toy = TOY_TEXT.get(identity.partition("-v")[0])
        known = toy or GameText()
        self._describe = describe or known.describe
        self._actions = [str(action) for action in actions or known.actions or range(count)]
        if len(self._actions) != count:
            raise InvalidInputError(
                f"Gymnasium: actions has {len(self._actions)} names, but {self.name} has {count} actions; give a name "
                "for each"
            )
        self._instruction = instruction or known.instruction(environment.unwrapped) or f"A game: {self.name}."
        self._solved = solved or known.solved
        self._draw: Callable[[Any], Image] | None = None
        self.runs = "thread" if toy is None else "inline"
        self._max_turns = max_turns
        self._seed = seed
        self._held_out = held_out
        environment.close()

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split; the same call always returns the same tasks.

        Raises:
            InvalidInputError: the range is not in the split.
        """
        return seeded_tasks(
            self.name,
            self._instruction,
            seed=self._seed,
            split=split,
            count=count,
            start=start,
            held_out=self._held_out,
        )

    def reset(self, task: Task, seed: int) -> GameEpisode:
        """Start an episode of the task; `seed` determines the randomness after its start.

        Raises:
            InvalidInputError: the task is not one of this environment's.
        """
        (task_seed,) = cast("list[int]", payload_of(task, "Gymnasium", ["seed"]))
        environment = self._make(task_seed)
        observation, _ = environment.reset(seed=task_seed)
        environment.unwrapped.np_random = np.random.default_rng([task_seed, seed])
        instruction = self._instruction_of(observation)
        game = _GymnasiumGame(
            environment, observation, self._actions, self._describe, self._solved, instruction, self._draw
        )
        begin = f"{instruction}\nActions: {', '.join(self._actions)}"
        return GameEpisode(game, game.shown(begin), max_turns=self._max_turns)

    def _instruction_of(self, observation: Any) -> str:  # noqa: ARG002 -- for games that begin with a mission
        return self._instruction

    def _make(self, seed: int) -> gymnasium.Env[Any, Any]:
        try:
            import gymnasium
        except ImportError as error:
            raise MissingDependencyError(
                "Gymnasium needs the package gymnasium: pip install 'agentrl-core[gymnasium]'"
            ) from error
        if not isinstance(self._game, str):
            return self._game(seed)
        try:
            return gymnasium.make(self._game, disable_env_checker=True)
        except gymnasium.error.Error as error:
            raise InvalidInputError(
                f"Gymnasium: {self._game!r} is refused ({error}); correct its name or options"
            ) from error
        except ImportError as error:
            raise MissingDependencyError(
                f"Gymnasium: {self._game!r} needs a package that is not installed ({error}); install it"
            ) from error


def _discrete(environment: gymnasium.Env[Any, Any], name: str) -> int:
    from gymnasium.spaces import Discrete

    space = environment.action_space
    if not isinstance(space, Discrete) or space.start != 0:
        raise InvalidInputError(
            f"Gymnasium: {name} has the action space {space}; give an environment with discrete actions from 0 on"
        )
    return int(space.n)


class _GymnasiumGame:
    def __init__(
        self,
        environment: gymnasium.Env[Any, Any],
        observation: Any,
        actions: Sequence[str],
        describe: Callable[[Any, Any], str],
        solved: Callable[[float, float], bool],
        instruction: str,
        draw: Callable[[Any], Image] | None,
    ) -> None:
        self._environment = environment
        self._actions = actions
        self._describe = describe
        self._solved = solved
        self._instruction = instruction
        self._draw = draw
        self._score = 0.0
        self.seen = describe(environment.unwrapped, observation)

    def play(self, command: str) -> GameStep:
        if command not in self._actions:
            legend = f"No action {command!r}. Actions: {', '.join(self._actions)}"
            return GameStep(legend, self._score, refused=True)
        observation, paid, terminated, truncated, _ = self._environment.step(self._actions.index(command))
        reward = float(paid)
        self._score += reward
        self.seen = self._describe(self._environment.unwrapped, observation)
        success = bool(terminated) and self._solved(self._score, reward)
        return GameStep(self.shown(), self._score, reward, bool(terminated), bool(truncated), success)

    def shown(self, begin: str = "") -> Content:
        """Return the current view, as text or as an image, after an introductory text."""
        if self._draw is None:
            return f"{begin}\n\n{self.seen}" if begin else self.seen
        image = self._draw(self._environment.unwrapped)
        return {"role": "user", "content": [begin, image] if begin else [image]}

    def state(self) -> str:
        return f"{self._instruction}\n{self.seen}"

    def close(self) -> None:
        self._environment.close()
