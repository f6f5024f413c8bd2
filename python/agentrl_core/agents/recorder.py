"""What was said, kept: each turn once in a forest, and in the store's journal before the client hears of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.json_text import to_json
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import Answer
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Journal, Store
from agentrl_core.exceptions import InvalidInputError

Tokens = NDArray[np.int32]

RECENT = 16
"""How many turns a prompt is compared with whose history is of no known turn."""


@dataclass
class Turn:
    """One answer of a session. Its prompt is told by what another turn's tokens begin with, and by what follows.

    Args:
        number: of the turn among those of its session.
        origin: the turn whose prompt and output this prompt begins like; -1: none.
        shared: how many tokens of these it shares.
        added: the tokens of the prompt behind them.
        output: tokens that were sampled behind the prompt.
        logprobs: of these; NaN where the engine said none.
        finish_reason: why it ended.
        version: of the weights.
        temperature: of the sampling; None where the client left it to the server.
        top_p: of the sampling.
        message: what the client was told.
        chat: digest of the chat that ends with this answer, see `conversation.digests`; empty: of no chat.
        asked: digest of the request, by which one that is sent again is known.
        lane: number of its conversation, see `lanes.Lanes`.
        opening: digest of the first message, where the lane begins with it; else empty.
        details: the client's own `logprobs`, where it asked for them.
        reward: of this turn, where somebody paid it one.
    """

    number: int
    origin: int
    shared: int
    added: Tokens
    output: Tokens
    logprobs: NDArray[np.float32]
    finish_reason: str
    version: int
    temperature: float | None
    top_p: float
    message: Json
    chat: str
    asked: str
    lane: int = 0
    opening: str = ""
    details: Json | None = None
    reward: float | None = None


@dataclass
class Recorded:
    """A session as it is kept."""

    session: str
    task: str
    group: str
    member: int
    turns: list[Turn] = field(default_factory=list)
    closed: Json | None = None
    """Its end: reward, success, status; None while it is open."""

    _last: tuple[int, Tokens] = field(default=(-1, np.empty(0, np.int32)), repr=False)
    """The path that was asked for last: the next is most often that of the turn behind it."""

    def path(self, number: int) -> Tokens:
        """The tokens of a turn: its prompt, and what was sampled behind it."""
        known, path = self._last
        if known != number:
            turn = self.turns[number]
            before = path[: turn.shared] if known == turn.origin else None
            context = self.context(number) if before is None else np.concatenate([before, turn.added])
            path = np.concatenate([context, turn.output])
            self._last = number, path
        return path

    def context(self, number: int) -> Tokens:
        """The tokens of a turn's prompt, as the engine read them."""
        turn = self.turns[number]
        parts, length = [turn.added], turn.shared
        while turn.origin >= 0:
            turn = self.turns[turn.origin]
            for part, start in ((turn.output, turn.shared + len(turn.added)), (turn.added, turn.shared)):
                if length > start:
                    parts.append(part[: length - start])
                    length = start
            length = min(length, turn.shared)
        return np.concatenate(parts[::-1])


class Recorder:
    """The sessions of an iteration.

    Every record goes into the journal of the store's iteration, and holds of a prompt only what the session's turns
    before it do not hold: bytes are linear in the tokens. `commit` makes the batch of the sessions that are closed;
    those that are open move to the next iteration first, so that nothing is ever in no journal.

    Args:
        store: where all is kept; None: in memory.
        seed: of the forest.
    """

    def __init__(self, store: Store | None = None, seed: int = 0) -> None:
        self.store = store
        self.iteration = 0 if store is None else store.iteration
        self.sessions: dict[str, Recorded] = {}
        self._seed = seed
        self._journal: Journal | None = None
        if store is not None:
            self._journal = store.journal(self.iteration)
            for number in (self.iteration, self.iteration + 1):
                for name, payload in store.journal(number).records():
                    self._read(name.decode(), json.loads(payload))

    def open(self, session: str, task: str, group: str) -> Recorded:
        """Begin a session of a task, as the next member of a group."""
        member = sum(known.group == group for known in self.sessions.values())
        recorded = Recorded(session, task, group, member)
        self._write(session, "open", {"task": task, "group": group, "member": member})
        self.sessions[session] = recorded
        return recorded

    def turn(
        self,
        recorded: Recorded,
        answer: Answer,
        request: Json,
        version: int,
        *,
        near: int,
        said: Sequence[tuple[int, str, str]],
        asked: str,
    ) -> list[Turn]:
        """Keep an answer, a turn for each of its choices. When this returns, no kill loses it.

        Args:
            recorded: the session.
            answer: what the upstream said.
            request: what it was asked.
            version: of the weights.
            near: the turn that the prompt goes on from; -1: none that is known.
            said: for each choice the lane, the digest of the chat behind it, and what begins the lane.
            asked: digest of the request.
        """
        prompt = np.asarray(answer.prompt, np.int32)
        origin, shared = _origin(recorded, prompt, near)
        temperature, top_p = request.get("temperature"), request.get("top_p")
        turns = [
            Turn(
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
                asked,
                lane,
                opening,
                choice.details,
            )
            for place, (choice, (lane, chat, opening)) in enumerate(zip(answer.choices, said, strict=True))
        ]
        self._write(recorded.session, "turn", {"turns": [_packed(turn) for turn in turns]})
        recorded.turns += turns
        return turns

    def reward(self, recorded: Recorded, reward: float, turn: int | None) -> None:
        """Pay for a turn; None: for the last."""
        if not recorded.turns:
            raise InvalidInputError(f"session {recorded.session!r} has no turn yet that could be paid")
        place = len(recorded.turns) - 1 if turn is None else turn
        if not 0 <= place < len(recorded.turns):
            raise InvalidInputError(
                f"turn is {turn}; session {recorded.session!r} has turns 0 to {len(recorded.turns) - 1}"
            )
        self._write(recorded.session, "reward", {"turn": place, "reward": reward})
        recorded.turns[place].reward = reward

    def close(self, recorded: Recorded, end: Json) -> None:
        """End a session: its reward, whether it was a success, how it ended."""
        self._write(recorded.session, "close", end)
        recorded.closed = end

    def batch(self, sessions: list[Recorded]) -> Batch:
        """The rows of some sessions, which are closed, or `partial` as they stand."""
        forest = Forest(iteration=self.iteration, seed=self._seed)
        tasks: dict[str, str] = {}
        for recorded in sessions:
            if tasks.setdefault(recorded.group, recorded.task) != recorded.task:
                raise InvalidInputError(
                    f"session {recorded.session!r} is of task {recorded.task!r}, "
                    f"and its group of {tasks[recorded.group]!r}"
                )
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
        return forest.freeze(partial=True)

    def commit(self) -> Batch | None:
        """The batch of the sessions that are closed, as an iteration of the store; None where there are none.

        With a store it is committed when this returns. The caller trains on it, and ends the iteration with `ended`.
        """
        closed = [recorded for recorded in self.sessions.values() if recorded.closed is not None]
        groups = {recorded.group for recorded in self.sessions.values() if recorded.closed is None}
        # A group whose members still talk is compared with itself when they have ended.
        closed = [recorded for recorded in closed if recorded.group not in groups]
        if not closed:
            return None
        batch = self.batch(closed)
        left = {name: recorded for name, recorded in self.sessions.items() if recorded not in closed}
        if self.store is not None:
            following = self.store.journal(self.iteration + 1)
            for recorded in left.values():
                for name, payload in self._records(recorded):
                    following.append(name.encode(), to_json(payload, "record").encode())
            batch = self.store.rebase(batch)
            self.store.append(batch, iteration=self.iteration)
            self.store.flush()
            self.store.close_iteration(batch, {})
            self._journal = following
        self.sessions = left
        self.iteration += 1
        return batch

    def _records(self, recorded: Recorded) -> list[tuple[str, Json]]:
        """A session as the records of a journal."""
        records: list[tuple[str, Json]] = [
            (f"{recorded.session} open", {"task": recorded.task, "group": recorded.group, "member": recorded.member})
        ]
        for turn in recorded.turns:
            records.append((f"{recorded.session} turn", {"turns": [_packed(turn)]}))
            if turn.reward is not None:
                records.append((f"{recorded.session} reward", {"turn": turn.number, "reward": turn.reward}))
        if recorded.closed is not None:
            records.append((f"{recorded.session} close", recorded.closed))
        return records

    def _write(self, session: str, what: str, payload: Json) -> None:
        if self._journal is not None:
            self._journal.append(f"{session} {what}".encode(), to_json(payload, "record").encode())

    def _read(self, name: str, payload: Json) -> None:
        """Take a record of the journal back in. One that is there twice, after a kill in a commit, counts once."""
        session, _, what = name.partition(" ")
        recorded = self.sessions.get(session)
        if what == "open":
            opened = Recorded(session, payload["task"], payload["group"], payload["member"])
            self.sessions.setdefault(session, opened)
        elif recorded is None:
            return
        elif what == "turn":
            for packed in payload["turns"]:
                if packed["number"] == len(recorded.turns):
                    recorded.turns.append(_unpacked(packed))
        elif what == "reward":
            recorded.turns[payload["turn"]].reward = payload["reward"]
        else:
            recorded.closed = payload


def _packed(turn: Turn) -> Json:
    """A turn as JSON."""
    logprobs = [None if math.isnan(value) else value for value in turn.logprobs.tolist()]
    lists = {"added": turn.added.tolist(), "output": turn.output.tolist(), "logprobs": logprobs}
    return dict(vars(turn)) | lists


def _unpacked(packed: Json) -> Turn:
    logprobs = [math.nan if value is None else value for value in packed["logprobs"]]
    arrays = {"added": np.asarray(packed["added"], np.int32), "output": np.asarray(packed["output"], np.int32)}
    return Turn(**(packed | arrays | {"logprobs": np.asarray(logprobs, np.float32)}))


def _origin(recorded: Recorded, prompt: Tokens, near: int) -> tuple[int, int]:
    """The turn that a prompt shares most tokens with, and how many: the near one, or one of the last."""
    places = [near] if near >= 0 else range(len(recorded.turns))[-RECENT:]
    best = (-1, 0)
    for place in places:
        path = recorded.path(place)[: len(prompt)]
        differs = path != prompt[: len(path)]
        shared = int(differs.argmax()) if differs.any() else len(path)
        best = max(best, (place, shared), key=lambda found: found[1])
    return best


def _ingested(forest: Forest, group: int, member: int, recorded: Recorded) -> list[int]:
    """Give the turns of a session to a forest, each lane as a trajectory; returns these.

    A token whose log-prob nobody knows is not trained. Where no turn was paid, the last of each lane is paid what the
    session was: what a turn led to is what came of its own lane.
    """
    lanes: dict[int, int] = {}
    nodes: list[int] = []
    last = {turn.lane: turn.number for turn in recorded.turns}
    is_paid = any(turn.reward is not None for turn in recorded.turns)
    outcome = None if is_paid or recorded.closed is None else recorded.closed.get("reward")
    if not recorded.turns:
        lanes[0] = forest.start(group, member)
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
        )
        nodes.append(int(stored.nodes[0]))
    return list(lanes.values())


def _begun(
    forest: Forest,
    recorded: Recorded,
    turn: Turn,
    lanes: dict[int, int],
    nodes: list[int],
    start: tuple[int, int, int | None],
) -> int:
    """The trajectory of a lane that begins with a turn. One that goes on from an answer is a fork behind it.

    What it inherits is trained by the lane that said it.
    """
    group, member, first = start
    before = recorded.turns[turn.number - 1] if turn.number else None
    if before is not None and before.asked == turn.asked and before.origin == turn.origin:
        # Another answer to the same request.
        return forest.fork(lanes[before.lane], node=nodes[before.number], end=0, train_prefix=False, episode=first)
    if turn.origin >= 0 and turn.shared == len(recorded.path(turn.origin)):
        origin = recorded.turns[turn.origin]
        return forest.fork(lanes[origin.lane], node=nodes[origin.number], train_prefix=False, episode=first)
    return forest.start(group, member, episode=first)
