"""An endpoint that is killed at each of its writes: `python killed_recording.py FOLDER`.

Agents do the steps of `STEPS`; the endpoint restarts after each commit. A process starts at the first step that is not
acknowledged, and is killed at a write: before it, after it, or with an incomplete record on disk. The next process
continues. This is repeated for every place of a write, each time in a fresh folder. If the place is in a commit, the
case is repeated with a second kill soon after. If it is in the first commit, it is also repeated with a trainer that
does not retry while the agents continue.

Prints a line of JSON for each case: `places`, the places of the kills, and `wrong`, the errors in the outcome.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import shutil
import sys
import traceback
import uuid
from pathlib import Path

import polars as pl
import tool_agents
import torch  # noqa: F401 -- once, before there are children: tokenizers import it when they decode
from tool_agents import client, decoded, endpoint

from agentrl_core import Store
from agentrl_core.agents import export as traces
from agentrl_core.data.store import RolloutLog

tool_agents.tokenizer = functools.cache(tool_agents.tokenizer)  # the same for all processes

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
    ("commit", ""),  # b stays, and the void session is left out
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
    """Count the places of writes, and end the process at one of them."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count, self.commits = folder, at, 0, False

    def place(self, name: str) -> None:
        self.count += 1
        if self.count == self.at:
            (self.folder / "place").write_text(name)
            os._exit(KILLED)

    def watch(self) -> None:
        append = RolloutLog.append

        def appended(log: RolloutLog, name: bytes, payload: bytes) -> None:
            what = name.decode().partition(" ")[2]
            kind = f"copied {what}" if self.commits else what
            self.commits |= what == "begin"
            self.place(f"before record {kind}")
            append(log, name, payload)
            if self.count + 1 == self.at:
                path = self.folder / "run" / "live" / f"{log.iteration}.records"
                os.truncate(path, path.stat().st_size - 1)
            self.place(f"in record {kind}")
            self.place(f"after record {kind}")

        RolloutLog.append = appended
        for owner, name in ((RolloutLog, "sync"), (Store, "append"), (Store, "flush"), (Store, "close_iteration")):
            setattr(owner, name, self.around(getattr(owner, name), f"{owner.__name__}.{name}"))

    def around(self, write, name):
        def watched(*arguments, **options):
            self.place(f"before {name}")
            result = write(*arguments, **options)
            self.commits &= not name.endswith("close_iteration")
            self.place(f"after {name}")
            return result

        return watched


def acknowledged(folder: Path) -> dict[int, str]:
    """The acknowledged steps: the answer of each."""
    path = folder / "done.jsonl"
    return dict(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else {}


async def act(served, number: int, answers: dict[int, str]) -> str:
    """Do a step that may have been done before the process died; return its answer."""
    what, name = STEPS[number]
    async with client(served) as agent:
        if what == "open":
            reply = await agent.post("/sessions", json={"session_id": name, "task_id": f"task of {name}"})
            assert reply.status_code == 200 or "exists already" in reply.text, reply.text
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
            # An outcome that no request causes: a record of a version that did not look at it.
            end = {"reward": 1.0, "status": "finished", "info": "solved"}
            served._recorder._write(name, "close", end)
            served._recorder.sessions[name].closed = end
    return ""


def live(folder: Path, at: int, *, again: bool = True) -> None:
    """Do the remaining steps, and end at a place; a killed first commit is repeated or not."""
    Writes(folder, at).watch()
    answers = acknowledged(folder)
    if not again and (folder / "place").exists() and len(answers) == STEPS.index(("commit", "")):
        acknowledge(folder, answers, "")
    while len(answers) < len(STEPS):
        with Store.open(folder / "run", sync="never") as store:
            served = endpoint(lambda _: uuid.uuid4().hex[:8], store=store)
            for number in range(len(answers), len(STEPS)):
                acknowledge(folder, answers, asyncio.run(act(served, number, answers)))
                if STEPS[number][0] == "commit":
                    break


def acknowledge(folder: Path, answers: dict[int, str], answer: str) -> None:
    """Record the answer to the next step."""
    with (folder / "done.jsonl").open("a") as log:
        log.write(json.dumps([len(answers), answer]) + "\n")
    answers[len(answers)] = answer


def wrong(folder: Path) -> list[str]:
    """Return the errors in the outcome after all steps were acknowledged."""
    answers, actual_texts = acknowledged(folder), []
    with Store.open(folder / "run") as store:
        served = endpoint([], store=store)
        for iteration in range(store.iteration):
            batch = store.batch(iteration)
            turns = pl.read_ipc_stream(io.BytesIO(traces.arrow(batch)))
            trajectories = pl.DataFrame(batch.trajectories)
            for row, info in trajectories.select("trajectory_id", "info").iter_rows():
                texts = [decoded(served, tokens) for tokens in turns.filter(trajectory_id=row)["tokens"]]
                actual_texts.append((json.loads(info)["session"], [text.removesuffix("<|im_end|>") for text in texts]))
        expected = [(name, [answers[step] for step in steps]) for name, steps in SESSIONS]
        aside = [
            (session["session_id"], [entry["response"]["message"]["content"] for entry in session["entries"]])
            for session in served.excluded()
        ]
        metrics = pl.DataFrame(store.metrics).filter(name="sessions.excluded")["value"].to_list()
        checks = {
            "stored": (sorted(actual_texts), sorted(expected)),
            "left out": (aside, [(SPOILED[0], [answers[step] for step in SPOILED[1]])]),
            "open": (list(served._recorder.sessions), []),
            "iterations": (store.iteration in (2, 3), True),
            "metrics": (metrics, [1.0] * store.iteration),
            "verify": (store.verify(), []),
        }
    return [f"{name}: {actual}, expected {right}" for name, (actual, right) in checks.items() if actual != right]


def forked(work) -> int:
    """Run in a child process; return its exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = DONE
        except Exception:  # noqa: BLE001 -- the parent hears of it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(folder: Path, kills: list[int], *, again: bool = True) -> list[str]:
    """Kill one process after the other, then let the last one finish; return the places of the kills."""
    folder.mkdir()
    places = []
    for at in kills:
        status = forked(lambda at=at: live(folder, at, again=again))
        assert status in (KILLED, DONE), status
        if status == KILLED:
            places.append((folder / "place").read_text())
    assert forked(lambda: live(folder, 0, again=again)) == DONE

    def check() -> None:
        sys.stdout.write(json.dumps({"places": places, "wrong": wrong(folder)}) + "\n")

    assert forked(check) == DONE
    shutil.rmtree(folder)
    return places


def main(root: Path) -> None:
    at, commits, in_commits = 0, 0, ("begin", "sync", "append", "flush", "close_iteration")
    while True:
        at += 1
        places = run(root / str(at), [at])
        if not places:
            return
        if places[0].endswith(in_commits):
            run(root / f"{at} twice", [at, 1 + at % 12])
        if commits == 0 and (places[0].endswith(in_commits) or "copied" in places[0]):
            run(root / f"{at} not again", [at], again=False)
        commits += places[0] == "after Store.close_iteration"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
