"""Images of a run: displayed by the browser in the page, and named in the terminal."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image as Picture

import agentrl_core as arl
from agentrl_core.cli import main
from agentrl_core.view import Page
from agentrl_core.view.images import picture_facts

TIMES = "\N{MULTIPLICATION SIGN}"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.hacked=1"><script>window.hacked=1</script></svg>'
JUNK = b'"><img src=x onerror="window.hacked=1">'


def picture(width: int, height: int, kind: str = "PNG", noise: bool = False) -> bytes:
    image, file = Picture.new("RGB", (width, height), (200, 30, 30)), io.BytesIO()
    if noise:
        image = Picture.effect_noise((width, height), 200)
    image.save(file, kind)
    return file.getvalue()


WIDE, TALL, WEBP, GIF = picture(640, 360), picture(30, 90, "JPEG"), picture(64, 64, "WEBP"), picture(20, 10, "GIF")
DAMAGED = WIDE[:40] + b"\0" * 200


def make(folder: Path, *contents: bytes, iterations: int = 1) -> Path:
    """A run whose prompt shows the first images, and whose observation the last one."""
    with arl.Store.open(folder) as store:
        for iteration in range(iterations):
            forest = arl.Forest(iteration=iteration)
            forest.add_group(0, f"task {iteration}")
            path = forest.start(0, 0)
            hashes = [forest.add_blob(content) for content in contents]
            forest.append(path, [1, 2, 2, 3], kind="prompt", blobs=hashes[:-1] or None)
            forest.append(path, [4], kind="action", logprobs=[-0.5])
            forest.step(path)
            forest.append(path, [2, 5], kind="observation", blobs=hashes[-1:])
            forest.append(path, [6], kind="action", logprobs=[-0.5])
            forest.step(path)
            forest.finish(path, reward=1.0)
            store.append(store.rebase(forest.freeze()), iteration=iteration)
            store.flush()
    return folder


def opened(browser: Any, folder: Path, **options: Any) -> Any:
    with arl.Store.open(folder, read_only=True) as store:
        file = Page.of(store, **options).save(folder.parent / f"{folder.name}.html")
        groups = pl.DataFrame(store.trajectories)["group_id"].to_list()
    browser.open(file, f"#g{max(groups)}")
    browser.until("document.querySelectorAll('.tokens section').length === 4")
    return browser


def test_images_stand_in_the_text_and_in_the_tree_and_open_whole(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, make(tmp_path / "run", WIDE, TALL, WEBP, GIF))
    page.until("[...document.querySelectorAll('.images img')].every((each) => each.complete && each.naturalWidth > 0)")
    sizes = page.do(
        "[...document.querySelectorAll('.tokens section')].map((part) =>"
        " [...part.querySelectorAll('.images img')].map((each) => [each.naturalWidth, each.naturalHeight]))"
    )
    assert sizes == [[[640, 360], [30, 90], [64, 64]], [], [[20, 10]], []]
    small = page.do("document.querySelector('.images img').getBoundingClientRect().width")
    assert small <= 180
    assert page.do("document.querySelectorAll('.tree image').length") == 2
    assert page.do("[...document.querySelectorAll('.tree title')].map((each) => each.textContent)")[0] == (
        "prompt, 4 tokens · 3 images"
    )
    sources = page.do("[...document.querySelectorAll('img, image')].map((each) => each.src ?? each.href.baseVal)")
    assert all(source.startswith("data:image/") for source in sources)
    assert f"data:image/png;base64,{base64.b64encode(WIDE).decode()}" in sources
    page.click(".images button")
    page.until("document.querySelector('dialog.full[open] img').getBoundingClientRect().width === 640")
    assert f"PNG 640 {TIMES} 360" in page.texts("dialog.full p")[0]
    page.click("dialog.full img")
    page.until("document.querySelector('dialog.full') === null")
    assert page.errors == []


def test_a_file_that_is_not_an_image_is_shown_as_a_note_and_runs_no_code(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, make(tmp_path / "run", SVG, JUNK, DAMAGED, WIDE))
    page.until("document.querySelectorAll('.left-out').length === 3")
    notes = page.texts(".left-out figcaption")
    assert notes == [
        "image not shown: it is not a PNG, JPEG, WebP or GIF",
        "image not shown: it is not a PNG, JPEG, WebP or GIF",
        "image not shown: the browser cannot read its bytes",
    ]
    page.until("document.querySelectorAll('.images img').length === 1")
    assert page.do("window.hacked ?? null") is None
    text = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "onload" not in text.partition("<body>")[2].partition("<script>")[0]
    for hidden in (SVG, JUNK):
        assert base64.b64encode(hidden).decode() not in text
    assert page.errors == []


def test_images_beyond_the_bytes_of_the_page_are_counted_and_named(browser: Any, tmp_path: Path) -> None:
    noisy = [picture(60, 60 + number, noise=True) for number in range(4)]
    folder = make(tmp_path / "run", *noisy, iterations=2)
    budget = len(noisy[0]) // 10 + 20
    page = opened(browser, folder, tokens=budget)
    page.until("document.querySelectorAll('.images img').length === 1")
    notes = page.texts(".left-out")
    assert len(notes) == 3
    assert all("it exceeds the bytes of a page" in note and "sha256" in note for note in notes)
    assert page.texts(".images .count") == ["2 of 3 images are not in this page"]
    with arl.Store.open(folder, read_only=True) as store:
        assert len(Page.of(store, tokens=budget).html) < len(Page.of(store).html) - len(noisy[0])
    assert page.errors == []


def test_the_terminal_names_images_at_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "run", WIDE, JUNK, TALL)
    assert main(["show", str(folder), "0"]) == 0
    text = "".join(capsys.readouterr().out.split())  # lines are broken at the width of the terminal
    at = [text.index(name) for name in ("prompt:4tokens", "[imagePNG640x360", "[imageunknowntype", "step0")]
    at += [text.index(name) for name in ("observation:2tokens", "[imageJPEG30x90", "step1")]
    assert at == sorted(at)
    for content in (WIDE, JUNK, TALL):
        assert f"{len(content)}bytes,sha256{hashlib.sha256(content).hexdigest()}" in text
    (next(iter((folder / "blobs").glob(f"*/{hashlib.sha256(TALL).hexdigest()}")))).unlink()
    assert main(["show", str(folder), "0"]) == 0
    assert f"[image sha256 {hashlib.sha256(TALL).hexdigest()}:" in "".join(capsys.readouterr().out.splitlines())


def test_facts_of_pictures() -> None:
    assert picture_facts(TALL) == {"type": "jpeg", "width": 30, "height": 90, "bytes": len(TALL)}
    bomb = WIDE[:16] + (40_000).to_bytes(4, "big") * 2 + WIDE[24:]
    assert picture_facts(bomb)["why"] == "it has too many pixels"
    assert json.dumps(picture_facts(SVG))
