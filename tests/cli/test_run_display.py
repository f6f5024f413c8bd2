"""Output of `agentrl train` while it runs, in a terminal and in a file."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from agentrl_core.cli import _run_display
from agentrl_core.rollout.progress import Progress


def lines(console: Console) -> list[str]:
    file = console.file
    assert isinstance(file, io.StringIO)
    return [line for line in file.getvalue().splitlines() if line]


def run(console: Console) -> list[list[str]]:
    """Run two phases; return the lines so far, after each event."""
    outputs = []
    with _run_display.RunDisplay(console) as live:
        for phase, total in (("warm start", 2), ("learn", 1)):
            live.phase(phase, total)
            outputs.append(lines(console))
            for step in range(total):
                live.rollouts(Progress(turns=step + 3))
                live.step(loss=0.5, sampled_tokens=7)
                outputs.append(lines(console))
    return outputs


def test_a_log_has_a_line_for_each_phase_at_once_and_others_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run_display, "_LINE_SECONDS", math.inf)
    outputs = run(Console(file=io.StringIO(), force_terminal=False, width=80))
    assert outputs[0] == ["warm start 0/2"]
    assert outputs[2] == ["warm start 0/2"], "no more until the time is over"
    assert outputs[3] == ["warm start 0/2", "learn 0/1"]


def test_progress_lines_show_steps_metrics_and_rollouts_of_any_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts that take only a moment each get a line too."""
    monkeypatch.setattr(_run_display, "_LINE_SECONDS", 0.0)
    outputs = run(Console(file=io.StringIO(), force_terminal=False, width=20))
    first, rollouts, stepped, second, *_ = outputs[2]
    assert first == "warm start 0/2"
    assert rollouts.startswith("warm start 0/2; 3 turns (")
    assert stepped == "warm start 1/2  loss 0.500  sampled_tokens 0.000"
    assert second.startswith("warm start 1/2  loss 0.500  sampled_tokens 0.000; 4 turns (")


def test_a_terminal_has_the_bar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run_display, "_LINE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    run(console)
    assert "0/2;" not in "".join(lines(console))


def test_tokens_of_an_evaluation_are_not_those_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run_display, "_LINE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with _run_display.RunDisplay(console) as live:
        live.phase("evaluate before", 1)
        live.rollouts(Progress(tokens=1000))
        live.phase("train", 2)
        for _ in range(2):
            live.rollouts(Progress(tokens=7))
            live.step(sampled_tokens=7.0)
    assert [line for line in lines(console) if line.startswith("train 2/2")] == ["train 2/2  sampled_tokens 14"]
