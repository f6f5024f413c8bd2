"""SAPO of the swarm: another node retells and rewards a node's rollouts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from riddles import RIGHT, WRONG, check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.sapo_swarm import SharedExperience


def chance(context: str, request: Request) -> str:
    del context
    return RIGHT if request.seed % 2 else WRONG


def line(name: str, *attempts: list[str]) -> str:
    task = {"task_id": name, "question": "riddle?", "domain": "riddles", "payload": None}
    return json.dumps({"task": task, "attempts": attempts}) + "\n"


def test_half_of_the_groups_are_others(tmp_path: Path) -> None:
    # One group has equal rewards and is skipped; of the two others one attempt looks first, and one never answers.
    equal = line("other 0", [WRONG], [WRONG])
    mixed = line("other 1", [RIGHT], [WRONG]) + line("other 2", ["look", RIGHT], ["look", "look"], [WRONG])
    (tmp_path / "other.jsonl").write_text(equal + mixed)
    run = solve(SharedExperience(folder=str(tmp_path), node="own"), chance, tasks=4, group_size=4)
    shared = [bool(value) for value in run.fact("shared")]
    names = run.batch.texts("task_id", "draw")
    assert [name for name, other in zip(names, shared, strict=True) if other].count("other 0") == 0
    shared_rows = {name: [] for name in ("other 1", "other 2")}
    for name, other, row, reward in zip(names, shared, run.drawn, run.fact("reward"), strict=True):
        if other:
            shared_rows[name].append((row.actions, row.status, reward))
            assert row.trained, "they are trained"
    assert shared_rows["other 1"] == [([RIGHT], "finished", 1.0), ([WRONG], "finished", 0.0)]
    assert shared_rows["other 2"][0] == (["look", RIGHT], "finished", 1.0)
    assert shared_rows["other 2"][1][:2] == (["look", "look"], "truncated")
    assert shared.count(False) == 2 * 4, "two groups of its own are left"
    assert run.num_requests == 8, "what others said is not generated"
    lines = [json.loads(each) for each in (tmp_path / "own.jsonl").read_text().splitlines()]
    assert [each["task"]["task_id"] for each in lines] == list(dict.fromkeys(names[:8]))
    assert lines[0]["attempts"] == [row.actions for row in run.drawn[:4]]


def test_where_too_little_is_offered_the_node_rolls_out_itself(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text(line("other", [RIGHT], [WRONG]))
    run = solve(SharedExperience(folder=str(tmp_path), node="own"), chance, tasks=4, group_size=2)
    assert run.fact("shared") == [0.0] * 6 + [1.0] * 2
    assert solve(SharedExperience(), chance, tasks=4, group_size=2).fact("shared") == [0.0] * 8


def test_sapo_swarm_resumes_with_shared_rollouts_and_takes_an_optimizer_step(tmp_path: Path) -> None:
    offered = line("other 1", [RIGHT], [WRONG]) + line("other 2", [RIGHT], [WRONG])
    (tmp_path / "other.jsonl").write_text(offered)
    recipe = recipes.SAPO_SWARM.replace(rollout=SharedExperience(folder=str(tmp_path), node="own"))
    assert check_resumes(recipe, chance, tasks=4) >= 1
    assert step(recipe, solve(recipe, chance, tasks=4).batch) >= 1


def test_two_nodes_exchange(tmp_path: Path) -> None:
    for node, other in (("a", "b"), ("b", "a"), ("a", "b")):
        run = solve(SharedExperience(folder=str(tmp_path), node=node), chance, tasks=4, group_size=4)
        assert (tmp_path / f"{other}.jsonl").exists() == bool(sum(run.fact("shared")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 of FOLDER/other.jsonl is not JSON (Expecting property name"),
        ('{"task": {}}', "a file in folder FOLDER has the line LINE, which is not a group (TypeError("),
        ('{"attempts": []}', "a file in folder FOLDER has the line LINE, which is not a group (KeyError('task'))"),
        (
            line("a").strip().replace("[]", "3"),
            "a file in folder FOLDER has the line LINE, which is not a group (TypeError",
        ),
    ],
)
def test_an_invalid_file_of_shared_experience_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "other.jsonl").write_text(text + "\n")
    message = message.replace("FOLDER", str(tmp_path)).replace("LINE", text[:80])
    with pytest.raises(InvalidInputError, match=rf"^SharedExperience: {re.escape(message)}.*; remove this line"):
        solve(SharedExperience(folder=str(tmp_path), node="own"), chance, tasks=2, group_size=2)
