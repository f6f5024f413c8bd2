"""Untrusted names in a run: folders, metrics, tasks, recipes, and files that are not UTF-8."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.cli import main
from agentrl_core.view import Page

HIDDEN = ["\u202e", "\u200b", "\x1b", "\x07", "\u2066", "\u00ad", "\U000e0041", "\u2028"]
ODD = "".join(HIDDEN)
NOT_UTF8 = os.fsdecode(b"caf\xe9")


def make_run(folder: Path, name: str = "name") -> Path:
    """Return a run with this name wherever it has names."""
    forest = arl.Forest(facts={"trajectory": {f"fact{name}": "number"}})
    forest.add_group(0, f"task{name}")
    for member in range(2):
        path = forest.start(0, member)
        forest.append(path, [1, 2], kind="prompt")
        forest.append(path, [3, 4], kind="action", logprobs=[-0.5, -0.5])
        forest.step(path)
        forest.finish(path, reward=float(member), facts={f"fact{name}": 0.5}, info={name: name})
    table = {**recipes.GRPO.to_dict(), "name": f"recipe{name}", "source": f"source{name}"}
    table["advantage"] = {"component": f"module{name}:Thing", f"option{name}": name}
    with arl.Store.open(folder) as store:
        batch = recipes.GRPO.credit(store.rebase(forest.freeze()))
        store.append(batch, iteration=0)
        metrics = {f"success@{name}": 0.5, f"loss{name}": 1.0}
        store.close_iteration(batch, {"run": {"recipe": table}, "metrics": metrics})
    return folder


SEEN = r"""
(() => {
  const controls = /[\u0000-\u0008\u000b-\u001f\ud800-\udfff]/u;
  const hidden = /[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\u{e0000}-\u{e007f}]/u;
  const texts = [document.title, document.getElementById('page').textContent];
  const named = document.querySelectorAll('#page [title], #page [aria-label]');
  for (const each of named) texts.push(each.title, each.ariaLabel ?? '');
  return texts.filter((text) => hidden.test(text) || controls.test(text));
})()
"""


def test_hidden_letters_of_every_name_are_shown(browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / f"run{ODD}", ODD)
    assert main(["view", str(run), "-o", str(tmp_path / "page.html")]) == 0
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>run⟨U+202E⟩⟨U+200B⟩␛␇⟨U+2066⟩⟨U+00AD⟩⟨U+E0041⟩⟨U+2028⟩</title>" in html
    for fragment in ("", "#i0", "#all", "#g0", "#g0/t0/k2", "#g0/t0/side", "#g0/t0/drift"):
        browser.open(tmp_path / "page.html", fragment)
        assert browser.errors == []
        assert browser.do(SEEN) == [], fragment
    browser.open(tmp_path / "page.html")
    page_text = browser.do("document.getElementById('page').textContent")
    for name in ("run⟨U+202E⟩", "success@⟨U+202E⟩", "loss⟨U+202E⟩", "recipe⟨U+202E⟩"):
        assert name in page_text


@pytest.mark.parametrize("name", [NOT_UTF8, f"run{ODD}", "a\nb", "-o", " ", "<b>"])
def test_folders_of_any_name_are_read(name: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from tokenizers import Tokenizer, models

    run = make_run(tmp_path / name)
    other = make_run(tmp_path / "other")
    (run / "tokenizer").mkdir()
    words = {f"word{token}": token for token in range(6)}
    text = Tokenizer(models.WordLevel(words, unk_token="word0")).to_str()
    (run / "tokenizer" / "tokenizer.json").write_text(text, encoding="utf-8")
    out = tmp_path / f"out {name}.jsonl"
    for command in (
        ["ls", run],
        ["ls", "--iteration", "0", run],
        ["ls", tmp_path],
        ["show", run, "0"],
        ["stats", run],
        ["verify", run],
        ["compare", run, other],
        ["export", run, "--to", out],
        ["export", run, "--to", f"{out}.jsonl", "--table", "chats"],
        ["view", run, "-o", f"{out}.html"],
    ):
        status = main(list(map(str, command)))
        printed = b"".join(capsysbinary.readouterr())
        assert status == 0, (command, printed)
        assert not set(printed) & set(b"\x1b\x07"), command
        assert "\u202e".encode() not in printed
    assert out.stat().st_size > 0
    page = Path(f"{out}.html").read_text(encoding="utf-8")
    assert "word3" not in page  # it is packed
    with arl.Store.open(run, read_only=True) as store:
        assert '"tokenizer": true' in Page.of(store).html
    shutil.rmtree(run)
