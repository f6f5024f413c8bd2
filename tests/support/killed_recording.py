"""An endpoint that is killed at each of its writes: `python killed_recording.py FOLDER FIRST [SECOND]`.

Agents do the steps of `STEPS`, each in an endpoint of its own on the same store. A process does them from the first that
is not acknowledged, and is killed at a write: before it, after it, or with half of a record on the disk. The next process
goes on. For every place of a write in the steps from FIRST on, all is done in a fresh folder. With SECOND, each place is
one of step FIRST, and the next process is killed too, at each of its first SECOND places.

Prints a line of JSON for each run: `places`, those at which a process was killed, and `wrong`, what was not as it should
be in the end.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sys
import uuid
from pathlib import Path

import polars as pl
from tool_agents import client, endpoint, told

from agentrl_core import Store
from agentrl_core.agents import traces
from agentrl_core.data.store import Journal

KILLED, DONE = 9, 0
STEPS = (
    ("open", "a"),
    ("talk", "a"),
    ("talk", "b"),
    ("reward", "a"),
    ("talk", "a"),
    ("talk", "spoiled"),
    ("spoil", "spoiled"),
    ("close", "a"),
    ("commit", ""),  # b stays, and what is spoiled is left out
    ("talk", "b"),
    ("close", "b"),
    ("talk", "c"),
    ("reward", "c"),
    ("commit", ""),  # c stays
    ("talk", "a"),  # new sessions with the names of old ones
    ("talk", "b"),
    ("close", "a"),
    ("close", "b"),
    ("close", "c"),
    ("commit", ""),
)
SESSIONS = [("a", [1, 4]), ("b", [2, 9]), ("c", [11]), ("a", [14]), ("b", [15])]
"""Sessions in the order of their batches, and the steps of their turns."""
SPOILED = ("spoiled", [5])


class Writes:
    """Counts the places of writes, and ends the process at one of them."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count = folder, at, 0
        self.names: list[str] = []

    def place(self, name: str) -> None:
        self.count += 1
        self.names.append(name)
        if self.count == self.at:
            (self.folder / "place").write_text(name)
            os._exit(KILLED)

    def watch(self) -> None:
        append = Journal.append

        def appended(journal: Journal, name: bytes, payload: bytes) -> None:
            kind = name.decode().partition(" ")[2]
            self.place(f"before record {kind}")
            append(journal, name, payload)
            if self.count + 1 == self.at:
                path = self.folder / "run" / "live" / f"{journal.iteration}.records"
                os.truncate(path, path.stat().st_size - 1)
            self.place(f"in record {kind}")
            self.place(f"after record {kind}")

        Journal.append = appended
        for owner, name in ((Journal, "sync"), (Store, "append"), (Store, "flush"), (Store, "close_iteration")):
            setattr(owner, name, self.around(getattr(owner, name), f"{owner.__name__}.{name}"))

    def around(self, write, name):
        def written(*given, **options):
            self.place(f"before {name}")
            found = write(*given, **options)
            self.place(f"after {name}")
            return found

        return written


def done(folder: Path) -> dict[int, str]:
    """What was acknowledged: the answer of each step."""
    path = folder / "done.jsonl"
    return dict(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else {}


async def act(served, number: int, answers: dict[int, str]) -> str:
    """Do a step, as one who does not know whether it was done before the process died; returns the answer to it."""
    what, name = STEPS[number]
    async with client(served) as agent:
        if what == "open":
            reply = await agent.post("/sessions", json={"session_id": name, "task_id": f"task of {name}"})
            assert reply.status_code == 200 or "there is a session" in reply.text, reply.text
        elif what == "talk":
            messages = []
            for session, steps in (*SESSIONS, SPOILED):
                if session == name and number in steps:
                    for step in steps[: steps.index(number)]:
                        messages.append({"role": "user", "content": f"step {step}"})
                        messages.append({"role": "assistant", "content": answers[step]})
            body = {"messages": [*messages, {"role": "user", "content": f"step {number}"}]}
            again = {"x-stainless-retry-count": "1"}
            reply = await agent.post(f"/s/{name}/v1/chat/completions", json=body, headers=again)
            assert reply.status_code == 200, reply.text
            return reply.json()["choices"][0]["message"]["content"]
        elif what == "reward":
            reply = await agent.post(f"/sessions/{name}/reward", json={"reward": 0.5, "turn": 0})
            assert reply.status_code == 200, reply.text
        elif what == "close":
            reply = await agent.post(f"/sessions/{name}/close", json={"reward": 1.0})
            assert reply.status_code == 200 or "is closed already" in reply.text, reply.text
        elif what == "commit":
            reply = await agent.post("/iterations")
            assert reply.status_code in (200, 204), reply.text
        else:
            # What no request brings about: a record of a version that did not look at it.
            served._recorder._write(name, "close", {"reward": 1.0, "status": "finished", "info": "solved"})
    return ""


def live(folder: Path, at: int) -> Writes:
    """Do what is not acknowledged yet; the process ends at a place."""
    writes = Writes(folder, at)
    writes.watch()
    answers = done(folder)
    for number in range(len(answers), len(STEPS)):
        with Store.open(folder / "run") as store:
            served = endpoint(lambda _: uuid.uuid4().hex[:8], store=store)
            answers[number] = asyncio.run(act(served, number, answers))
        with (folder / "done.jsonl").open("a") as log:
            log.write(json.dumps([number, answers[number]]) + "\n")
    return writes


def wrong(folder: Path) -> list[str]:
    """What is not as it should be when all steps were acknowledged."""
    answers, found = done(folder), []
    with Store.open(folder / "run") as store:
        served = endpoint([], store=store)
        for iteration in range(store.iteration):
            batch = store.batch(iteration)
            turns = pl.read_ipc_stream(io.BytesIO(traces.arrow(batch)))
            for row, info in zip(*(pl.DataFrame(batch.trajectories)[name] for name in ("trajectory_id", "info")), strict=True):
                texts = [told(served, tokens) for tokens in turns.filter(trajectory_id=row)["tokens"]]
                found.append((json.loads(info)["session"], [text.removesuffix("<|im_end|>") for text in texts]))
        expected = [(name, [answers[step] for step in steps]) for name, steps in SESSIONS]
        aside = [
            (one["session_id"], [entry["response"]["message"]["content"] for entry in one["entries"]])
            for one in served.excluded()
        ]
        metrics = pl.DataFrame(store.metrics).filter(name="sessions.excluded")["value"].to_list()
        checks = {
            "stored": (found, expected),
            "left out": (aside, [(SPOILED[0], [answers[step] for step in SPOILED[1]])]),
            "open": (list(served._recorder.sessions), []),
            "iterations": (store.iteration, 3),
            "metrics": (metrics, [1.0, 1.0, 1.0]),
            "verify": (store.verify(), []),
        }
    return [f"{name}: {seen}, expected {right}" for name, (seen, right) in checks.items() if seen != right]


def forked(work) -> int:
    """Work in a child; returns its exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = DONE
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(folder: Path, before: Path, kills: list[int]) -> bool:
    """Kill one process after the other, then let the last end; returns whether all were killed."""
    shutil.copytree(before, folder)
    places = []
    for at in kills:
        status = forked(lambda at=at: live(folder, at))
        if status == DONE:
            break
        assert status == KILLED, status
        places.append((folder / "place").read_text())
    else:
        assert forked(lambda: live(folder, 0)) == DONE

    def check() -> None:
        sys.stdout.write(json.dumps({"places": places, "wrong": wrong(folder)}) + "\n")

    assert forked(check) == DONE
    shutil.rmtree(folder)
    return len(places) == len(kills)


def main(root: Path, first: int, second: int) -> None:
    before = root / "before"
    before.mkdir()

    def begin() -> None:
        global STEPS
        STEPS = STEPS[:first]
        live(before, 0)

    assert forked(begin) == DONE
    at = 1
    while run(root / str(at), before, [at]):
        at += 1
    for one in range(1, second + 1):
        for other in range(1, second + 1):
            run(root / f"{one} {other}", before, [one, other])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
