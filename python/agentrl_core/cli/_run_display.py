"""Report on a run: the progress bar, the summary table, the learning curve."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentrl_core.rollout.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

_LINE_SECONDS = 30.0

POLARS_LINES = """\
import polars as pl
t = pl.scan_ipc("{run}/trajectories/*.arrow").join(pl.scan_ipc("{run}/draws/*.arrow"), on="trajectory_id", how="semi")
print(t.group_by("iteration").agg(pl.col("success").mean(), pl.len()).sort("iteration").collect())"""


class RunDisplay:
    """Progress bar of a run. Ctrl-C stops the run cleanly after the current turn of the engine.

    A second Ctrl-C stops it at once.
    """

    def __init__(self, console: Console) -> None:
        from rich import progress as bars
        from rich.live import Live as Display

        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=20),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
        )
        self._phase = ""
        self._numbers: dict[str, str] = {}
        self._display = Display(get_renderable=self._render, console=console)
        self._console = console
        self._task: Any = None
        self._tokens = 0
        self._rollouts = Progress()
        self._total = self._done = 0
        self._last_line = -math.inf
        self._interrupted = False
        self._before: Any = None

    def __enter__(self) -> Self:
        """Show the bar and handle Ctrl-C."""
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the bar and restore Ctrl-C."""
        self._display.stop()
        self._console.print()
        signal.signal(signal.SIGINT, self._before)

    def phase(self, name: str, total: int) -> None:
        """Start a phase of `total` steps."""
        self._phase, self._total, self._done = name, total, 0
        self._tokens, self._rollouts = 0, Progress()  # those of an evaluation are not of the training
        self._task = self._bar.add_task(name, total=total)
        self._last_line = -math.inf  # each phase writes its first line at once
        self._write_line()

    def step(self, count: int = 1, /, **shown: float) -> None:
        """Report finished steps of the phase; `shown` has the latest numbers."""
        if shown:
            if "sampled_tokens" in shown:
                shown["sampled_tokens"] = self._tokens + self._rollouts.tokens
            self._numbers[self._phase] = "  ".join(f"{name} {_number(value)}" for name, value in shown.items())
        self._done += count
        self._bar.advance(self._task, count)
        self._write_line()
        self._stop_if_interrupted()

    def rollouts(self, progress: Progress) -> None:
        """Show the progress of rollouts."""
        if progress is not self._rollouts:
            self._tokens += self._rollouts.tokens
            self._rollouts = progress
        self._write_line(f"; {progress}")
        self._stop_if_interrupted()

    def _write_line(self, more: str = "") -> None:
        """Write a line at most every `_LINE_SECONDS` if the output is a file or a pipe, instead of a bar."""
        now = time.monotonic()
        if self._console.is_terminal or now - self._last_line < _LINE_SECONDS:
            return
        self._last_line = now
        numbers = self._numbers.get(self._phase, "")
        line = f"{self._phase} {self._done}/{self._total}{f'  {numbers}' if numbers else ''}{more}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            signal.default_int_handler(number, frame)
        self._interrupted = True
        self._console.print("stopping after this turn; collected rollouts are saved (Ctrl-C again: stop at once)")

    def _render(self) -> Any:
        """Return the bars, with the latest numbers of each phase on a separate line, so that they can wrap."""
        from rich.console import Group
        from rich.text import Text

        return Group(self._bar, Text("\n".join(f"{phase}: {numbers}" for phase, numbers in self._numbers.items())))

    def _stop_if_interrupted(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt


def show_summary(console: Console, run: Path, summary: Mapping[str, Any]) -> None:
    """Print the summary table, the run's directory, and code that reads it."""
    from rich.table import Table

    table = Table("", "", show_header=False)
    before, after = summary["success_before"], summary["success_after"]
    table.add_row("recipe, engine, seed", f"{summary['recipe']}, {summary['engine']}, {summary['seed']}")
    table.add_row("held-out success before", f"{before:.3f}")
    table.add_row("held-out success after", f"{after:.3f}")
    gain, low, high = (100 * each for each in summary["gain"])
    tasks = summary["held_out_tasks"]
    table.add_row("gain", f"{gain:+.1f} points on {tasks} tasks, 95 % interval {low:+.1f} to {high:+.1f}")
    if "solved_with_tool" in summary:
        table.add_row("solved with a tool", f"{summary['solved_with_tool']:.0%} of the solved tasks")
    table.add_row("tokens generated", f"{summary['generated_tokens']:,}")
    table.add_row("seconds", ", ".join(f"{phase} {value:.0f}" for phase, value in summary["seconds"].items()))
    console.print(table)
    console.print(f"run directory: {run}   learning curve: {run / 'learning_curve.png'}\n")
    console.print(POLARS_LINES.format(run=run), highlight=False, soft_wrap=True)


def learning_curve(run: Path) -> Path:
    """Plot success and entropy by iteration from the run's files; return the path of the PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import polars as pl
    from matplotlib import pyplot as plt

    from agentrl_core.integrations.polars import scan

    tables = scan(run)
    success = (
        tables.trajectories.join(tables.draws, on="trajectory_id", how="semi")
        .group_by("iteration")
        .agg(pl.col("success").mean())
        .sort("iteration")
        .collect()
    )
    iterations = tables.trajectories.select("group_id", "iteration").unique()
    entropy = (
        tables.nodes.filter(pl.col("entropies").is_not_null())
        .select("group_id", pl.col("entropies").list.mean())
        .join(iterations, on="group_id")
        .group_by("iteration")
        .agg(pl.col("entropies").mean())
        .sort("iteration")
        .collect()
    )
    figure, axis = plt.subplots(figsize=(7, 4))
    axis.plot(success["iteration"], success["success"], color="tab:blue", label="success while training")
    axis.set_xlabel("iteration")
    axis.set_ylabel("success")
    axis.set_ylim(0, 1)
    other = axis.twinx()
    other.plot(entropy["iteration"], entropy["entropies"], color="tab:orange", label="entropy")
    other.set_ylabel("entropy of a segment (nats per token)")
    figure.legend(loc="lower right", bbox_to_anchor=(0.88, 0.12))
    figure.tight_layout()
    path = run / "learning_curve.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value) and abs(value) >= 10:
        return f"{int(value):,}"
    return f"{value:.3f}"
