"""How much code the plainest iteration enters: files, functions, and moves from one file to another.

    python bench/plainest_iteration.py

GRPO on two tasks with two rollouts each, a tool, `engine.Transformers` and a store: collect, credit, update, weights to
the engine, end of the iteration. The second iteration of the process is counted, in all threads.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

PACKAGE = str(Path(arl.__file__).resolve().parent)


class Trace:
    """Counts calls of the package's functions, and moves between its files, in every thread that starts after it.

    A move is a call that leads from one file of the package to another.
    """

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()
        self.moves = 0
        self.active = False
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call."""
        if not self.active or event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return
        self.functions[name, frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        self.moves += caller is not None and caller.f_code.co_filename != name


def main() -> None:
    """Print the counts as JSON."""
    trace = Trace()
    torch.manual_seed(0)
    world = env.ReasoningGym(["chain_sum"], tools=[env.Calculator()], seed=0, held_out=0)
    policy, tokenizer = warm_start.build(world, seed=0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    llm = engine.Transformers(policy, tokenizer)
    recipe = recipes.GRPO
    with tempfile.TemporaryDirectory() as folder:
        collector = arl.Collector(llm, world, recipe, store=arl.Store.open(folder))

        def iteration() -> None:
            number = collector.iteration
            batch = recipe.credit(collector(tasks=2, group_size=2))
            updates = recipe.updates(batch)
            for update in updates:
                for pack in update.pack(max_tokens=4096):
                    update.loss(pack.run(policy), pack).backward()
                optimizer.step()
                optimizer.zero_grad()
            llm.update_weights(policy, version=number + 1)
            getattr(collector, "end_iteration", getattr(collector, "update", None))(batch, updates.metrics)

        iteration()
        trace.active = True
        iteration()
        trace.active = False
        collector.close()
    files = {name for name, _ in trace.functions}
    shown = {
        "files": len(files),
        "functions": len(trace.functions),
        "calls": sum(trace.functions.values()),
        "moves": trace.moves,
        "files_by_folder": dict(
            Counter(str(Path(name).relative_to(PACKAGE).parent) for name in sorted(files)).most_common()
        ),
    }
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
