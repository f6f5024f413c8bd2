"""An endpoint that is killed repeatedly: no delivered answer is lost, and none is trained twice."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from tool_agents import endpoint

from agentrl_core import Store

SUPPORT = Path(__file__).parents[1] / "support"
TURNS, BETWEEN = 210, 30
SECONDS = 600.0
"""Timeout of a hang, long enough for a slow machine."""


def start(folder: Path, listener: socket.socket) -> subprocess.Popen[str]:
    number = listener.fileno()
    command = [sys.executable, str(SUPPORT / "serving.py"), str(folder), str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=SUPPORT, pass_fds=[number])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_kills_lose_no_answer_and_double_none(tmp_path) -> None:
    rng = random.Random(0)
    answers: list[str] = []
    due, killed = threading.Semaphore(0), threading.Semaphore(0)

    def agent(url: str) -> None:
        """Send requests turn by turn, and retry while the server is gone, like the clients of OpenAI and Anthropic."""
        messages = [{"role": "user", "content": "begin"}]
        with httpx.Client(timeout=60) as client:
            for turn in range(TURNS):
                if turn % BETWEEN == 0:
                    # The server is killed while the next turns are requested, and was killed before the later ones.
                    assert turn == 0 or killed.acquire(timeout=SECONDS)
                    due.release()
                tries = 0
                while True:
                    try:
                        reply = client.post(
                            url, json={"messages": messages}, headers={"x-stainless-retry-count": str(tries)}
                        )
                        break
                    except httpx.TransportError:
                        tries += 1
                        time.sleep(0.01)
                answer = reply.json()["choices"][0]["message"]
                answers.append(answer["content"])
                messages += [answer, {"role": "user", "content": "go on"}]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = start(tmp_path, listener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/s/one/v1/chat/completions"
        talker = threading.Thread(target=agent, args=(url,))
        talker.start()
        for _ in range(TURNS // BETWEEN):
            assert due.acquire(timeout=SECONDS)
            time.sleep(rng.uniform(0, 0.05))
            kill(process)
            process = start(tmp_path, listener)
            killed.release()
        talker.join()
        kill(process)
    assert len(answers) == TURNS
    with Store.open(tmp_path) as store:
        served = endpoint([], store=store)
        turns = served._recorder.sessions["one"].turns
        assert [turn.message["content"] for turn in turns] == answers
        served.close("one", reward=1.0)
        batch = served.commit()
        assert batch.column("token", "token").size == sum(len(turn.output) for turn in turns)
        assert store.verify() == []


@pytest.mark.slow
@pytest.mark.full
def test_a_kill_at_any_write_loses_no_turn_and_doubles_none(tmp_path) -> None:
    command = [sys.executable, str(SUPPORT / "killed_recording.py"), str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=SUPPORT, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    runs = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [run for run in runs if run["wrong"]] == []
    records = ("open", "turn", "reward", "close", "exclude")
    names = [*records, "begin", *(f"copied {record}" for record in records)]
    reached = {place for run in runs for place in run["places"]}
    assert reached == {
        *(f"{when} record {record}" for when in ("before", "in", "after") for record in names),
        *(
            f"{when} {write}"
            for when in ("before", "after")
            for write in ("RolloutLog.sync", "Store.append", "Store.flush", "Store.close_iteration")
        ),
    }
    assert any(len(run["places"]) == 2 for run in runs), "killed again while it goes on"


def test_a_commit_beside_requests_loses_none(tmp_path) -> None:
    # The training loop commits from its own thread, while the endpoint's thread records.
    answers: list[str] = []
    with Store.open(tmp_path, sync="never") as store:
        served = endpoint(lambda request: f"{request.seed}", store=store)

        def agent(url: str) -> None:
            messages = [{"role": "user", "content": "begin"}]
            for _ in range(60):
                reply = httpx.post(f"{url}/s/one/v1/chat/completions", json={"messages": messages}, timeout=SECONDS)
                answer = reply.json()["choices"][0]["message"]
                answers.append(answer["content"])
                messages += [answer, {"role": "user", "content": "go on"}]

        with served.running() as url:
            talker = threading.Thread(target=agent, args=(url,))
            talker.start()
            while talker.is_alive():
                name = served.open()["session_id"]
                served.close(name)
                assert served.commit() is not None
            talker.join()
        assert store.iteration > 1
    with Store.open(tmp_path) as store:
        turns = endpoint([], store=store)._recorder.sessions["one"].turns
        assert [turn.message["content"] for turn in turns] == answers
        assert len(answers) == 60
