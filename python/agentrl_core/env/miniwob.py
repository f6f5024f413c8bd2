"""MiniWoB++: small tasks on web pages in a real browser, seen as screenshots or as text."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Literal, cast, get_args

from agentrl_core._util.near_names import near_names
from agentrl_core.data.table_codes import StepFlag
from agentrl_core.env.base import Content, ExtraColumn, Split, StepResult, Task, was_cut
from agentrl_core.env.browser import Browser
from agentrl_core.env.image import Image
from agentrl_core.env.page_elements import page_text, target_of
from agentrl_core.env.program_pool import ProgramPool
from agentrl_core.env.screen_action import LEGEND, ScreenAction, parse_action
from agentrl_core.env.screen_facts import SCREEN_FACTS, Box, ScreenFacts
from agentrl_core.env.text_game import SEEDS_PER_SPLIT, check_counts, checked_range, command_of, payload_of, seed_of
from agentrl_core.exceptions import AgentRLError, InvalidInputError, MissingDependencyError

Seen = Literal["screenshot", "dom", "both"]

WIDTH, HEIGHT = 160, 210
"""Pixels of the screen of a task."""

# The page's own limit is 10 s of wall time; the environment's is max_turns. Nothing moves or blinks by time.
_LOOK = """
return [core.getUtterance(), core.getDOMInfo(), WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, WOB_TASK_READY];
"""
_START = f"""
document.head.insertAdjacentHTML('beforeend',
  '<style>* {{ caret-color: transparent !important; ' +
  'transition: none !important; animation: none !important }}</style>');
if (window.jQuery) jQuery.fx.off = true;
core.EPISODE_MAX_TIME = 2147483647;
core.endEpisode(0);
Math.seedrandom(arguments[0]);
core.startEpisodeReal();
if (WOB_TASK_READY) Math.seedrandom(arguments[1]);
{_LOOK}
"""
_PLACE = """
const found = core.previousDOMInfo[arguments[0]];
if (found === undefined || !found.isConnected) return null;
const box = found.getBoundingClientRect();
return [box.left + box.width / 2, box.top + box.height / 2];
"""
_AWAY = (400, 300)
_READY_LOOKS = 50
_READY_SECONDS = 0.05
_LONGEST_FACT = 200
_KEYS = (
    "Backspace", "Tab", "Enter", "Escape", "Space", "Delete", "Home", "End", "PageUp", "PageDown",
    "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown",
)  # fmt: skip
_HELD = ("Control", "Shift", "Alt")


class MiniWoB:
    """Environment of the MiniWoB++ tasks (package `miniwob`) in a headless Chromium, with text actions.

    A task is a page and a seed: equal seeds give equal pages. The first observation has the instruction and the forms
    of an action; each one shows the page: a PNG of 160 x 210 pixels, its elements as text, or both.

    An action stands alone or in `<action>…</action>`:

    - `click(x, y)`, in pixels; `click(left, top, right, bottom)`: the centre of a box; `click(element)`, by the number
      in the text of the page;
    - `type("text")`, into the element with the focus; `key("Enter")`, also `key("Control+a")`;
    - `scroll(x, y, down)` or `scroll(element, down)`, by pixels.

    A text in none of these forms is answered with the forms and flagged `StepFlag.FORMAT_ERROR`. An action that is not
    possible on this page (no such element, a point outside) is answered with the reason and flagged
    `StepFlag.TOOL_ERROR`. Both cost a turn. The reward at the end is the page's own from -1 to 1, without its discount
    for time; success is a positive one. Pages have no limit of time.

    Facts: those of actions on a screen (`points`, `command`, `click_x`, `matched`, `box_x1`, `target_x1`,
    `image_width`, `reward.format`, ...). The target is the only element whose text the instruction names, otherwise the
    only button, link or field of the page; facts about it are missing if there is no such element.

    Each running episode has a browser (about 300 MB and a second to start), which later episodes reuse; limit them with
    `Collector(concurrency=)`. A browser that fails or does not respond in time is ended, its episode fails, and the
    next episode gets another one. Browsers end with this process, even if it is killed.

    Args:
        tasks: names of tasks, such as `click-test-2`; one or several, which alternate.
        observation: `screenshot`, `dom` (text), or `both`.
        max_turns: most actions in an episode.
        seed: seed of the tasks; two seeds share none.
        held_out: number of held-out tasks.
        seconds: time limit of one call of the browser.

    Raises:
        MissingDependencyError: miniwob, selenium, Chromium or its driver is not installed.
        InvalidInputError: an unknown task or observation, or an argument out of range.

    Example:
        >>> world = MiniWoB("click-test-2", observation="dom")              # doctest: +SKIP
        >>> episode = world.reset(world.tasks(1)[0], seed=0)                # doctest: +SKIP
        >>> episode.step('<action>click(4)</action>').success               # doctest: +SKIP
        True
        >>> episode.close(); world.close()                                  # doctest: +SKIP
    """

    runs: ClassVar = "thread"
    facts: ClassVar[Mapping[str, ExtraColumn]] = SCREEN_FACTS

    def __init__(
        self,
        tasks: str | Sequence[str],
        *,
        observation: Seen = "screenshot",
        max_turns: int = 10,
        seed: int = 0,
        held_out: int = 512,
        seconds: float = 30.0,
    ) -> None:
        check_counts("MiniWoB", max_turns=max_turns, seed=seed, held_out=held_out)
        self._pages = _pages()
        self._names = [tasks] if isinstance(tasks, str) else list(tasks)
        known = sorted(path.stem for path in self._pages.glob("*.html"))
        if unknown := [name for name in self._names if name not in known]:
            hint = near_names(str(unknown[0]), known, f"use one of: {', '.join(known)}")
            raise InvalidInputError(f"MiniWoB: tasks has {unknown[0]!r}, which does not exist; {hint}")
        if not self._names:
            raise InvalidInputError("MiniWoB: tasks is empty; give the name of a task, such as 'click-test-2'")
        if observation not in get_args(Seen):
            raise InvalidInputError(f"MiniWoB: observation is {observation!r}; give one of {', '.join(get_args(Seen))}")
        if not 1 <= seconds <= 3600:
            raise InvalidInputError(f"MiniWoB: seconds is {seconds!r}; give 1 to 3600")
        self._seen: Seen = observation
        self._max_turns = max_turns
        self._seed = seed
        self._held_out = held_out
        self._browsers = ProgramPool(partial(Browser, seconds), Browser.close, attrgetter("alive"))

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split: all names with their first seed, then with the second.

        Raises:
            InvalidInputError: the range is not in the split.
        """
        limit = self._held_out if split == "held_out" else SEEDS_PER_SPLIT
        tasks = []
        for number in checked_range(count, split, start, limit):
            name, place = self._names[number % len(self._names)], number // len(self._names)
            payload = {"task": name, "seed": seed_of(self._seed, split, place)}
            tasks.append(Task(f"{name}/{split}/{place}", f"MiniWoB++, task {name}, seed {place}.", name, payload))
        return tasks

    def reset(self, task: Task, seed: int) -> ScreenEpisode:
        """Start an episode of the task; `seed` determines the randomness of the page after its start.

        Raises:
            InvalidInputError: the task is not one of this environment's.
            AgentRLError: the browser does not start.
        """
        name, task_seed = payload_of(task, "MiniWoB", ["task", "seed"])
        address = (self._pages / f"{cast(str, name)}.html").as_uri()
        browser, reused = self._browsers.take()
        while True:
            try:
                page = MiniWoBPage(browser, address, f"{task_seed}", f"{task_seed} {seed}")
                return ScreenEpisode(self._browsers, page, self._seen, self._max_turns)
            except AgentRLError:
                self._browsers.give_back(browser)
                if not reused:
                    raise
            except BaseException:
                browser.close()
                self._browsers.give_back(browser)
                raise
            browser, reused = self._browsers.take()  # a browser that ended since its last episode is replaced

    def close(self) -> None:
        """End all browsers, including those of running episodes; a second call does nothing."""
        self._browsers.close()


class MiniWoBPage:
    """A task's page in a browser, with its contents after the last action."""

    def __init__(self, browser: Browser, address: str, seed: str, later_seed: str) -> None:
        self.browser = browser
        if browser.untouched is None:
            browser.move(*_AWAY)  # nothing lies under the mouse, as in a new browser
        browser.open(address)
        self.look(_START, seed, later_seed)
        for _ in range(_READY_LOOKS):
            if self._ready:
                break
            time.sleep(_READY_SECONDS)
            self.look("if (WOB_TASK_READY) Math.seedrandom(arguments[0]);" + _LOOK, later_seed)

    def look(self, script: str = _LOOK, *arguments: str) -> None:
        """Read instruction, elements, reward and end from the page."""
        self.instruction, self.elements, self.done, reward, self._ready = self.browser.run(script, *arguments)
        self.instruction = str(
            self.instruction["utterance"] if isinstance(self.instruction, dict) else self.instruction
        )
        self.reward = float(reward) if self.done else 0.0

    def screenshot(self) -> Image:
        """Return a screenshot of the page as an image."""
        return Image(self.browser.screenshot(WIDTH, HEIGHT))

    def state(self) -> bytes:
        """Return a hash of the instruction and of all elements."""
        text = json.dumps([self.instruction, self.elements], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

    def act(self, action: ScreenAction) -> tuple[Box | None, str]:
        """Perform an action; return the clicked box, and why the action is not possible (empty if it was performed)."""
        if action.kind == "type":
            self.browser.press(action.text)
        elif action.kind == "key":
            *modifiers, key = action.text.split("+") if len(action.text) > 1 else [action.text]
            if (key not in _KEYS and len(key) != 1) or not set(modifiers) <= set(_HELD):
                return None, f"There is no key {action.text[:40]!r}. Keys: a character, {', '.join(_KEYS)}."
            self.browser.press(_key(key), tuple(map(_key, modifiers)))
        else:
            numbers = action.numbers if action.kind == "click" else action.numbers[:-1]
            box = self._box(numbers)
            if box is None:
                return None, f"There is no element {numbers[0]:g} on the page."
            x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
            if not (0 <= x < WIDTH and 0 <= y < HEIGHT):
                return None, f"The point ({x:g}, {y:g}) is outside of the screen, which has {WIDTH} x {HEIGHT} pixels."
            if action.kind == "scroll":
                self.browser.scroll(x, y, action.numbers[-1])
                box = None
            else:
                self.browser.click(x, y)
            self.look()
            return box, ""
        self.look()
        return None, ""

    def _box(self, numbers: tuple[float, ...]) -> Box | None:
        if len(numbers) == 1:
            place = self.browser.run(_PLACE, numbers[0])
            return None if place is None else (place[0], place[1], place[0], place[1])
        return (numbers[0], numbers[1], numbers[-2], numbers[-1])


class ScreenEpisode:
    """Episode of a MiniWoB++ task: from the start of the task in a browser to its end."""

    def __init__(self, browsers: ProgramPool[Browser], page: MiniWoBPage, seen: Seen, max_turns: int) -> None:
        self._browsers = browsers
        self._page = page
        self._seen = seen
        self._turns_left = max_turns
        self._over = False
        self._closed = False
        self._busy = threading.Lock()
        self._instruction = page.instruction
        self._facts = ScreenFacts(WIDTH, HEIGHT, target_of(page.instruction, page.elements))
        self.observation = self._content(f"{page.instruction}\nActions: {LEGEND}")

    def step(self, action: str) -> StepResult:
        """Apply one action, and return the result.

        Raises:
            InvalidInputError: the episode is over.
            AgentRLError: the browser failed.
        """
        with self._busy:
            if self._over:
                raise InvalidInputError("step: the episode is over; reset its task for a new one")
            self._turns_left -= 1
            page, parsed = self._page, parse_action(action)
            box, refused = (None, f"No such action. Actions: {LEGEND}") if parsed is None else page.act(parsed)
            truncated = not page.done and self._turns_left == 0
            self._over = page.done or truncated
            observation: Content | None = None
            if not self._over:
                observation = refused or self._content(self._news())
            flags = StepFlag.FORMAT_ERROR if parsed is None else StepFlag.TOOL_ERROR if refused else 0
            facts = self._facts.of(parsed, box, cut=was_cut(action))
            return StepResult(
                observation=observation,
                reward=page.reward,
                terminated=page.done,
                truncated=truncated,
                flags=flags,
                success=page.reward > 0 if self._over else None,
                facts={"points": page.reward, "command": command_of(action)[:_LONGEST_FACT], **facts},
            )

    def state_key(self) -> bytes:
        """Return a hash of the page."""
        return self._page.state()

    def close(self) -> None:
        """Return the browser to the pool, or end it if an action is still running; a second call does nothing."""
        if self._closed:
            return
        self._closed = self._over = True
        if not self._busy.acquire(blocking=False):
            self._page.browser.close()
        else:
            self._busy.release()
        self._browsers.give_back(self._page.browser)

    def _news(self) -> str:
        before, self._instruction = self._instruction, self._page.instruction
        return "The page now:" if before == self._instruction else f"{self._instruction}\nThe page now:"

    def _content(self, words: str) -> Content:
        text = words if self._seen == "screenshot" else f"{words}\n{page_text(self._page.elements)}"
        if self._seen == "dom":
            return text
        return {"role": "user", "content": [text, self._page.screenshot()]}


def _key(name: str) -> str:
    from selenium.webdriver.common.keys import Keys

    names = {"Backspace": "BACK_SPACE", "PageUp": "PAGE_UP", "PageDown": "PAGE_DOWN"}
    if len(name) == 1:
        return name
    return str(getattr(Keys, names.get(name, name.upper().replace("ARROW", "ARROW_"))))


def _pages() -> Path:
    try:
        import miniwob
    except ImportError as error:
        raise MissingDependencyError(
            "MiniWoB needs the package miniwob: pip install 'agentrl-core[miniwob]'"
        ) from error
    return Path(miniwob.__file__).parent / "html" / "miniwob"
