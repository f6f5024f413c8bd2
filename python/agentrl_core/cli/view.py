"""`agentrl view`: a run as one page that opens from disk."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentrl_core.cli._view import in_a_line, iteration_range, opened


def add_arguments(command: argparse.ArgumentParser) -> None:
    """`RUN -o FILE --iterations A:B --tokenizer PATH --tokens N`."""
    command.description = (
        "Write a run as one page, a file that opens from disk in a browser: no server, no network. Curves, the groups "
        "of an iteration, the token tree of a group with its advantages, texts with what is known of each token, why "
        "an advantage is what it is, members side by side, drift, search. Works while the run is written."
    )
    command.epilog = (
        "examples:\n  agentrl view runs/demo\n  agentrl view runs/demo -o run.html\n"
        "  agentrl view runs/demo -o late.html --iterations 30:"
    )
    command.add_argument("path", metavar="RUN", help="directory of the run")
    command.add_argument("-o", "--to", metavar="FILE", help="the file to write (default: the run's name and .html)")
    command.add_argument(
        "--iterations",
        metavar="A:B",
        help="groups from iteration A up to and without B; either may be left out (default: the latest that fit)",
    )
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, or a directory with one, that makes text of tokens (default: that of the run)",
    )
    command.add_argument(
        "--tokens",
        type=int,
        default=1_000_000,
        metavar="N",
        help="how many tokens the page holds at most; a million make about 10 MB (default: 1000000)",
    )


def run(path: str, to: str | None, iterations: str | None, tokenizer: str | None, tokens: int) -> int:
    """Write the file."""
    from agentrl_core.view import Page

    target = Path(to) if to is not None else Path(f"{Path(path).resolve().name}.html")
    chosen = iteration_range(iterations)
    with opened(path) as store:
        page = Page.of(store, iterations=chosen, tokenizer=tokenizer, tokens=tokens)
    page.save(target)
    print(f"{in_a_line(str(target))}: {target.stat().st_size / 1e6:.1f} MB; open it in a browser", file=sys.stderr)
    return 0
