"""Fixed cost of a call, for every public function on columns: 8 rows beside 256.

    python bench/small.py [--only NAME]

A batch of one step has a few hundred rows, so the fixed cost of a call counts. The bench finds functions by walking the
packages, and passes columns by the names of their arguments. 8 rows are one group, one path and nearly no work.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from common import Bench

from agentrl_core import operators

FEW, ROWS, GROUP = 8, 256, 8
MOST_MICROSECONDS = 5.0
ROUNDS, RUNS, RUN_SECONDS = 10, 20, 0.0005
PHASES = ("agentrl_core.advantage", "agentrl_core.reward", "agentrl_core.weight")

# Arguments that are not columns of numbers, by name.
OPTIONS: dict[str, Any] = {
    "bins": 4,
    "capacity": 8,
    "constant": 1.0,
    "count": 8,
    "decay": 0.9,
    "fraction": 0.5,
    "free": 0.2,
    "full_at": 0.8,
    "gamma": 0.9,
    "at_most": 2.0,
    "k": 2,
    "kind": "siblings",
    "lam": 0.95,
    "multiple": 2,
    "q": 0.5,
    "seed": 0,
    "variance": 1.0,
}


# Extra or replaced arguments, for functions to which one column a row would mean something else.
SPECIAL: dict[str, dict[str, Any]] = {
    "returns.optimal_token_baseline": {"group_ids": lambda rows: np.arange(rows // GROUP) // 2},
    "weight.max_variance_subset": {"count": lambda rows: rows // 2},
    "weight.top_rows": {"count": lambda rows: rows // 2},
}


def argument(function: str, name: str, annotation: str, rows: int) -> Any:
    """Return the value for an argument: a column, or an option."""
    places = np.arange(rows)
    random = np.random.default_rng(0).random(rows)
    rows_of_each = {
        "answers": [f"answer {place % 5}" for place in places],
        "clusters": places % 5,
        "costs": places,
        "dependencies": np.zeros((4, 4), bool),
        "elements": places % 3,
        "embeddings": random[:, None] * np.ones(4),
        "first": places % 4,
        "keep": random < 0.7,
        "lengths": places % 7 + 1,
        "levels": np.array([0.25, 0.75]) if annotation == "object" else 2,
        "nodes": places,
        "offsets": np.arange(0, rows + 1, GROUP),
        "others": places // GROUP,
        "parents": (places - 1) // 4,
        "prior": random,
        "satisfied": (random < 0.7)[:, None] & np.ones(4, bool),
        "second": (places + 1) % 4,
        "states": places % 5,
        "state_keys": places % 5,
        "steps": places % GROUP if annotation == "object" else 3,
        "success": random < 0.7,
        "successes": random < 0.7,
        "texts": [f"a text about {place % 5}" for place in places],
        "tokens": places.astype(np.int32) % 5,
    }
    if name == "before":
        return -random[: rows // GROUP]
    if name == "state":
        return None if "None" in annotation else ([] if annotation.startswith("Sequence") else {})
    if name in rows_of_each:
        return rows_of_each[name]
    if name.endswith("ids"):
        return places // GROUP
    if annotation == "object" and name not in OPTIONS:
        return -random if "logprobs" in name else random + float(name == "high")
    if name not in OPTIONS:
        raise SystemExit(
            f"{function} has the argument {name}: {annotation}, for which there is no column here; add one"
        )
    return OPTIONS[name]


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function of the packages that takes a column."""
    inner = [f"{operators.__name__}.{module.name}" for module in pkgutil.iter_modules(operators.__path__)]
    helpers = f"{operators.__name__}.columns"
    for package in [*(name for name in inner if name != helpers), *PHASES]:
        module = importlib.import_module(package)
        for name, function in sorted(vars(module).items()):
            if name.startswith("_") or not isinstance(function, FunctionType):
                continue
            required = [
                parameter
                for parameter in inspect.signature(function).parameters.values()
                if parameter.default is parameter.empty
            ]
            of_package = function.__module__.startswith(package)
            if of_package and required and any(parameter.annotation == "object" for parameter in required):
                yield f"{package.rpartition('.')[2]}.{name}", function


def call(name: str, function: Callable[..., Any], rows: int) -> Callable[[], Any]:
    """Return the function with all of its arguments bound."""
    positional, by_name = [], {}
    for parameter in inspect.signature(function).parameters.values():
        # Paths need offsets; if these are optional, another argument takes their place, which is no faster.
        special = SPECIAL.get(name, {}).get(parameter.name)
        if special is not None or parameter.default is parameter.empty or parameter.name == "offsets":
            value = (
                argument(name, parameter.name, str(parameter.annotation), rows) if special is None else special(rows)
            )
            if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
                by_name[parameter.name] = value
            else:
                positional.append(value)
    return partial(function, *positional, **by_name)


def microseconds(work: Callable[[], Any]) -> float:
    """Return the fastest of several runs of many calls."""
    timer = timeit.Timer(work)
    single = min(timer.repeat(5, 1))
    number = max(1, int(RUN_SECONDS / max(single, 1e-7)))
    return 1e6 * min(timer.repeat(RUNS, number)) / number


def main() -> None:
    """Run all functions, round after round, since a neighbour may slow the processor down for seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of the functions that are looked at")
    options = parser.parse_args()
    chosen = {name: function for name, function in functions() if options.only in name}
    if not chosen:
        raise SystemExit(f"there is no public function whose name has {options.only!r}")
    assert options.only or len(chosen) >= 35, "the walk over the packages lost functions"
    times_by_name: dict[str, list[tuple[float, ...]]] = {name: [] for name in chosen}
    for _ in range(ROUNDS):
        for name, function in chosen.items():
            times_by_name[name].append(tuple(microseconds(call(name, function, rows)) for rows in (FEW, ROWS)))
    bench = Bench("small")
    for name, times in times_by_name.items():
        few, many = map(min, zip(*times, strict=True))
        bench.lines.append({"function": name, f"us_{FEW}_rows": few, f"us_{ROWS}_rows": many})
        met = "reached" if few <= MOST_MICROSECONDS else "missed"
        print(f"{name:<34} {few:8.2f} us {many:10.2f} us at {ROWS} rows  ({met})")
    missed = sum(line[f"us_{FEW}_rows"] > MOST_MICROSECONDS for line in bench.lines)
    print(f"{len(bench.lines)} functions, {missed} above {MOST_MICROSECONDS:g} us on {FEW} rows")
    if not options.only:
        bench.write(few=FEW, rows=ROWS, goal_us=MOST_MICROSECONDS)


if __name__ == "__main__":
    main()
