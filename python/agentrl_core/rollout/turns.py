"""Turn by turn: the engine generates, the environment answers, the planner forks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.data.forest import Forest
from agentrl_core.engine.base import Engine, Request, Sampling, Segment, complete
from agentrl_core.env.base import TOOL_RESULT, Environment, Outcome, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.notices import Notices
from agentrl_core.rollout.planner import Frontier, Planner
from agentrl_core.rollout.play import Play


@dataclass
class _Row:
    """A trajectory while it runs."""

    handle: int
    group: int
    play: Play
    context_node: int
    """Last node before the segment that is generated next or was generated last."""
    context_length: int
    initial_entropy: float = float("nan")
    after_tool: bool = False
    """The next segment follows a tool result."""
    over: bool = False


def roll_out(
    forest: Forest,
    engine: Engine,
    environment: Environment,
    planner: Planner,
    tasks: Sequence[Task],
    *,
    group_size: int,
    sampling: Sampling,
    context_tokens: int,
    first_group: int = 0,
    progress: Callable[[int], None] | None = None,
    notices: Notices | None = None,
) -> None:
    """Roll out one group for each task until every trajectory of the forest's new groups has ended.

    A turn is one engine call for all trajectories that are running. A trajectory that a planner forks replays its
    actions in a fresh episode; where that shows something else than the trajectory saw, the fork ends as failed. A
    segment that ends at the token limit is followed by an injected end-of-turn token when the episode goes on; a path
    that reaches `context_tokens` ends as truncated, unsolved, with what it was paid so far. The reward of a trajectory
    is the sum of what its steps were paid.

    Args:
        forest: takes the groups, numbered from `first_group`.
        engine: generates.
        environment: answers.
        planner: how many trajectories start, and where they fork.
        tasks: one group each.
        group_size: passed to the planner.
        sampling: of every segment; the engine's stop tokens are added to its own.
        context_tokens: the longest path.
        first_group: number of the first group.
        progress: called with the number of tokens after each turn.
        notices: keeps what was warned of already.

    Raises:
        InvalidInputError: the environment or the planner answers with something that cannot be.
    """
    notices = Notices() if notices is None else notices
    driver = _Driver(forest, engine, environment, planner, sampling, context_tokens, first_group, notices)
    for index, task in enumerate(tasks):
        forest.add_group(first_group + index, task.task_id)
        driver.roots.append(0)
        for _ in range(driver.count("roots", planner.roots(group_size))):
            driver.start(index, task)
    while True:
        generated = driver.turn()
        driver.top_up(tasks)
        if progress is not None:
            progress(generated)
        if not driver.active:
            break
    driver.say_what_was_missed()


class _Driver:
    def __init__(
        self,
        forest: Forest,
        engine: Engine,
        environment: Environment,
        planner: Planner,
        sampling: Sampling,
        context_tokens: int,
        first_group: int,
        notices: Notices,
    ) -> None:
        self.forest = forest
        self.engine = engine
        self.environment = environment
        self.planner = planner
        stops = dict.fromkeys((*sampling.stop_token_ids, *engine.chat.stop_token_ids))
        self.sampling = replace(sampling, stop_token_ids=tuple(stops))
        self.context_tokens = context_tokens
        self.first_group = first_group
        self.notices = notices
        self.tool_results = 0
        """Actions that a tool answered."""
        self.active: list[_Row] = []
        self.roots: list[int] = []
        """Roots started in each group; forks are counted by `existing`."""
        self.forks: dict[int, int] = {}
        self.copies: dict[tuple[int, int], int] = {}
        """Copies made of each trajectory at each node."""
        self.decisions: dict[int, int] = {}
        """Decisions logged so far in each group."""
        self.round = 0
        """Turn of the search, for the log of the planner's decisions."""

    def start(self, group: int, task: Task) -> None:
        """Start another root of a group at the task's prompt."""
        handle = self.forest.start(self.first_group + group, self.roots[group])
        self.roots[group] += 1
        play = Play(self.environment, task, self.forest.segment_seed(handle))
        prompt = self.engine.chat.prompt(play.observation)
        if len(prompt) >= self.context_tokens:
            raise InvalidInputError(
                f"context_tokens={self.context_tokens} leaves no room behind the {len(prompt)} tokens of the prompt of "
                f"task {task.task_id!r}; raise it"
            )
        node = self.forest.append(handle, prompt, kind="prompt", state=play.state_key)
        self.forest.decide("start", handle, in_round=self.round, ordinal=self._decided(group))
        self.active.append(_Row(handle, group, play, node, len(prompt)))

    def turn(self) -> int:
        """Generate one segment for every running trajectory, let the environment answer and the planner fork."""
        rows = self.active
        requests = [
            Request(
                self.forest.tokens(row.handle),
                self.forest.segment_seed(row.handle),
                replace(
                    self.sampling,
                    max_tokens=min(self.sampling.max_tokens, self.context_tokens - row.context_length),
                ),
            )
            for row in rows
        ]
        segments = complete(self.engine, requests)
        measured = self._measure(segments)
        before = [(row.context_node, row.context_length, row.after_tool) for row in rows]
        # All of them before anything else, so that an environment that fails loses no sampled token.
        for row, segment in zip(rows, segments, strict=True):
            self._store(row, segment)
        for row, segment, entropy in zip(rows, segments, measured, strict=True):
            if not row.play.turns:
                row.initial_entropy = float(entropy)
            self._answer(row, segment)
        copies = self._plan(rows, segments, measured, [after for _, _, after in before])
        self.active = [row for row in rows if not row.over]
        for row, (node, length, after), entropy, count in zip(rows, before, measured, copies.tolist(), strict=True):
            for _ in range(count):
                self._fork(row, node, length, after_tool=after, score=float(entropy))
        self.round += 1
        return sum(len(segment.tokens) for segment in segments)

    def top_up(self, tasks: Sequence[Task]) -> None:
        """Start the further roots that the planner asks for."""
        active = np.bincount([row.group for row in self.active], minlength=len(tasks)).astype(np.uint32)
        wanted = self._counts("top_up", self.planner.top_up(self._existing(), active), len(tasks), "group")
        for group, count in enumerate(wanted.tolist()):
            for _ in range(count):
                self.start(group, tasks[group])

    def _decided(self, group: int) -> int:
        """Number of the next decision about a group."""
        number = self.decisions[group] = self.decisions.get(group, -1) + 1
        return number

    def _existing(self) -> NDArray[np.uint32]:
        forks = [self.forks.get(group, 0) for group in range(len(self.roots))]
        return np.asarray(self.roots, np.uint32) + np.asarray(forks, np.uint32)

    def _measure(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """The planner's entropy of each segment."""
        known = [np.empty(0, np.float32) if s.entropies is None else s.entropies for s in segments]
        offsets = np.cumsum([0, *(len(entropies) for entropies in known)], dtype=np.int64)
        flat = np.concatenate(known).astype(np.float32, copy=False)
        measured = np.array(self.planner.segment_entropy(flat, offsets, self.engine.vocabulary_size))
        if measured.shape != (len(segments),) or measured.dtype.kind not in "fiu":
            self._refuse("segment_entropy", measured, f"give one number for each of the {len(segments)} segments")
        measured = measured.astype(np.float64)
        measured[[segment.entropies is None for segment in segments]] = np.nan
        return measured

    def _store(self, row: _Row, segment: Segment) -> None:
        self.forest.append(
            row.handle,
            segment.tokens,
            kind="action",
            logprobs=segment.logprobs,
            entropies=segment.entropies,
            policy_version=segment.policy_version,
            seed=segment.seed,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            finish_reason=segment.finish_reason,
        )

    def _answer(self, row: _Row, segment: Segment) -> None:
        """Give the segment to the environment, store what it says."""
        forest, chat = self.forest, self.engine.chat
        outcome = row.play.step(chat.decode(segment.tokens))
        self._note(row.play, outcome)
        following: NDArray[np.int32] | None = None
        truncated = outcome.truncated
        if outcome.observation is not None:
            following = chat.observation(outcome.observation)
            closing = 1 if segment.finish_reason == "length" else 0
            row.context_length += len(segment.tokens) + closing + len(following)
            truncated = truncated or row.context_length >= self.context_tokens
        forest.step(
            row.handle,
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=truncated,
            flags=outcome.flags,
        )
        row.over = outcome.terminated or truncated
        if row.over:
            forest.finish(
                row.handle,
                reward=sum(row.play.paid),
                success=bool(outcome.success),
                info=row.play.info,
                status="finished" if outcome.terminated else "truncated",
            )
        elif following is not None:
            if segment.finish_reason == "length":
                forest.append(row.handle, [chat.end_of_turn], kind="injected")
            row.context_node = forest.append(
                row.handle, following, kind="observation", state=row.play.turns[-1].state_key
            )
            row.after_tool = bool(outcome.flags & TOOL_RESULT)

    def _note(self, play: Play, outcome: Outcome) -> None:
        """Count and tell what nobody would see otherwise."""
        self.tool_results += bool(outcome.flags & TOOL_RESULT)
        if outcome.reward is not None and math.isnan(outcome.reward):
            self.notices.once(
                "reward",
                f"environment {type(self.environment).__name__}: the reward of step {len(play.turns)} of task "
                f"{play.task.task_id!r} is NaN; trajectories without a known reward are left out of the update and "
                "counted in the metric collect.unscored; pay a number, or None where nothing is paid",
            )

    def say_what_was_missed(self) -> None:
        """Warn where a planner that forks at tool results was told of none."""
        if self.planner.needs_tool_results and self.round and not self.tool_results:
            self.notices.once(
                "tools",
                f"{self.planner.title()} forks at tool results, and environment {type(self.environment).__name__} "
                f"reported none in iteration {self.forest.iteration}: nothing was forked; set "
                "flags=env.TOOL_RESULT in the Outcome of an action that a tool answered, or use rollout.Independent",
            )

    def count(self, method: str, number: object) -> int:
        """The whole number that a planner gave."""
        if isinstance(number, bool) or not isinstance(number, Integral) or int(number) < 0:
            self._refuse(method, number, "give a whole number of at least 0")
        return int(number)

    def _counts(self, method: str, counts: object, rows: int, of: str) -> NDArray[np.int64]:
        """What a planner decided for each row or group."""
        found = np.asarray(counts)
        if found.shape != (rows,) or found.dtype.kind not in "iu" or (found < 0).any():
            self._refuse(method, counts, f"give one whole number of at least 0 for each {of}, {rows} of them")
        return found.astype(np.int64)

    def _refuse(self, method: str, found: object, remedy: str) -> NoReturn:
        raise InvalidInputError(f"planner {self.planner.title()}: {method} gave {found!r}; {remedy}")

    def _plan(
        self,
        rows: Sequence[_Row],
        segments: Sequence[Segment],
        measured: NDArray[np.float64],
        after_tool: Sequence[bool],
    ) -> NDArray[np.int64]:
        columns = self.count("random_columns", self.planner.random_columns)
        # A stream of its own for the planner: the segment's seed has drawn the segment's tokens.
        seeds = np.array([_core.rng.structural_seed(segment.seed, 1) for segment in segments], np.uint64)
        uniform = [_core.rng.uniform(seeds, column) for column in range(columns)]
        frontier = Frontier(
            trajectory=np.array([row.handle for row in rows], np.int64),
            group=np.array([row.group for row in rows], np.uint32),
            entropy=measured,
            initial_entropy=np.array([row.initial_entropy for row in rows], np.float64),
            is_after_tool=np.array(after_tool, np.bool_),
            has_tool_result=np.array([row.after_tool and not row.over for row in rows], np.bool_),
            existing=self._existing(),
            uniform=np.stack(uniform, axis=1) if uniform else np.empty((len(rows), 0)),
        )
        return self._counts("plan", self.planner.plan(frontier), len(rows), "row of the frontier")

    def _fork(self, row: _Row, context_node: int, context_length: int, *, after_tool: bool, score: float) -> None:
        """A copy of a row at the place that the planner wants, with an episode that has replayed its actions."""
        if self.planner.fork_at == "end":
            context_node, context_length, after_tool = row.context_node, row.context_length, row.after_tool
            turns = len(row.play.turns)
        else:
            turns = len(row.play.turns) - 1
        place = (row.handle, context_node)
        ordinal = self.copies[place] = self.copies.get(place, -1) + 1
        handle = self.forest.fork(row.handle, node=context_node, ordinal=ordinal)
        self.forest.decide(
            "fork",
            row.handle,
            in_round=self.round,
            ordinal=self._decided(row.group),
            node=context_node,
            result=handle,
            score=None if np.isnan(score) else score,
        )
        self.forks[row.group] = self.forks.get(row.group, 0) + 1
        play, difference = row.play.branch(turns)
        if difference:
            self.forest.finish(handle, status="failed", info={"replay": difference})
            self.notices.once(
                "replay",
                f"environment {type(self.environment).__name__} does not replay task {play.task.task_id!r} equally: "
                f"{difference}; forks of it end as failed and are not drawn; make an episode depend on (task, seed, "
                "actions) alone, or use rollout.Independent",
            )
            return
        self.active.append(_Row(handle, row.group, play, context_node, context_length, row.initial_entropy, after_tool))
