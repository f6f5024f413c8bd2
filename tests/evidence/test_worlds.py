"""Worlds of `bench/evidence`: they follow the protocol, can be solved, and use words that the tokenizer has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import babyai
import clicks
import numpy as np
import pytest
import textworld_coin
import tiny_model
import torch
import warm_start
from chain import NUMBERS, Calls, worked_out
from largest import Numbers
from PIL import Image as Picture
from quest import _EXITS, _FAR, MOVES, ROOMS
from two_hop import TwoHop
from worlds import WORLDS, World

from agentrl_core import engine, env

LONGEST = 24
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def solved(environment: Any, task: env.Task) -> tuple[bool, int]:
    """Return whether the best actions solve a task, and their number."""
    episode = environment.reset(task, 0)
    for turn in range(LONGEST):
        result = episode.step(episode.best())
        if result.observation is None:
            assert result.reward == float(result.success)
            return result.success, turn + 1
    raise AssertionError("the episode has no end")


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an empty folder for games of TextWorld, which take a second each to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textworld_coin, "GAMES", tmp_path_factory.mktemp("games"))
        yield textworld_coin.GAMES


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow) if name == "textworld" else name for name in sorted(WORLDS)]
)
def world(request: pytest.FixtureRequest, games: Path) -> World:
    """Return a world; of TextWorld with few games."""
    del games
    base = WORLDS[request.param]
    return replace(base, tasks=4, held_out=4) if base.name == "textworld" else base


def test_the_protocol_is_kept(world: World) -> None:
    environment, rng = world.make(), random.Random(0)
    episodes: list[Any] = [environment.reset(task, 0) for task in environment.tasks(4)]
    actions = ["what", *(episode.best() for episode in episodes), *(episode.slip(rng) for episode in episodes)]
    report = env.check(environment, tasks=4, actions=actions, steps=LONGEST)
    assert report.ended == report.tasks


def test_the_best_actions_solve_every_task(world: World) -> None:
    environment = world.make()
    for split in ("train", "held_out"):
        for task in environment.tasks(min(96, world.held_out), split=split):
            success, _ = solved(environment, task)
            assert success


def test_held_out_tasks_are_others(world: World) -> None:
    environment = world.make()
    train = {str(task.payload) for task in environment.tasks(world.tasks)}
    held_out = {str(task.payload) for task in environment.tasks(world.held_out, split="held_out")}
    assert len(held_out) == world.held_out
    assert not train & held_out


def test_more_tasks_than_there_are_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        world.make().tasks(10**6)


def test_every_word_has_a_token_and_episodes_fit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.pretrained:
        pytest.skip("its model has a tokenizer of its own")
    monkeypatch.setattr(warm_start, "TRACES", 200)
    _, tokenizer = world.build(world.make().words, 0)
    padding = engine.Chat(tokenizer).tokenizer.pad_token_id
    for slips in (world.slips, warm_start.CLEAN_SLIPS):
        for tokens, is_action, _ in warm_start.demonstrations(world, slips, 0, tokenizer):
            assert padding not in tokens
            assert len(tokens) <= min(world.context_tokens, tiny_model.LONGEST)
            longest = max(map(len, "".join("x" if each else " " for each in is_action).split()))
            assert longest <= world.turn_tokens


def test_slips_cost_success(world: World) -> None:
    environment, rng = world.make(), random.Random(0)
    won = []
    for task in random.Random(0).choices(environment.tasks(min(200, world.tasks)), k=200):
        episode: Any = environment.reset(task, 0)
        while True:
            result = episode.step(episode.slip(rng) if rng.random() < world.slips else episode.best())
            if result.observation is None:
                won.append(result.success)
                break
    assert 0.05 < sum(won) / len(won) < 0.9


def test_the_calculator_of_chains_is_the_arithmetic_of_python() -> None:
    assert worked_out(7, "minus", 9) == -2 % NUMBERS == 18
    assert worked_out(6, "times", 7) == 2
    episode = Calls(3, [("plus", 4), ("times", 10)])
    assert episode.observation == "start 3 first plus 4 second times 10 third answer next first"
    assert episode.step("3 plus 4").observation == "result 7 next second"
    assert episode.step("what").observation == "what next second"
    assert episode.step("7 times 10").observation == "result 10 next third"
    assert episode.step("answer 10").success


def test_doors_lead_both_ways_and_quests_have_their_length() -> None:
    assert len(ROOMS) == len(set(ROOMS)) == len(_EXITS)
    assert set(BACK) == set(MOVES)
    for room, exits in _EXITS.items():
        for name, other in exits.items():
            assert _EXITS[other][BACK[name]] == room
    environment = WORLDS["quest"].make()
    lengths = set()
    for task in environment.tasks(200):
        start, key, vault = task.payload["rooms"]  # type: ignore[call-overload, index]
        success, turns = solved(environment, task)
        assert success
        assert turns == _FAR[key][start] + _FAR[vault][key] + 2
        lengths.add(turns)
    assert lengths == set(range(5, 13))


def test_quests_come_back_to_the_same_state() -> None:
    environment = WORLDS["quest"].make()
    episode: Any = environment.reset(environment.tasks(1)[0], 0)
    first = episode.state_key()
    there, back = next((name, other) for name, other in BACK.items() if f" {name}" in episode.observation)
    assert not episode.step(there).flags
    assert episode.state_key() != first
    episode.step(back)
    assert episode.state_key() == first
    for impossible in ("go nowhere", "open", "take"):
        assert episode.step(impossible).flags == env.StepFlag.FORMAT_ERROR
        assert episode.state_key() == first


def test_every_search_finds_its_document_and_one_about_another() -> None:
    world = TwoHop()
    for (relation, person), other in world.known.items():
        reply = world.search(f"{relation} {person}").text
        assert f"{relation} of {person} is {other}" in reply
        assert reply.count("\n") == 1


@pytest.mark.slow
def test_answers_that_are_kept_are_those_of_the_game(games: Path) -> None:
    path, known = textworld_coin.game_of(0), {}  # type: ignore[var-annotated]
    assert path.parent == games
    plain = env.TextWorld(files=path, folder=games, show_commands=True)
    rng = random.Random(0)
    for _ in range(6):
        repeated, game = textworld_coin.Repeated(path, known), plain.reset(plain.tasks(1)[0], 0)
        assert repeated.observation == game.observation
        for _ in range(4):
            assert repeated.state_key() == game.state_key()
            listed = str(game.observation).rpartition("Commands: ")[2].split("; ")
            command = rng.choice([*listed[:2], "fly"])
            answer = game.step(command)
            assert repeated.step(command) == answer
            if answer.observation is None:
                break
        repeated.close()
        game.close()
    assert len(known) < 1 + 6 * 4, "some are kept"


def test_the_texts_of_a_coin_game_do_not_list_the_way() -> None:
    text = (
        "First, go west. Next, take the coin in room77.\n\n-= Room36 =-\nYou are in the room36.\n"
        "There is an exit to the west. There is a coin on the floor.\n\nCommands: look; go west"
    )
    assert textworld_coin.words_of(text) == "room 3 6 exit west coin"
    assert textworld_coin.words_of("A dragon!") == "other"


def test_a_view_as_words() -> None:
    view = "Your mission: go to the key\nActions: turn left, drop\n\nYou see a red key 1 ahead, 2 left."
    assert babyai.words_of(view) == "mission go to the key you see a red key 1 ahead 2 left"


def test_only_the_largest_number_is_rewarded() -> None:
    assert Numbers([13, 45, 32]).observation[-1] == {"role": "user", "content": "13 45 32"}
    for action, success in (("45", True), (" 45\n", True), ("32", False), ("It is 45", False)):
        result = Numbers([13, 45, 32]).step(action)
        assert (result.success, result.reward) == (success, float(success))


def test_only_a_click_on_the_requested_button_succeeds() -> None:
    environment, rng = WORLDS["clicks"].make(), random.Random(0)
    for task in environment.tasks(64):
        boxes = task.payload["buttons"]
        won = set()
        for column in range(8):
            for row in range(8):
                x, y = 10 * column + 5, 10 * row + 5
                on = [left <= x < right and top <= y < bottom for left, top, right, bottom in boxes]
                assert sum(on) <= 1, "the buttons are apart"
                result = environment.reset(task, 0).step(f"{column} {row}")
                assert result.success is on[0]
                if on[0]:
                    won.add(f"{column} {row}")
                if on[1]:
                    won.add("other")
        assert {"other"} < won, "each button has the centre of a cell"
        episode = environment.reset(task, 0)
        assert episode.best() in won
        assert not environment.reset(task, 0).step(episode.slip(rng)).success
    assert environment.reset(task, 0).step("8 0").flags == env.StepFlag.FORMAT_ERROR


def test_a_page_shows_both_buttons_and_which_is_which() -> None:
    environment = WORLDS["clicks"].make()
    for task in environment.tasks(64):
        boxes = task.payload["buttons"]
        [page, question] = environment.reset(task, 0).observation["content"]
        assert question == "ONE"
        pixels = np.asarray(Picture.open(BytesIO(page.content)).convert("L"))
        assert pixels.shape == (80, 80)
        inside = [pixels[top + 1 : bottom - 1, left + 1 : right - 1] for left, top, right, bottom in boxes]
        # The name is black; the rest of a button has its shade.
        assert [sorted(set(part.ravel().tolist())) for part in inside] == [[0, 150], [0, 210]]
        outside = pixels.copy()
        for left, top, right, bottom in boxes:
            outside[top:bottom, left:right] = 250
        assert (outside == 250).all()


def test_a_constant_click_rarely_succeeds() -> None:
    world = WORLDS["clicks"]
    environment = world.make()
    tasks = environment.tasks(world.held_out, split="held_out")
    hits = [clicks.cells(task.payload["buttons"][0]) for task in tasks]
    assert np.mean(hits, axis=0).max() < 0.15, "the best click that is always the same"


def test_a_demonstration_is_paired_with_the_image_of_its_own_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "TRACES", 3)
    world = WORLDS["clicks"]
    model, processor = world.build(world.make().words, 0)
    tokens, _, pixels = zip(*warm_start.demonstrations(world, 0.0, 0, processor), strict=True)
    ids = torch.from_numpy(np.stack(tokens)).long()
    image_inputs = warm_start._seen(model, ids, pixels)
    tasks = random.Random(0).choices(world.make().tasks(world.tasks), k=3)
    with torch.no_grad():
        hidden = model.model(ids, use_cache=False, **image_inputs).last_hidden_state
        for row, task in enumerate(tasks):
            page = world.make().reset(task, 0).observation["content"][0]
            picture = Picture.open(BytesIO(page.content)).convert("RGB")
            plain = processor.image_processor(images=[[picture]], return_tensors="pt")["pixel_values"]
            alone = model.model(ids[row : row + 1], use_cache=False, pixel_values=plain).last_hidden_state
            torch.testing.assert_close(hidden[row : row + 1], alone, atol=1e-5, rtol=1e-5)
            others = hidden[(row + 1) % 3]
            assert not torch.allclose(others, alone[0], atol=1e-3), "pages differ"
    assert warm_start._seen(model, ids, [[], [], []]) == {}
