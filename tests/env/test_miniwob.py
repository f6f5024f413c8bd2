"""MiniWoB++ in a real Chromium."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from browser import program
from PIL import Image as Picture

from agentrl_core import env
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import AgentRLError, InvalidInputError

pytest.importorskip("miniwob")
pytest.importorskip("selenium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        program() is None or shutil.which("chromedriver") is None,
        reason="MiniWoB needs Chromium and chromedriver: make browser",
    ),
]


@pytest.fixture(scope="module")
def world():
    """Run two browsers, which the tests share."""
    world = env.MiniWoB(["click-test-2", "enter-text"], observation="both", max_turns=4, held_out=6)
    for episode in [world.reset(task, 0) for task in world.tasks(2)]:
        episode.close()
    yield world
    world.close()
    world.close()


def parts(episode):
    text, image = episode.observation["content"]
    return text, image


def descendants(process):
    """Return processes that a process started, directly or indirectly."""
    processes, waiting = set(), [process]
    while waiting:
        parent = waiting.pop()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            number = int(stat.parent.name)
            if int(fields[1]) == parent and number not in processes:
                processes.add(number)
                waiting.append(number)
    return processes


def alive(processes):
    states = {}
    for process in processes:
        try:
            states[process] = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
    return {process for process, state in states.items() if state != "Z"}


def have_ended(processes, seconds=60.0):
    end = time.monotonic() + seconds
    while alive(processes) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(processes)


def test_the_protocol_is_kept():
    world = env.MiniWoB(["click-test-2", "enter-text"], observation="both", max_turns=4)
    actions = ["click(80, 120)", "jump", 'type("x")', "click(99)", "scroll(80, 120, 10)"]
    report = env.check(world, tasks=2, actions=actions)
    world.close()
    assert (report.tasks, report.hints) == (2, ())


def test_equal_seeds_give_equal_pages(world):
    first, _, second = world.tasks(3)
    pages = []
    for task in (first, second, first):
        episode = world.reset(task, 0)
        pages.append((*parts(episode), episode.state_key()))
        if len(pages) == 1:
            episode.step("click(4)")  # the page is loaded again after it
        episode.close()
    other = env.MiniWoB("click-test-2", observation="both", max_turns=4)
    episode = other.reset(first, 5)
    pages.append((*parts(episode), episode.state_key()))
    other.close()
    assert pages[0] == pages[2] == pages[3], "in this browser, in another one, and with another seed of the episode"
    assert pages[0][0] != pages[1][0]
    assert pages[0][1] != pages[1][1]
    assert len(world._browsers) == 2, "episodes reuse the browsers"
    held_out = world.tasks(6, split="held_out")
    assert not {str(task.payload) for task in held_out} & {str(task.payload) for task in world.tasks(50)}


def test_a_click_on_the_target_wins(world):
    (task,) = world.tasks(1)
    episode = world.reset(task, 0)
    text, image = parts(episode)
    assert text.startswith("Click button ONE.\nActions: click(x, y)")
    pixels = np.asarray(Picture.open(io.BytesIO(image.content)).convert("RGB"))
    assert pixels.shape == (210, 160, 3)
    assert (pixels[:50] == (255, 255, 0)).all(-1).mean() > 0.8, "the instruction lies on yellow"
    refused = episode.step("press ONE")
    assert (refused.flags, refused.reward) == (StepFlag.FORMAT_ERROR, 0.0)
    assert refused.observation.startswith("No such action. Actions: click(x, y)")
    for action in ("click(160, 3)", 'key("Hyper+a")'):
        assert episode.step(action).flags == StepFlag.TOOL_ERROR
    target = {name: value for name, value in refused.facts.items() if name.startswith("target")}
    left, top, right, bottom = (int(target[f"target_{edge}"]) for edge in ("x1", "y1", "x2", "y2"))
    assert f'button #subbtn "ONE" ({left}, {top}, {right}, {bottom})' in text
    assert pixels[top + 2 : bottom - 2, left + 2 : right - 2].mean() < 250, "there is the button"
    won = episode.step(f"I see it. <action>click({left}, {top}, {right}, {bottom})</action>")
    assert (won.reward, won.success, won.terminated, won.observation) == (1.0, True, True, None)
    assert (won.facts["matched"], won.facts["click_x"]) == (1.0, (left + right) / 2)
    with pytest.raises(InvalidInputError, match="the episode is over"):
        episode.step("click(4)")
    episode.close()
    lost = world.reset(task, 0)
    result = lost.step("click(5)")
    assert (result.reward, result.success, result.facts["matched"]) == (-1.0, False, 0.0)
    lost.close()


def test_text_is_typed(world):
    _, task = world.tasks(2)
    episode = world.reset(task, 0)
    text, before = parts(episode)
    word = text.split('"')[1]
    field = next(line for line in text.splitlines() if "input_text" in line)
    number = field[1 : field.index("]")]
    result = episode.step(f"click({number})")
    assert "focused" in result.observation["content"][0]
    state = episode.state_key()
    result = episode.step(f'type("{word}")')
    typed, after = result.observation["content"]
    assert f'value "{word}"' in typed
    assert before != after
    assert episode.state_key() != state
    button = next(line for line in typed.splitlines() if "button" in line)
    assert episode.step(f"click({button[1 : button.index(']')]})").success
    episode.close()


def test_the_last_turn_truncates(world):
    episode = world.reset(world.tasks(1)[0], 0)
    results = [episode.step("click(2, 205)") for _ in range(4)]
    assert [result.truncated for result in results] == [False, False, False, True]
    assert (results[-1].success, results[-1].reward, results[-1].observation) == (False, 0.0, None)
    episode.close()


def test_a_browser_that_dies_costs_its_episode_alone():
    world = env.MiniWoB("click-test-2", observation="dom")
    (task,) = world.tasks(1)
    first, second = world.reset(task, 0), world.reset(task, 0)
    for process in descendants(first._page.browser._guard.pid):
        os.kill(process, signal.SIGKILL)
    with pytest.raises(AgentRLError, match="the browser failed or took too long"):
        first.step("click(4)")
    assert second.step("click(2, 205)").flags == 0
    first.close()
    assert second.step("click(4)").success
    second.close()
    assert world._browsers._idle == world._browsers._all == [second._page.browser]
    for process in descendants(second._page.browser._guard.pid):
        os.kill(process, signal.SIGKILL)
    again = world.reset(task, 0)
    assert again.step("click(4)").success, "a browser that died between episodes costs none"
    again.close()
    world.close()


def test_a_page_that_hangs_is_ended():
    world = env.MiniWoB("click-test-2", observation="dom")
    episode = world.reset(world.tasks(1)[0], 0)
    browser = episode._page.browser
    processes = {browser._guard.pid, *descendants(browser._guard.pid)}
    assert len(processes) > 4
    browser._driver.set_script_timeout(2)
    browser.run("setTimeout(() => { while (true) {} }, 500);")
    time.sleep(1)
    with pytest.raises(AgentRLError, match="took too long"):
        episode.step("click(4)")
    assert have_ended(processes)
    episode.close()
    assert not world._browsers
    world.close()


HOLDER = """
import sys, time
from agentrl_core import env
world = env.MiniWoB("click-test-2")
episode = world.reset(world.tasks(1)[0], 0)
print(episode._page.browser._guard.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_no_child_processes_or_temporary_folder():
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    guard = int(holder.stdout.readline())
    processes = {guard, *descendants(guard)}
    folder = next(
        Path(word.removeprefix(b"TMPDIR=").decode())
        for process in descendants(guard)
        for word in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        if word.startswith(b"TMPDIR=")
    )
    assert folder.is_dir()
    assert len(processes) > 4
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert have_ended(processes)
    assert not folder.exists()


def test_a_copy_does_not_share_browsers(world):
    copy = pickle.loads(pickle.dumps(world))
    assert copy.tasks(3) == world.tasks(3)
    assert not copy._browsers
    copy.close()


def test_wrong_arguments():
    with pytest.raises(InvalidInputError, match="tasks has 'click-nothing', which does not exist; did you mean click-"):
        env.MiniWoB("click-nothing")
    with pytest.raises(InvalidInputError, match="tasks is empty"):
        env.MiniWoB([])
    with pytest.raises(InvalidInputError, match="observation is 'html'"):
        env.MiniWoB("click-test", observation="html")
    with pytest.raises(InvalidInputError, match="seconds is 0"):
        env.MiniWoB("click-test", seconds=0)
    with pytest.raises(InvalidInputError, match="'x' is not of this MiniWoB"):
        env.MiniWoB("click-test").reset(env.Task("x", "?", "x", None), 0)
