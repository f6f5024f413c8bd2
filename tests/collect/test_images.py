"""Images in observations are tokens on the path, blobs in the store, and part of the sampled request."""

from __future__ import annotations

import hashlib
import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gallery import TURNS, Gallery, Viewing, picture, scripted
from PIL import Image as Picture
from small_world import SmallWorld
from templates import TEMPLATES, bytes_tokenizer

import agentrl_core as arl
from agentrl_core import env, recipes, rollout
from agentrl_core._util.picture_header import picture_header
from agentrl_core.collect.rollout_log import read_answer, read_begin, write_answer, write_begin
from agentrl_core.engine import Chat, Request
from agentrl_core.env import Image, StepResult
from agentrl_core.env.step_record import JointStep, StepRecord
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError, UnsupportedError
from agentrl_core.rollout import Branch

IMAGE = 3
"""Return the template's placeholder, by its token."""
TABLES = ("nodes", "steps", "trajectories", "draws", "decisions")


def frames(batch: Any) -> dict[str, pl.DataFrame]:
    return {name: pl.DataFrame(getattr(batch, name)).drop("created_us", strict=False) for name in TABLES}


def blob_counts(nodes: Any) -> dict[bytes, int]:
    """Return how often nodes reference each blob."""
    hashes = pl.DataFrame(nodes)["blobs"].explode().drop_nulls().to_list()
    return {each: hashes.count(each) for each in hashes}


def processor(size: int = 28) -> Any:
    """Return the real processor of Llava, for pictures of `size` by `size` in patches of 14 by 14."""
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    template, special, end = TEMPLATES["seeing"]
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size}),
        bytes_tokenizer(template, special, end),
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=template,
    )


@pytest.mark.parametrize(
    ("make", "each"), [(lambda: bytes_tokenizer(*TEMPLATES["seeing"]), 1), (processor, 4), (lambda: processor(42), 9)]
)
def test_image_tokens_are_those_of_the_tokenizer_or_processor(make: Callable[[], Any], each: int) -> None:
    chat = Chat(make())
    messages = [{"role": "user", "content": ["Two:", picture(0), picture(1), "?"]}]
    prompt = chat.prompt(messages)
    assert prompt.tolist().count(IMAGE) == 2 * each
    runs = "".join("i" if token == IMAGE else "." for token in prompt.tolist())
    assert "i" * (2 * each) in runs, "where the template has them: one behind the other"
    answer = chat.observation([{"role": "user", "content": (picture(2), "Go on.")}])
    assert answer.tolist().count(IMAGE) == each
    plain = chat.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": [{"type": "text", "text": "Two:"}, *[{"type": "image"}] * 2, _text("?")]},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": [{"type": "image"}, _text("Go on.")]},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    expected = np.repeat(
        tokens := chat.tokenizer(plain, add_special_tokens=False)["input_ids"], [_wide(t, each) for t in tokens]
    )
    assert np.concatenate([prompt, chat.action("a"), answer]).tolist() == expected.tolist()
    assert chat.prompt(messages).tolist() == prompt.tolist()


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _wide(token: int, each: int) -> int:
    return each if token == IMAGE else 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chatml", "cannot show a list as the content of a message of role 'user'"),
        ("blind", "shows no images in a message of role 'user'"),
        ("strict", "refuses|cannot show|leaves out"),
    ],
)
def test_a_template_without_a_place_for_images_refuses_them(name: str, message: str) -> None:
    chat = Chat(bytes_tokenizer(*TEMPLATES[name]))
    content = [{"role": "user", "content": ["Look:", picture(0)]}]
    for say in (chat.prompt, chat.observation):
        with pytest.raises(UnsupportedError, match=message):
            say(content)


def test_requests_have_the_images_of_their_paths_and_the_store_has_each_once(tmp_path: Path) -> None:
    requests: list[Request] = []

    def reply(request: Request) -> str:
        requests.append(request)
        return "a" * (1 + request.seed % 5)

    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(scripted(reply), Gallery(), recipes.GRPO, store=store, task_pool=4)
        batch = collect(tasks=2, group_size=3)
        collect.end_iteration(recipes.GRPO.credit(batch), {})
    assert len(requests) == 2 * 3 * TURNS
    for request in requests:
        assert len(request.images) == request.tokens.tolist().count(IMAGE)
        assert request.images[:2] in [(picture(task), picture(1000 + task)) for task in range(4)]
    assert {len(request.images) for request in requests} == {2, 3, 4}
    expected = {image.sha256: image.content for request in requests for image in request.images}
    with arl.Store.open(tmp_path, read_only=True) as store:
        assert {each: store.blob(each) for each in blob_counts(store.nodes)} == expected
        assert store.verify() == []
        assert blob_counts(batch.nodes) == blob_counts(store.nodes)
    files = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert len(files) == len(expected) < sum(blob_counts(batch.nodes).values())


@pytest.mark.parametrize("runs", ["thread", "process"])
def test_wherever_episodes_run_the_trees_are_the_same(runs: str) -> None:
    collect = arl.Collector(scripted(), Gallery(runs), recipes.GRPO, task_pool=4, processes=1)
    inline = arl.Collector(scripted(), Gallery(), recipes.GRPO, task_pool=4)
    batches = [frames(each(tasks=2, group_size=2)) for each in (collect, inline)]
    collect.close()
    for name in TABLES:
        assert batches[0][name].equals(batches[1][name], null_equal=True), name
    assert blob_counts(batches[0]["nodes"])


@pytest.mark.parametrize("count", [1, 4, 9, 17])
def test_an_interrupted_run_resumes_with_the_same_images(tmp_path: Path, count: int) -> None:
    expected = frames(arl.Collector(scripted(), Gallery(), recipes.GRPO, task_pool=4)(tasks=2, group_size=3))
    seeds: list[int] = []

    def reply(request: Request) -> str:
        if len(seeds) == count:
            raise KeyboardInterrupt
        seeds.append(request.seed)
        return "a" * (1 + request.seed % 5)

    with arl.Store.open(tmp_path) as store, pytest.raises(KeyboardInterrupt):
        arl.Collector(scripted(reply), Gallery(), recipes.GRPO, store=store, task_pool=4)(tasks=2, group_size=3)
    later: list[int] = []

    def goes_on(request: Request) -> str:
        later.append(request.seed)
        return "a" * (1 + request.seed % 5)

    with arl.Store.open(tmp_path) as store:
        batch = arl.Collector(scripted(goes_on), Gallery(), recipes.GRPO, store=store, task_pool=4)(
            tasks=2, group_size=3
        )
    assert len(seeds) == count
    assert len(seeds + later) == len(set(seeds + later)) == 2 * 3 * TURNS, "nothing is sampled twice"
    for name, table in frames(batch).items():
        assert table.equals(expected[name], null_equal=True), name


def test_the_digest_of_a_request_includes_its_images() -> None:
    """Equal tokens with another picture are another request, so the rollout log does not answer it."""
    from agentrl_core.collect.rollout_driver import question
    from agentrl_core.engine import Sampling

    tokens = np.array([1, IMAGE], np.int32)
    digests = {
        question(Request(tokens, 0, Sampling(), images=images), "policy")
        for images in ((), (picture(1),), (picture(2),), (picture(1), picture(2)), (picture(2), picture(1)))
    }
    assert len(digests) == 5


class Forks(rollout.Rollout):
    """Fork before the second action, in the middle of it, and the first branch again from the start."""

    async def branch(self, branch: Branch) -> None:
        first, second = await branch.turn(), await branch.turn()
        before, within = branch.fork(second.begin), branch.fork(second.position(1))
        assert len(branch.path.images) == 4
        for fork in (before, within):
            assert fork.path.images == branch.path.images[:3]
            await fork.turn()
            await fork.turn()
        with pytest.raises(InvalidInputError, match="token=3 is inside tokens"):
            branch.position(3)
        branch.rollback(first.begin)
        assert len(branch.path.images) == 2
        await branch.rewrite(["In words: two pictures."])
        assert branch.path.images == ()
        while not branch.over:
            await branch.turn()


def test_forks_and_rollbacks_keep_the_images_before_them() -> None:
    requests: list[Request] = []

    def reply(request: Request) -> str:
        requests.append(request)
        return "a" * (1 + request.seed % 5)

    collect = arl.Collector(scripted(reply), Gallery(), recipes.GRPO.replace(rollout=Forks()), task_pool=4)
    batch = collect(tasks=1, group_size=1)
    assert batch.num_draws == 3
    assert len(requests) == 2 + 2 + 2 + 3
    assert all(len(request.images) == request.tokens.tolist().count(IMAGE) for request in requests)
    image_counts = sorted(len(request.images) for request in requests)
    assert image_counts == [0, 1, 2, 2, 3, 3, 3, 4, 4]


def sequences_of(batch: arl.Batch) -> list[tuple[list[int], list[bytes]]]:
    """Return tokens and images of each trained sequence."""
    plan = batch.plan(np.arange(batch.num_draws), 100_000)
    sequences = []
    for index, pack in enumerate(plan):
        hashes, sequence, image = plan.images(index)
        assert len(set(hashes)) == len(hashes)
        assert sequence.tolist() == sorted(sequence.tolist())
        for place, (begin, end) in enumerate(itertools.pairwise(pack.cu_seqlens.tolist())):
            sequence_hashes = [hashes[each] for each in image[sequence == place]]
            sequences.append((pack.input_ids[begin:end].tolist(), sequence_hashes))
    return sequences


class Rewrites(rollout.Rollout):
    """Contexts with images exchanged, moved, repeated and removed."""

    async def branch(self, branch: Branch) -> None:
        first = await branch.turn()
        prompt, one, two = branch.prompt_messages, picture(5000), picture(5001)
        await branch.rewrite([*prompt, first, {"role": "tool", "content": ["Other:", one]}])
        assert branch.path.images == (*images_of(prompt), one)
        second = await branch.turn()
        fork = branch.fork(second.begin)
        assert fork.path.images == branch.path.images[:3]
        await branch.rewrite([*reversed_images(prompt), second, {"role": "tool", "content": [two, "and", one]}])
        assert branch.path.images == (*reversed(images_of(prompt)), two, one)
        while not branch.over:
            await branch.turn()
        while not fork.over:
            await fork.turn()


def images_of(messages: Any) -> tuple[Image, ...]:
    return tuple(part for message in messages for part in message["content"] if isinstance(part, Image))


def reversed_images(messages: Any) -> Any:
    images = list(images_of(messages))
    return [
        {**each, "content": [images.pop() if isinstance(part, Image) else part for part in each["content"]]}
        if not isinstance(each["content"], str)
        else each
        for each in messages
    ]


@pytest.mark.parametrize("program", [Rewrites(), rollout.ObservationWindow(observations=1, turns=2)])
def test_rewritten_contexts_are_stored_with_the_images_of_their_requests(program: rollout.Rollout) -> None:
    """Trained sequences show the same images as the requests that they were sampled from."""
    requests: list[Request] = []

    def reply(request: Request) -> str:
        requests.append(request)
        return "a" * (1 + request.seed % 5)

    batch = arl.Collector(scripted(reply), Gallery(), recipes.GRPO.replace(rollout=program), task_pool=4)(
        tasks=2, group_size=2
    )
    request_keys = {}
    for request in requests:
        assert len(request.images) == request.tokens.tolist().count(IMAGE)
        request_keys[tuple(request.tokens.tolist()), tuple(image.sha256 for image in request.images)] = True
    sequences = sequences_of(batch)
    assert len(sequences) > batch.num_draws
    for tokens, hashes in sequences:
        assert tokens.count(IMAGE) == len(hashes)
        begins = [key for key in request_keys if list(key[0]) == tokens[: len(key[0])]]
        assert any(list(key[1]) == hashes for key in begins), "the last request of the sequence has its images"
    assert all(batch.blob(each) for _, hashes in sequences for each in hashes)


class OtherPrompt(rollout.Rollout):
    """The same actions after a prompt with another picture, then after that of the environment."""

    async def branch(self, branch: Branch) -> None:
        while not branch.over:
            await branch.turn()
        later = branch.path.images[2:]
        other = branch.with_prompt([{"role": "user", "content": [picture(6000), "Now."]}])
        assert other.path.images == (picture(6000), *later)
        assert other.with_prompt(None).path.images == branch.path.images


def test_a_branch_with_another_prompt_has_the_images_of_that_prompt() -> None:
    collect = arl.Collector(scripted(), Gallery(), recipes.GRPO.replace(rollout=OtherPrompt()), task_pool=4)
    batch = collect(tasks=1, group_size=2)
    for tokens, hashes in sequences_of(batch):
        assert tokens.count(IMAGE) == len(hashes) > 2


def test_an_engine_that_takes_no_images_is_refused_by_name() -> None:
    engine = scripted()
    engine.takes_images = False
    collect = arl.Collector(engine, Gallery(), recipes.GRPO, task_pool=4)
    with pytest.raises(
        UnsupportedError,
        match=r"environment Gallery shows images, but engine 'policy' \(Scripted\) does not support them",
    ):
        collect(tasks=2, group_size=2)


def test_the_rollout_log_gives_images_back_as_they_were() -> None:
    observation: Any = [{"role": "user", "content": ["Two:", picture(0), picture(1)]}, {"role": "tool", "content": "4"}]
    answer = StepRecord(StepResult(observation, reward=0.5), b"x")
    assert read_answer(write_answer(answer)) == answer
    assert read_begin(write_begin((observation, "s", None, ()))) == (observation, "s", None, ())
    joint = (JointStep({"one": observation, "two": "text"}, ("one",)), b"s", None, ())
    assert read_begin(write_begin(joint)) == joint


def test_check_accepts_images_and_refuses_invalid_message_parts() -> None:
    assert env.check(Gallery(), actions=["a", "bb"], steps=TURNS).ended == 3
    world = SmallWorld(observation=[{"role": "user", "content": ["text", 7]}])
    with pytest.raises(InvalidInputError, match="message 0 of the observation is"):
        env.check(world, actions=["a"], steps=2)
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=4)
    refused = pytest.warns(AgentRLWarning, match=r"Episode\.observation\[0\] is .* without a text")
    with refused, pytest.warns(AgentRLWarning, match="has no draws"):
        collect(tasks=1, group_size=1)


def test_an_image_is_bytes_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    path.write_bytes(picture(3).content)
    assert Image(path) == Image(str(path)) == picture(3)
    assert len({Image(path), picture(3), picture(4)}) == 2
    image = picture(3)
    assert repr(image) == f"Image({len(image.content)} bytes, {hashlib.sha256(image.content).hexdigest()[:16]})"
    with pytest.raises(InvalidInputError, match="cannot be read"):
        Image(tmp_path / "missing.png")
    for wrong in (b"", 7, None):
        with pytest.raises(InvalidInputError, match="give the bytes of a picture, or a path"):
            Image(wrong)  # type: ignore[arg-type]


def files() -> dict[str, bytes]:
    """Return a picture of 30 by 20 pixels in each format."""
    contents = {}
    for kind, options in (
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "exif": b"Exif\0\0"}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0"}),
        ("GIF", {}),
    ):
        file = io.BytesIO()
        Picture.new("RGB", (30, 20), (9, 8, 7)).save(file, kind, **options)
        contents[f"{kind} {options}"] = file.getvalue()
    return contents


@pytest.mark.parametrize("pillow", [True, False])
@pytest.mark.parametrize("name", files())
def test_pictures_are_known_by_their_headers(name: str, pillow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    content = files()[name]
    if not pillow:
        monkeypatch.setitem(sys.modules, "PIL", None)
    assert picture_header(content) == (name.partition(" ")[0].lower(), 30, 20)
    assert Image(content).content == content
    for length in (1, 8):
        with pytest.raises(InvalidInputError, match=r"not a PNG, JPEG, WebP or GIF|is a damaged"):
            Image(content[:length])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "Image: source, 3 bytes, is not a PNG, JPEG, WebP or GIF; save the picture as one of these"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not a PNG"),
        (files()["PNG {}"][:60], "is a damaged PNG"),
        (files()["PNG {}"].replace(b"IDAT", b"IDAX"), "is a damaged PNG"),
        (files()["PNG {}"][:16] + (40_000).to_bytes(4, "big") * 2, "has 40000 x 40000 pixels; give at most 89478485"),
        (files()["PNG {}"][:16] + bytes(8), "is not a PNG"),
    ],
)
def test_bytes_that_are_not_an_image_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Image(content)
    path = tmp_path / "page.png"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"Image: '.*page.png' {message.rpartition('bytes, ')[2]}"):
        Image(path)


def test_a_hint_text_keeps_the_images_of_a_question() -> None:
    from agentrl_core.rollout.programs.hints import insert_text

    messages = insert_text(Viewing(1).observation, "{prompt}\n\nHint: {text}", "look left")
    assert messages[1]["content"] == ["Two:", picture(1), picture(1001), "?", "\n\nHint: look left"]  # type: ignore[index]
