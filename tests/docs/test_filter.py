"""The filter of the catalogue, in a real browser: rows with all typed words remain, and empty groups are hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser, program
from pages import DOCS

PAGE = """<!doctype html><meta charset="utf-8"><body><div id="filter"></div>
<h2>Losses</h2><table><thead><tr><th>recipe<tbody><tr><td>ppo critic<tr><td>gspo</table>
<h2>Replay</h2><table><thead><tr><th>recipe<tbody><tr><td>arpo_gui replay</table>
<div id="page" data-painted=""></div><script>%s</script>"""
SHOWN = "[...document.querySelectorAll('{}')].filter(e => e.checkVisibility()).map(e => e.textContent.trim())"


@pytest.mark.slow
def test_typed_words_filter_the_rows(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("no Chromium")
    path = tmp_path / "page.html"
    path.write_text(PAGE % (DOCS / "javascripts" / "filter.js").read_text(encoding="utf-8"), encoding="utf-8")
    with Browser() as browser:
        browser.open(path)

        def typed(text: str) -> tuple[list[str], list[str]]:
            browser.do(
                f"(() => {{ const field = document.querySelector('input'); field.value = {text!r};"
                " field.dispatchEvent(new Event('input')); })()"
            )
            return browser.do(SHOWN.format("td")), browser.do(SHOWN.format("h2"))

        assert typed("") == (["ppo critic", "gspo", "arpo_gui replay"], ["Losses", "Replay"])
        assert typed("CRITIC ppo") == (["ppo critic"], ["Losses"])
        assert typed("replay") == (["arpo_gui replay"], ["Replay"])
        assert typed("ppo replay") == ([], [])
        assert not browser.errors
