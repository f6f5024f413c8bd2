"""An endpoint that is killed again and again: no answer that an agent heard is lost, and none is trained twice."""

from __future__ import annotations

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
TURNS, KILLS = 200, 6


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(folder: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "serving.py"), str(folder), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=SUPPORT)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_kills_lose_no_answer_and_double_none(tmp_path) -> None:
    port, rng = free_port(), random.Random(0)
    heard: list[str] = []
    done = threading.Event()

    def agent() -> None:
        """Asks turn by turn, and asks again whenever the server is gone, as the clients of OpenAI and Anthropic do."""
        messages = [{"role": "user", "content": "begin"}]
        with httpx.Client(timeout=60) as client:
            for _ in range(TURNS):
                tries = 0
                while True:
                    try:
                        reply = client.post(
                            f"http://127.0.0.1:{port}/s/one/v1/chat/completions",
                            json={"messages": messages},
                            headers={"x-stainless-retry-count": str(tries)},
                        )
                        break
                    except httpx.TransportError:
                        tries += 1
                        time.sleep(0.01)
                answer = reply.json()["choices"][0]["message"]
                heard.append(answer["content"])
                messages += [answer, {"role": "user", "content": "go on"}]
        done.set()

    process = start(tmp_path, port)
    talker = threading.Thread(target=agent)
    talker.start()
    kills = 0
    while not done.is_set():
        heard_before = len(heard)
        while not done.is_set() and len(heard) < heard_before + TURNS // (KILLS + 1):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.01))
        if done.is_set() or kills == KILLS:
            done.wait()
            break
        kill(process)
        kills += 1
        process = start(tmp_path, port)
    talker.join()
    kill(process)
    assert kills >= KILLS // 2
    with Store.open(tmp_path) as store:
        served = endpoint([], store=store)
        turns = served._recorder.sessions["one"].turns
        assert [turn.message["content"] for turn in turns] == heard
        served.close("one", reward=1.0)
        batch = served.commit()
        assert batch.column("token", "token").size == sum(len(turn.output) for turn in turns)
        assert store.verify() == []
