"""Ingest of turns with prefix sharing, beside slime's TrajectoryManager and SkyRL's merge of steps.

    python bench/ingest.py [--slime path/to/slime/agent/trajectory.py]
                           [--skyrl path/to/skyrl/train/generators/utils.py]

A session is a growing chat: each turn adds about 200 context tokens and 225 sampled tokens. Our side takes columns as
flat memory, as from an engine that returns arrays, and as lists of ints; the peers take lists. The bench checks that
the peers hold and train the same tokens.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import numpy as np
from common import Bench, best, load

import agentrl_core as arl


@dataclasses.dataclass
class Turns:
    """Turns of many sessions, session by session, as lists."""

    sessions: int
    trajectories: list[int]
    prompts: list[list[int]]
    outputs: list[list[int]]
    logprobs: list[list[float]]
    observations: list[list[int]]

    @classmethod
    def make(cls, sessions: int, turns: int, seed: int = 0) -> Turns:
        """Return random chats."""
        rng = np.random.default_rng(seed)
        generated = cls(sessions, [], [], [], [], [])
        for session in range(sessions):
            context: list[int] = []
            for _ in range(turns):
                observation = rng.integers(0, 150_000, int(rng.integers(150, 250))).tolist()
                output = rng.integers(0, 150_000, int(rng.integers(150, 300))).tolist()
                generated.observations.append(observation)
                generated.trajectories.append(session)
                generated.prompts.append(context + observation)
                generated.outputs.append(output)
                generated.logprobs.append((-rng.random(len(output))).tolist())
                context = context + observation + output
        return generated

    @property
    def row_tokens(self) -> int:
        """Return the tokens of all contexts and outputs."""
        return sum(map(len, self.prompts)) + sum(map(len, self.outputs))

    def sizes(self) -> list[int]:
        """Return the number of different tokens, the number of sampled tokens, and their sum."""
        sampled = [token for output in self.outputs for token in output]
        return [sum(map(len, self.observations)) + len(sampled), len(sampled), sum(sampled)]


def flat(rows: list[Any], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a column of lists as flat memory."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return np.fromiter(chain.from_iterable(rows), dtype, int(offsets[-1])), offsets


def forest_of(sessions: int) -> tuple[arl.Forest, int]:
    """Return a forest with open sessions, and the handle of the first; the others follow it."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    return forest, min(forest.start(0, member) for member in range(sessions))


def frozen_sizes(forest: arl.Forest, first: int, sessions: int) -> list[int]:
    """Return the number of stored tokens, the number of sampled tokens, and their sum."""
    import polars as pl

    for session in range(sessions):
        forest.finish(first + session)
    nodes = pl.DataFrame(forest.freeze().nodes).select("kind", "tokens")
    actions = nodes.filter(pl.col("kind") == 1)["tokens"].explode().cast(pl.Int64)
    return [int(nodes["tokens"].list.len().sum()), len(actions), int(actions.sum())]


def slime_manager(path: str) -> ModuleType:
    """Load slime's file, with the one type that it imports."""

    @dataclasses.dataclass
    class Sample:
        """The sample that the file fills in."""

        class Status(enum.Enum):
            """Final state of a sample."""

            COMPLETED = "completed"

        index: int | None = None
        group_index: int | None = None
        rollout_id: int | None = None
        prompt: Any = ""
        label: Any = None
        tokens: list[int] = dataclasses.field(default_factory=list)
        response_length: int = 0
        loss_mask: list[int] | None = None
        rollout_log_probs: list[float] | None = None
        reward: float | None = None
        status: Any = None
        metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    types = ModuleType("slime.utils.types")
    types.Sample = Sample  # type: ignore[attr-defined]
    for name in ("slime", "slime.utils"):
        sys.modules[name] = ModuleType(name)
    sys.modules["slime.utils.types"] = types
    return load(path, "slime_trajectory")


def slime_run(module: ModuleType, turns: Turns) -> Callable[[], list[Any]]:
    """Record every turn and make the training rows."""
    message: dict[str, Any] = {}
    rows: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = []
    for index, session in enumerate(turns.trajectories):
        first = index == 0 or turns.trajectories[index - 1] != session
        history = [] if first else [*rows[-1][1], message]
        message = {"role": "assistant", "content": f"answer {index}"}
        rows.append((str(session), [*history, {"role": "user", "content": f"question {index}"}], message))

    def run() -> list[Any]:
        manager = module.TrajectoryManager()
        for index, (session, messages, answer) in enumerate(rows):
            turn = module.TurnRecord(turns.prompts[index], turns.outputs[index], "stop", turns.logprobs[index])
            manager.record_turn(session, turn=turn, prompt_messages=messages, response_message=answer)
        base = sys.modules["slime.utils.types"].Sample()
        return [manager.get_trajectory(str(session), base_sample=base) for session in range(turns.sessions)]

    return run


def slime_sizes(samples: list[Any]) -> list[int]:
    """Return the same three numbers of slime's samples."""
    rows = list(chain.from_iterable(samples))
    starts = [len(row.tokens) - row.response_length for row in rows]
    sampled = [
        token
        for row, start in zip(rows, starts, strict=True)
        for token, used in zip(row.tokens[start:], row.loss_mask, strict=True)
        if used
    ]
    return [sum(len(row.tokens) for row in rows), len(sampled), sum(sampled)]


def skyrl_merge(path: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load SkyRL's function alone: the file imports its whole system."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    names = {"_is_prefix", "_merge_single_trajectory"}
    tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name in names]
    scope: dict[str, Any] = {"GeneratorOutput": dict, "List": list, "Optional": Optional}
    exec(compile(tree, path, "exec"), scope)  # noqa: S102 - a file that the caller named
    return scope["_merge_single_trajectory"]


def skyrl_run(merge: Callable[[dict[str, Any]], dict[str, Any]], turns: Turns) -> Callable[[], list[dict[str, Any]]]:
    """Merge the steps of every trajectory."""
    inputs = []
    for session in range(turns.sessions):
        indices = [index for index, of in enumerate(turns.trajectories) if of == session]
        inputs.append(
            {
                "prompt_token_ids": [turns.prompts[index] for index in indices],
                "response_ids": [turns.outputs[index] for index in indices],
                "rewards": [0.0] * len(indices),
                "loss_masks": [[1] * len(turns.outputs[index]) for index in indices],
                "stop_reasons": ["stop"] * len(indices),
                "rollout_logprobs": [turns.logprobs[index] for index in indices],
                "trajectory_ids": [session] * len(indices),
                "is_last_step": [index == indices[-1] for index in indices],
            }
        )
    return lambda: [merge(rows) for rows in inputs]


def skyrl_sizes(merged: list[dict[str, Any]]) -> list[int]:
    """Return the same three numbers of SkyRL's rows."""
    stored = sampled = total = 0
    for rows in merged:
        for prompt, response, mask in zip(
            rows["prompt_token_ids"], rows["response_ids"], rows["loss_masks"], strict=True
        ):
            stored += len(prompt) + len(response)
            sampled += sum(mask)
            total += sum(token for token, used in zip(response, mask, strict=True) if used)
    return [stored, sampled, total]


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slime", metavar="PATH", help="slime's slime/agent/trajectory.py")
    parser.add_argument("--skyrl", metavar="PATH", help="SkyRL's skyrl/train/generators/utils.py")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    bench = Bench("ingest")
    rates: dict[str, float] = {}
    for sessions, length in ((128, 30), (16, 200)):
        turns = Turns.make(sessions, length)
        name = f"{sessions} sessions x {length} turns"
        handles = np.array(turns.trajectories)
        prompts, outputs = flat(turns.prompts, np.int32), flat(turns.outputs, np.int32)
        logprobs = flat(turns.logprobs, np.float32)
        turn_tokens = flat(
            [part for pair in zip(turns.observations, turns.outputs, strict=True) for part in pair], np.int32
        )
        pairs = [part for row in turns.logprobs for part in ((), row)]
        of_pairs, kinds = flat(pairs, np.float32), np.tile(np.array([4, 1], np.uint8), len(handles))

        def full_contexts(
            turns: Turns = turns, columns: Any = (handles, prompts, outputs), logprobs: Any = logprobs
        ) -> Any:
            forest, first = forest_of(turns.sessions)
            forest.ingest(first + columns[0], *columns[1:], logprobs=logprobs)
            return forest, first

        def from_lists(turns: Turns = turns) -> Any:
            forest, first = forest_of(turns.sessions)
            trajectories = [first + session for session in turns.trajectories]
            forest.ingest(trajectories, turns.prompts, turns.outputs, logprobs=turns.logprobs)
            return forest, first

        def deltas(
            turns: Turns = turns, turn_tokens: Any = turn_tokens, logprobs: Any = of_pairs, kinds: Any = kinds
        ) -> Any:
            forest, first = forest_of(turns.sessions)
            forest.append_many(first + np.repeat(turns.trajectories, 2), turn_tokens, kind=kinds, logprobs=logprobs)
            return forest, first

        def sizes(result: Any, turns: Turns = turns) -> list[int]:
            if isinstance(result, tuple):
                return frozen_sizes(*result, turns.sessions)
            return skyrl_sizes(result) if isinstance(result[0], dict) else slime_sizes(result)

        forms = ((full_contexts, "contexts, flat"), (from_lists, "contexts, lists"), (deltas, "deltas, flat"))
        for form, _ in forms:
            np.testing.assert_array_equal(sizes(form()), turns.sizes())
            seconds = best(form, options.runs) / 1e3
            rates[f"{name}, {form.__name__}: turns/s"] = len(handles) / seconds
            rates[f"{name}, {form.__name__}: row tokens/s"] = turns.row_tokens / seconds
        if options.slime:
            theirs = slime_run(slime_manager(options.slime), turns)
            for form, what in forms:
                bench.against(f"{name}: {what}", "slime", form, theirs, runs=options.runs, goal=1, read=sizes)
        else:
            for form, what in forms:
                bench.alone(f"{name}: {what}", form, "give --slime PATH", runs=options.runs)
        if sessions == 128 and options.skyrl:
            merged = skyrl_run(skyrl_merge(options.skyrl), turns)
            work = f"{turns.row_tokens / 1e6:.1f} M row tokens"
            bench.against(f"{work}, flat", "SkyRL", full_contexts, merged, runs=options.runs, goal=5.8, read=sizes)
            bench.against(f"{work}, lists", "SkyRL", from_lists, merged, runs=options.runs, goal=1, read=sizes)
        elif sessions == 128:
            bench.skipped("merge of steps against SkyRL", "give --skyrl")
    for what, rate in rates.items():
        print(f"{what:<60} {rate / 1e6:10.3f} M/s")
    bench.write(rates=rates)


if __name__ == "__main__":
    main()
