"""Curves in the terminal: stats, watch, compare, folders of runs, and the page as a command."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
from stores import trained

from agentrl_core import Store, scan
from agentrl_core.cli import main
from agentrl_core.cli._curves import sparkline
from agentrl_core.cli.compare import paired, solved
from agentrl_core.view.iteration_statistics import statistics

_SECONDS = 600.0


@pytest.fixture
def agentrl(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object, status: int = 0) -> str:
        assert main([str(argument) for argument in arguments]) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return call


def test_a_sparkline_is_low_where_values_are_low() -> None:
    # 8 bars between 0 and 7: value v is bar int(v / 7 * 8), the largest the last
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    # two values per bar: means 0.5, 2.5, 4.5, 6.5; the first is the smallest and the last the largest
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=4) == "▁▃▆█"
    assert sparkline([None, float("nan")]) == "  "
    assert sparkline([]) == ""


def test_stats_draw_each_number(agentrl, recorded) -> None:
    printed = agentrl("stats", recorded)
    success = statistics(scan(recorded))["success"].to_list()
    (line,) = [line for line in printed.splitlines() if line.startswith("success ")]
    assert line.split() == ["success", sparkline(success), f"{success[0]:.3f}", f"{success[-1]:.3f}"]


def test_watch_shows_a_run_once_in_a_pipe(agentrl, recorded) -> None:
    printed = agentrl("watch", recorded)
    assert "3 iterations closed, 9 groups" in printed
    assert re.search(r"\d+% tool errors", printed)
    assert sparkline(statistics(scan(recorded))["entropy"].to_list()) in printed
    assert "--seconds is 0; give a positive number" in agentrl("watch", recorded, "--seconds", 0, status=1)


def test_watch_follows_a_run_until_ctrl_c(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "agentrl_core", "watch", str(tmp_path), "--seconds", "0.1"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # reported wherever the tests are started
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        signal.signal(signal.SIGINT, before)
        os.close(theirs)
        try:
            wait_for_text(ours, "1 iterations closed")
            trained(store, 1)
            wait_for_text(ours, "2 iterations closed")
            process.send_signal(signal.SIGINT)
            assert process.wait(_SECONDS) == 130
        finally:
            process.kill()
            process.wait(_SECONDS)
            os.close(ours)


def wait_for_text(terminal: int, text: str) -> None:
    """Read a terminal until it shows a text."""
    end, output = time.monotonic() + _SECONDS, ""
    while text not in output:
        assert time.monotonic() < end, output[-2000:]
        output += os.read(terminal, 1 << 16).decode(errors="replace")


def test_compare_pairs_tasks(agentrl, recorded, tmp_path) -> None:
    with Store.open(tmp_path / "other") as store:
        trained(store, 0)
        trained(store, 1)
    printed = agentrl("compare", tmp_path / "other", tmp_path / "other")
    (line,) = [line for line in printed.splitlines() if line.startswith("reward ")]
    assert line.split()[1] == line.split()[2]
    assert line.split()[3] == "0.000"
    assert "success +0.000 [+0.000, +0.000] (95 %, paired), p = 1, 0 better, 0 worse: no difference is seen" in printed
    pairs = paired(solved(scan(recorded)), solved(scan(recorded)))
    tasks = scan(recorded).trajectories.select("iteration", "task_id").unique().collect()
    assert len(pairs) == len(tasks) > 0
    assert pairs["difference"].to_list() == [0.0] * len(pairs)
    assert "no task was rolled out by both runs" in agentrl("compare", recorded, tmp_path / "other")
    empty = tmp_path / "empty"
    Store.open(empty).close()
    assert "no common iteration" in agentrl("compare", recorded, empty, status=1)


def test_a_folder_of_runs_is_listed(agentrl, recorded, tmp_path) -> None:
    for name in ("a", "b"):
        with Store.open(tmp_path / name) as store:
            trained(store, 0)
    os.utime(tmp_path / "a" / "manifest", (2**31, 2**31))
    printed = agentrl("ls", tmp_path)
    assert [line.split()[0] for line in printed.splitlines()] == ["run", "b", "a"]
    listed = agentrl("ls", recorded.parent)
    (line,) = [line for line in listed.splitlines() if line.startswith("demo ")]
    mean = scan(recorded).trajectories.group_by("iteration").agg(pl.col("success").mean()).sort("iteration").collect()
    success = mean["success"].to_list()
    assert line.split() == ["demo", "grpo", "3", f"{success[0]:.3f}", f"{success[-1]:.3f}", sparkline(success)]


def test_view_writes_the_page(agentrl, recorded, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert agentrl("view", recorded) == ""
    assert (tmp_path / "demo.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    agentrl("view", recorded, "-o", "late.html", "--iterations", "2:", "--tokenizer", recorded / "start")
    assert (tmp_path / "late.html").stat().st_size < (tmp_path / "demo.html").stat().st_size
    assert "there is no" in agentrl("view", recorded, "--tokenizer", tmp_path, status=1)
    assert "give A:B" in agentrl("view", recorded, "--iterations", "3:1", status=1)
    assert "cannot be written" in agentrl("view", recorded, "-o", tmp_path / "none" / "x.html", status=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.html", "late.html"]


def test_show_prints_branches_with_equal_tokens_on_one_line(agentrl, recorded) -> None:
    run = scan(recorded)
    paths = (
        run.trajectories.agentrl.paths(run)
        .collect()
        .with_columns(text=pl.col("tokens").cast(pl.List(pl.String)).list.join(" "))
    )
    branch_lines = (
        paths.filter(pl.col("parent_trajectory").is_null()).group_by("group_id", "text").agg(pl.col("trajectory_id"))
    )
    branches = branch_lines.filter(pl.col("trajectory_id").list.len() > 1, pl.col("group_id") >= 3).sort(
        "trajectory_id"
    )
    assert len(branches) > 0
    for ids in branches["trajectory_id"]:
        printed = agentrl("show", recorded, ids[0])
        above = printed[: printed.index("shown below")]
        assert f"x {len(ids)}" in above.splitlines()[-2]
        assert re.search(rf"trajector(y|ies) {', '.join(map(str, sorted(ids[1:])))}: finished", printed)
