"""The command line `agentrl`: train, and look at runs. Each command is a module, imported only when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from agentrl_core.exceptions import AgentRLError

COMMANDS = {
    "train": "train a small model to use a tool",
    "serve": "record agents of any framework at an endpoint",
    "recipes": "list the recipes, show one, compare two",
    "ls": "list the iterations of a run, or the trajectories of one",
    "show": "show a trajectory: its group's tree and its text",
    "view": "write a run as one HTML page",
    "stats": "print training statistics per iteration",
    "watch": "monitor a run in the terminal",
    "compare": "compare two runs, task by task",
    "verify": "check the integrity of a run's files",
    "doctor": "compare an engine's log-probabilities with the model's, and find out why they differ",
    "export": "write training rows or a table as Parquet or JSONL",
}
"""Names of the commands, which are the modules of this package, and what each does."""


class _Help(argparse.HelpFormatter):
    """Help formatter that keeps the line breaks of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit status.

    Returns:
        The exit status: 0 done, 1 an error (one line on stderr) or something found by `verify` or `doctor`, 2 a wrong
        call, 130 interrupted.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    name = argv[0] if argv and argv[0] in COMMANDS else ""
    parser = argparse.ArgumentParser(prog="agentrl", description="Train LLM agents, and inspect runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        command: commands.add_parser(command, help=text, formatter_class=_Help) for command, text in COMMANDS.items()
    }
    try:
        if not name:
            parser.parse_args(argv or ["--help"])  # it exits with the help, or with an error
        command = import_module(f"agentrl_core.cli.{name}")
        command.add_arguments(parsers[name])
        namespace, unknown = parser.parse_known_args(argv)
        if unknown:  # argparse would show the usage of `agentrl`
            parsers[name].error(f"unrecognized arguments: {' '.join(unknown)}")
        options = vars(namespace)
        del options["command"]
        status: int = command.run(**options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        extra = {"train": "train", "serve": "agents", "doctor": "cli,torch"}.get(name, "cli")
        package = str(error.name).partition(".")[0]
        print(
            f"agentrl: {name} needs {package}: pip install 'agentrl-core[{extra}]'",
            file=sys.stderr,
        )
        return 1
    except AgentRLError as error:
        from agentrl_core.cli._terminal import escaped

        # A message can hold the name of a folder or a task, which can hold what controls a terminal.
        print(f"agentrl: {escaped(str(error))}", file=sys.stderr)
        return 1
    return status
