"""Amount of code that the simplest iteration enters: files, functions, and calls from one file to another.

    python bench/plainest_iteration.py [--files] [--list] [--json FILE]

The iteration is GRPO on two tasks with two rollouts each, a tool, `engine.Transformers` and a store: collect, credit,
updates, new weights for the engine, end of the iteration. The second iteration of the process is counted, in all
threads. `--files` lists the entered files, with their functions and calls; `--list` lists each function with its calls,
and the moves between each two files. The rows end with the iteration without `engine/` and `model/`, which run the
transformer itself. The size of folder `collect` follows: files, lines, lines of code, and record types (dataclasses),
with those of which the iteration makes an object.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

PACKAGE = Path(arl.__file__).parent
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Names of comprehensions, each of which Python 3.11 calls as a function."""


class Trace:
    """Counts calls of the package's functions and moves between its files, in every thread started later.

    A move is a call that leads from one file of the package to another.

    Attributes:
        part: the current part of the iteration; empty: nothing is counted.
        functions: calls of each function, by part, file and name.
        moves: moves by part and the two files.
        records: dataclasses of folder `collect` of which an object was made.
    """

    def __init__(self) -> None:
        self.part = ""
        self.functions: Counter[tuple[str, str, str]] = Counter()
        self.moves: Counter[tuple[str, str, str]] = Counter()
        self.records: set[str] = set()
        self._root = f"{PACKAGE}/"
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call."""
        if not self.part or event != "call":
            return
        name = self._file(frame)
        if name is None:
            if (frame.f_code.co_filename, frame.f_code.co_name) == ("<string>", "__init__"):  # that of a dataclass
                self._add_record(type(frame.f_locals["self"]))
            return
        self.functions[self.part, name, frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and self._file(caller) is None:
            caller = caller.f_back
        before = None if caller is None else self._file(caller)
        if before is not None and before != name:
            self.moves[self.part, before, name] += 1

    def _add_record(self, record: type) -> None:
        """Add the class of a record, if it is one of folder `collect`."""
        if record.__module__.startswith("agentrl_core.collect."):
            self.records.add(record.__qualname__)

    def _file(self, frame: FrameType) -> str | None:
        """Return the path of a frame's file in the package; None: it is outside."""
        name = frame.f_code.co_filename
        return name[len(self._root) :] if name.startswith(self._root) else None

    def row(self, part: str | None = None, without: tuple[str, ...] = ()) -> dict[str, int]:
        """Return the counts of a part, or of all parts; without the files of some folders, and moves among these."""
        functions = {
            key: count
            for key, count in self.functions.items()
            if part in (None, key[0]) and not key[1].startswith(without)
        }
        moves = {
            key: count
            for key, count in self.moves.items()
            if part in (None, key[0]) and not all(file.startswith(without) for file in key[1:])
        }
        return {
            "files": len({file for _, file, _ in functions}),
            "functions": len({key[1:] for key in functions}),
            "comprehensions of these": len({key[1:] for key in functions if key[2].endswith(COMPREHENSIONS)}),
            "calls": sum(functions.values()),
            "moves": sum(moves.values()),
            "inside engine": sum(count for (_, a, b), count in moves.items() if a[:7] == b[:7] == "engine/"),
        }


def run(trace: Trace) -> dict[str, float]:
    """Run two iterations, trace the second one, and return its token metrics."""
    torch.manual_seed(0)
    world = env.ReasoningGym(["chain_sum"], tools=[env.Calculator()], seed=0, held_out=0)
    policy, tokenizer = warm_start.build(world, seed=0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    llm = engine.Transformers(policy, tokenizer)
    recipe, token_counts = recipes.GRPO, dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        collector = arl.Collector(llm, world, recipe, store=arl.Store.open(folder))
        collector.on_iteration(lambda _, metrics: token_counts.update(metrics["tokens"]))

        def iteration(parts: tuple[str, ...]) -> None:
            number = collector.iteration
            trace.part = parts[0]
            batch = collector(tasks=2, group_size=2)
            trace.part = parts[1]
            batch = recipe.credit(batch)
            trace.part = parts[2]
            updates = recipe.updates(batch)
            for update in updates:
                for pack in update.pack(max_tokens=4096):
                    update.loss(pack.run(policy), pack).backward()
                optimizer.step()
                optimizer.zero_grad()
            trace.part = parts[3]
            llm.update_weights(policy, version=number + 1)
            collector.end_iteration(batch, updates.metrics)
            trace.part = ""

        iteration(("",) * 4)
        iteration(("collect", "credit", "updates, pack, run, loss", "update_weights, end_iteration"))
        collector.close()
    return token_counts


def size_of_collect() -> dict[str, int]:
    """Return files, lines, lines of code and record types of folder `collect`."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((PACKAGE / "collect").glob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    code = 0
    for text, tree in zip(texts, trees, strict=True):
        prose = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines = enumerate(text.splitlines(), start=1)
        code += sum(bool(line.strip()) and line.lstrip()[0] != "#" and row not in prose for row, line in lines)
    records = [
        node
        for node in nodes
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    ]
    return {
        "files": len(texts),
        "lines": sum(text.count("\n") for text in texts),
        "code": code,
        "record types": len(records),
    }


def main() -> None:
    """Print the counts as a table, or write them as JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--files", action="store_true", help="list the entered files")
    arguments.add_argument("--list", action="store_true", help="list the functions, and the moves between two files")
    arguments.add_argument("--json", type=Path, help="write the counts here, too")
    options = arguments.parse_args()
    trace = Trace()
    tokens = run(trace)
    parts = {part: trace.row(part) for part in dict.fromkeys(part for part, _, _ in trace.functions)}
    rows = {
        **parts,
        "whole iteration": trace.row(),
        "without engine and model": trace.row(without=("engine/", "model/")),
    }
    print(f"| part | {' | '.join(rows['whole iteration'])} |")
    print(f"|---|{'---|' * len(rows['whole iteration'])}")
    for part, row in rows.items():
        print(f"| {part} | {' | '.join(f'{count:,}' for count in row.values())} |")
    print(f"\n{int(tokens['generated'])} tokens were generated.")
    print("collect/: " + ", ".join(f"{count:,} {name}" for name, count in size_of_collect().items()))
    print(f"of these, {len(trace.records)} are made in the iteration: {', '.join(sorted(trace.records))}")
    if options.files:
        functions: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (_, file, name), count in trace.functions.items():
            functions[file][name] += count
        for file, names in sorted(functions.items()):
            print(f"  {file}: {len(names)} functions, {names.total()} calls")
    if options.list:
        calls, moves = Counter[str](), Counter[str]()
        for (_, file, name), count in trace.functions.items():
            calls[f"{file}: {name}"] += count
        for (_, before, after), count in trace.moves.items():
            moves[f"{before} > {after}"] += count
        for name, count in (*sorted(calls.items()), *moves.most_common()):
            print(f"  {name}: {count}")
    if options.json is not None:
        figures = {
            "parts": rows,
            "tokens": tokens,
            "collect": {**size_of_collect(), "records made": sorted(trace.records)},
            "files": sorted({f for _, f, _ in trace.functions}),
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
