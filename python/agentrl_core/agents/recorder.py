"""Record sessions: each turn once in a forest, and in the store's rollout log before the client gets its answer."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from agentrl_core._util.json_text import to_json
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.records import (
    REWARD,
    SessionRecord,
    SessionTurn,
    Tokens,
    check_name,
    checked_end,
    records_of,
    turns_packed,
    turns_unpacked,
)
from agentrl_core.agents.request_fields import shown
from agentrl_core.agents.upstream import ChatResponse
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import RolloutLog, Store
from agentrl_core.env.image import Image
from agentrl_core.exceptions import AgentRLError, EngineError, InvalidInputError

_BEGIN = " begin"
"""Name of the record that clears a rollout log. It cannot be that of a session, whose name is not empty."""

_log = logging.getLogger(__name__)

RECENT = 16
"""Number of recent turns that a prompt is compared with if it continues no known turn."""


@dataclass(frozen=True)
class Excluded:
    """A closed session that no batch could hold.

    Args:
        recorded: the session.
        reason: why the session cannot be stored in a batch.
    """

    recorded: SessionRecord
    reason: str


class SessionRecorder:
    """Records the sessions of an iteration in the store's rollout log, and commits them as a batch.

    Every record is written to the rollout log of the store's iteration. A turn's record has only the prompt tokens that
    no earlier turn has, so bytes are linear in the tokens. Before a record is written, it is converted to batch rows as
    a check, so that no record makes a later commit fail.

    `commit` builds the batch of closed groups. It first copies the remaining sessions to the rollout log of the next
    iteration, after a record that clears that log, and then commits the batch, which removes the log of this
    iteration. If the process is killed in between, the next one either finds the batch and continues from the copies,
    or finds no batch, continues from the log of this iteration, and clears the copies with its next commit.

    Args:
        store: the store to write; None: sessions are kept in memory.
        seed: seed of the forest.

    Attributes:
        excluded: closed sessions that could not be stored in a batch; they are kept across iterations.
        lock: held while records are written, and for the whole of a commit.

    Raises:
        InvalidInputError: the store has a batch of its iteration that no endpoint has committed.
    """

    def __init__(self, store: Store | None = None, seed: int = 0) -> None:
        self.store = store
        self.iteration = 0 if store is None else store.iteration
        self.sessions: dict[str, SessionRecord] = {}
        self.excluded: list[Excluded] = []
        self.lock = threading.RLock()
        self._seed = seed
        self._rollout_log: RolloutLog | None = None
        if store is not None:
            self._rollout_log = self._found(store)

    def _found(self, store: Store) -> RolloutLog:
        """Read the sessions of a store; return the rollout log to continue."""
        if store.has_batch(self.iteration):
            # Killed in a commit, after the batch was stored: the remaining sessions are in the next rollout_log.
            following = store.rollout_log(self.iteration + 1)
            if self._read_all(following):
                store.close_iteration(store.batch(self.iteration), self._state())
                self.iteration += 1
                return following
        rollout_log = store.rollout_log(self.iteration)
        self._read_all(rollout_log)
        return rollout_log

    def _read_all(self, rollout_log: RolloutLog) -> bool:
        """Read the records of a rollout log; return whether one is the record with which a commit begins a log."""
        has_begun = False
        for raw, payload in rollout_log.records():
            name = raw.decode()
            if name == _BEGIN:
                has_begun = True
                self.sessions, self.excluded = {}, []
            else:
                self._read(name, json.loads(payload))
        return has_begun

    def open(self, session: str, task: str, group: str) -> SessionRecord:
        """Begin a session of a task, as the next member of a group.

        Raises:
            InvalidInputError: the group has sessions of another task, or a name cannot be stored.
        """
        for name, value in {"task_id": task, "group": group}.items():
            check_name(value, name)
        with self.lock:
            members = [known for known in self.sessions.values() if known.group == group]
            if members and members[0].task != task:
                raise InvalidInputError(
                    f"task is {shown(task)}, but group {shown(group)} has task {shown(members[0].task)}; use another "
                    "group, since all sessions of a group need the same task"
                )
            recorded = SessionRecord(session, task, group, len(members))
            self._check(recorded)
            self._write(session, "open", {"task": task, "group": group, "member": recorded.member})
            self.sessions[session] = recorded
        return recorded

    def turn(
        self,
        recorded: SessionRecord,
        answer: ChatResponse,
        request: Json,
        version: int,
        *,
        images: Sequence[Image] = (),
        near: int,
        positions: Sequence[tuple[int, str, str]],
        key: str,
    ) -> list[SessionTurn]:
        """Record an answer durably, as one turn for each of its choices.

        Args:
            recorded: the session.
            answer: the upstream's answer.
            request: the answered request.
            version: version of the weights.
            images: images in the prompt, in order.
            near: the turn that the prompt continues; -1: no known turn.
            positions: for each choice its conversation, the digest of the chat that ends with it, and for a new
                conversation the digest of its first message.
            key: digest of the request.

        Raises:
            InvalidInputError: the session is closed.
            EngineError: the answer cannot be stored, such as one without tokens; nothing of it is recorded.
        """
        temperature, top_p = request.get("temperature"), request.get("top_p")
        with self.lock:
            recorded.check_open()
            try:
                prompt = np.asarray(answer.prompt, np.int32)
                origin, shared = _origin(recorded, prompt, near)
                contents = {image.sha256.hex(): image.content for image in images}
                hashes = [image.sha256.hex() for image in images]
                before = recorded.images(origin) if origin >= 0 and images else []
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, hashes, strict=False)))
                turns = [
                    SessionTurn(
                        len(recorded.turns) + place,
                        origin,
                        shared,
                        prompt[shared:],
                        np.asarray(choice.tokens, np.int32),
                        np.asarray(choice.logprobs, np.float32),
                        choice.finish_reason,
                        version,
                        None if temperature is None else float(temperature),
                        1.0 if top_p is None else float(top_p),
                        choice.message,
                        chat,
                        key,
                        lane,
                        opening,
                        choice.details,
                        shared_images=same,
                        images=hashes[same:],
                    )
                    for place, (choice, (lane, chat, opening)) in enumerate(zip(answer.choices, positions, strict=True))
                ]
                alone = [_alone(turn, prompt, place) for place, turn in enumerate(turns)]
                self._check(replace(recorded, turns=alone, pictures=contents))
            except (AgentRLError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise EngineError(
                    f"session {recorded.session!r}: the answer cannot be recorded ({error}); send the request again"
                ) from error
            self._write(recorded.session, "turn", turns_packed(turns, contents, set(recorded.pictures)))
            recorded.turns += turns
            recorded.pictures.update(contents)
        return turns

    def reward(self, recorded: SessionRecord, reward: float, turn: int | None) -> None:
        """Set the reward of a turn; `turn=None` means the last turn.

        Raises:
            InvalidInputError: there is no such turn, or the reward is not a finite number.
        """
        REWARD(reward, "reward")
        with self.lock:
            if not recorded.turns:
                raise InvalidInputError(
                    f"session {recorded.session!r} has no turn yet; give a reward after its first answer"
                )
            place = len(recorded.turns) - 1 if turn is None else turn
            if not 0 <= place < len(recorded.turns):
                raise InvalidInputError(
                    f"turn is {shown(turn)}; give a turn of session {recorded.session!r}, from 0 to "
                    f"{len(recorded.turns) - 1}"
                )
            self._write(recorded.session, "reward", {"turn": place, "reward": float(reward)})
            recorded.turns[place].reward = float(reward)

    def close(self, recorded: SessionRecord, end: Json) -> None:
        """End a session with its outcome: reward, success, status and info.

        Raises:
            InvalidInputError: a field cannot be stored; the message names it.
        """
        end = checked_end(end)
        with self.lock:
            self._check(replace(recorded, closed=end))
            self._write(recorded.session, "close", end)
            recorded.closed = end

    def batch(self, sessions: list[SessionRecord]) -> Batch:
        """Return the batch of some sessions; open ones are included as running trajectories."""
        return self._forest(sessions).freeze(partial=True)

    def _forest(self, sessions: Iterable[SessionRecord]) -> Forest:
        """Store sessions in a new forest."""
        forest = Forest(iteration=self.iteration, seed=self._seed)
        tasks: dict[str, str] = {}
        for recorded in sessions:
            _check_task(tasks, recorded)
        numbers = {group: number for number, group in enumerate(tasks)}
        for group, task in tasks.items():
            forest.add_group(numbers[group], task)
        members = dict.fromkeys(tasks, 0)
        for recorded in sessions:
            lanes = _ingested(forest, numbers[recorded.group], members[recorded.group], recorded)
            members[recorded.group] += len(lanes)
            if recorded.closed is None:
                continue
            end = recorded.closed
            for trajectory in lanes:
                forest.finish(
                    trajectory,
                    reward=end.get("reward"),
                    success=end.get("success"),
                    status=end.get("status", "finished"),
                    info={"session": recorded.session, **(end.get("info") or {})},
                )
        return forest

    def _check(self, recorded: SessionRecord) -> None:
        """Refuse a session that cannot be stored in a batch, by storing it in one alone."""
        self._forest([recorded])

    def _fitting(self, closed: list[SessionRecord]) -> tuple[Batch | None, list[SessionRecord], list[Excluded]]:
        """Return the batch of closed sessions, its sessions, and the sessions that no batch can hold."""
        try:
            return self.batch(closed), closed, []
        except Exception:  # noqa: BLE001 -- an error of one session must not affect the others
            fitting, excluded = list[SessionRecord](), list[Excluded]()
            tasks = dict[str, str]()
            for recorded in closed:
                try:
                    self.batch([recorded])
                    _check_task(tasks, recorded)
                except Exception as error:  # noqa: BLE001 -- the same
                    excluded.append(Excluded(recorded, f"{type(error).__name__}: {error}"))
                else:
                    fitting.append(recorded)
        return self.batch(fitting) if fitting else None, fitting, excluded

    def commit(self) -> Batch | None:
        """Commit the groups whose sessions are all closed as an iteration; return their batch, None if there are none.

        With a store, the batch is durable when this returns. A session that cannot be stored moves to `excluded`.
        """
        with self.lock:
            waiting = {recorded.group for recorded in self.sessions.values() if recorded.closed is None}
            # A group waits until all its sessions have ended, since they are compared with each other.
            closed = [
                recorded
                for recorded in self.sessions.values()
                if recorded.closed is not None and recorded.group not in waiting
            ]
            if not closed:
                return None
            batch, fitting, excluded = self._fitting(closed)
            for exclusion in excluded:
                self._exclude(exclusion)
            if batch is None:
                return None
            committed = {recorded.session for recorded in fitting}
            remaining = {name: recorded for name, recorded in self.sessions.items() if name not in committed}
            if self.store is not None:
                following = self.store.rollout_log(self.iteration + 1)
                self._put(following, _BEGIN, {"iteration": self.iteration})
                for name, payload in self._records(remaining.values()):
                    self._put(following, name, payload)
                # The batch must not be on the disk before the copies are.
                following.sync()
                batch = self.store.rebase(batch)
                self.store.append(batch, iteration=self.iteration)
                self.store.flush()
                self.store.close_iteration(batch, self._state())
                self._rollout_log = following
            self.sessions = remaining
            self.iteration += 1
        return batch

    def _exclude(self, exclusion: Excluded) -> None:
        """Move a session to `excluded`, and log it."""
        _log.error(
            "session %s cannot become rows and is left out of the batch: %s",
            exclusion.recorded.session,
            exclusion.reason,
        )
        self._write(exclusion.recorded.session, "exclude", {"reason": exclusion.reason})
        self.excluded.append(exclusion)
        del self.sessions[exclusion.recorded.session]

    def _state(self) -> Json:
        """Return the state to save with a closed iteration: the number of sessions left out, as a metric."""
        return {"metrics": {"sessions.excluded": len(self.excluded)}}

    def _records(self, remaining: Iterable[SessionRecord]) -> list[tuple[str, Json]]:
        """Return the excluded and the remaining sessions as the records of a rollout log."""
        records = []
        for exclusion in self.excluded:
            records += records_of(exclusion.recorded)
            records.append((f"{exclusion.recorded.session} exclude", {"reason": exclusion.reason}))
        for recorded in remaining:
            records += records_of(recorded)
        return records

    def _write(self, session: str, what: str, payload: Json) -> None:
        if self._rollout_log is not None:
            self._put(self._rollout_log, f"{session} {what}", payload)

    def _put(self, rollout_log: RolloutLog, name: str, payload: Json) -> None:
        rollout_log.append(name.encode(), to_json(payload, "record").encode())

    def _read(self, name: str, payload: Json) -> None:
        """Restore a record of the rollout log."""
        session, _, what = name.partition(" ")
        if what == "open":
            self.sessions[session] = SessionRecord(session, payload["task"], payload["group"], payload["member"])
            return
        recorded = self.sessions.get(session)
        if recorded is None:
            return
        if what == "turn":
            turns, pictures = turns_unpacked(payload)
            recorded.turns += turns
            recorded.pictures.update(pictures)
        elif what == "reward":
            recorded.turns[payload["turn"]].reward = payload["reward"]
        elif what == "close":
            recorded.closed = payload
        else:
            self.excluded.append(Excluded(self.sessions.pop(session), payload["reason"]))


def _check_task(tasks: dict[str, str], recorded: SessionRecord) -> None:
    """Refuse a session whose task differs from that of its group; `tasks` has the task of each group."""
    if tasks.setdefault(recorded.group, recorded.task) != recorded.task:
        raise InvalidInputError(
            f"session {recorded.session!r} has task {recorded.task!r}, but group {recorded.group!r} has task "
            f"{tasks[recorded.group]!r}; use another group, since all sessions of a group need the same task"
        )


def _alone(turn: SessionTurn, prompt: Tokens, place: int) -> SessionTurn:
    """Return a turn as if it were the first of its session, with only the prompt tokens that no earlier turn has."""
    json.dumps([turn.message, turn.details], allow_nan=False, ensure_ascii=False).encode()
    added = turn.added if len(turn.added) else prompt[-1:]
    return replace(turn, number=place, origin=-1, shared=0, shared_images=0, added=added)


def _origin(recorded: SessionRecord, prompt: Tokens, near: int) -> tuple[int, int]:
    """Return the turn that shares the longest prefix with a prompt, and its length: `near`, or a recent turn."""
    places = [near] if near >= 0 else range(len(recorded.turns))[-RECENT:]
    best = (-1, 0)
    for place in places:
        path = recorded.path(place)[: len(prompt)]
        differs = path != prompt[: len(path)]
        shared = int(differs.argmax()) if differs.any() else len(path)
        best = max(best, (place, shared), key=lambda candidate: candidate[1])
    return best


def _ingested(forest: Forest, group: int, member: int, recorded: SessionRecord) -> list[int]:
    """Store the turns of a session in a forest, each conversation as a trajectory; return the trajectories.

    A token without a log-prob is not trained. If no turn has a reward, the last turn of each conversation gets the
    session's reward.
    """
    lanes: dict[int, int] = {}
    nodes: list[int] = []
    last = {turn.lane: turn.number for turn in recorded.turns}
    has_rewards = any(turn.reward is not None for turn in recorded.turns)
    outcome = None if has_rewards or recorded.closed is None else recorded.closed.get("reward")
    if not recorded.turns:
        lanes[0] = forest.start(group, member)
    for content in recorded.pictures.values():
        forest.add_blob(content)
    for turn in recorded.turns:
        if turn.lane not in lanes:
            first = next(iter(lanes.values()), None)
            lanes[turn.lane] = _begun(forest, recorded, turn, lanes, nodes, (group, member + len(lanes), first))
        reward = outcome if outcome is not None and turn.number == last[turn.lane] else turn.reward
        mask = np.isfinite(turn.logprobs)
        stored = forest.ingest(
            [lanes[turn.lane]],
            prompts=[recorded.context(turn.number)],
            outputs=[turn.output],
            logprobs=[np.where(mask, turn.logprobs, 0.0)],
            trainable=[mask.astype(np.uint8)],
            policy_version=turn.version,
            seed=turn.number,
            temperature=turn.temperature,
            top_p=turn.top_p,
            finish_reason="length" if turn.finish_reason == "length" else "stop",
            reward=[math.nan if reward is None else reward],
            images=[list(map(bytes.fromhex, recorded.images(turn.number)))] if recorded.pictures else None,
        )
        nodes.append(int(stored.nodes[0]))
    return list(lanes.values())


def _begun(
    forest: Forest,
    recorded: SessionRecord,
    turn: SessionTurn,
    lanes: dict[int, int],
    nodes: list[int],
    start: tuple[int, int, int | None],
) -> int:
    """Start the trajectory of a new conversation, as a fork if its first turn continues or repeats a recorded prompt.

    Inherited tokens are only trained in the conversation that sampled them.
    """
    group, member, first = start
    before = recorded.turns[turn.number - 1] if turn.number else None
    if before is not None and before.asked == turn.asked and before.origin == turn.origin:
        # Another answer to the same request.
        return forest.fork(lanes[before.lane], node=nodes[before.number], end=0, train_prefix=False, episode=first)
    if turn.origin >= 0 and turn.shared == len(recorded.path(turn.origin)):
        origin = recorded.turns[turn.origin]
        if recorded.pictures and recorded.images(origin.number) != recorded.images(turn.number)[: turn.shared_images]:
            return forest.start(group, member, episode=first)
        return forest.fork(lanes[origin.lane], node=nodes[origin.number], train_prefix=False, episode=first)
    return forest.start(group, member, episode=first)
