"""Commands on a run whose tokens were not sampled by a policy of this run."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_core import Forest, Store
from agentrl_core.cli import main


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Run with two chats with six and three action tokens, whose versions and log-probs are unknown."""
    forest = Forest()
    forest.add_group(0, "a task")
    paths = [forest.start(0, member, origin="imported") for member in range(2)]
    forest.append_chats(paths, [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5]], [[0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    for path in paths:
        forest.finish(path, reward=1.0)
    with Store.open(tmp_path / "run") as store:
        batch = store.rebase(forest.freeze())
        store.append(batch, iteration=0)
        store.close_iteration(batch, {})
    return tmp_path / "run"


def table(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the first row of a command's table, by its headings."""
    assert main([command, str(run)]) == 0
    heads, cells, *_ = capsys.readouterr().out.splitlines()
    return dict(zip(heads.split(), cells.split(), strict=True))


def test_ls_and_stats_count_the_same_tokens(
    imported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    listed, counted = (table(command, imported, capsys) for command in ("ls", "stats"))
    assert int(listed["generated"]) == 9
    assert float(counted["action_length"]) * int(counted["draws"]) == 9
    assert counted["staleness"] == "-", "of no version is known"
