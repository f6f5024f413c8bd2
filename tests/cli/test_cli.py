"""Commands that inspect a run, on a run stored by training."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forests import grow

from agentrl_core import Forest, Store, scan
from agentrl_core.cli import COMMANDS, main
from agentrl_core.cli._detokenize import Detokenizer
from agentrl_core.cli._terminal import opened
from agentrl_core.exceptions import CorruptError
from agentrl_core.integrations.polars._token_paths import NodeColumns, walk
from agentrl_core.integrations.polars.tables import Tables

LOOKING = ("ls", "show", "stats", "export", "view", "watch", "compare")


@pytest.fixture
def agentrl(capsys, monkeypatch):
    """Run a command in this process on a terminal with a number of columns, or (None) in a pipe."""

    def call(*arguments: object, columns: int | None = None, status: int = 0) -> str:
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        assert main([str(argument) for argument in arguments]) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return call


def program(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl_core", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def numbers(printed: str) -> list[list[str]]:
    """Return the cells of a table that is printed in a pipe, without its last line."""
    return [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()[1:] if line[:1] == " "]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_and_shows_examples(capsys, monkeypatch, command, columns) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"] if command else ["--help"])
    assert exit_info.value.code == 0
    printed, _, examples = capsys.readouterr().out.partition("examples:")
    _, _, text = printed.partition("\n\n")  # argparse never breaks an option of the usage
    assert len(text) > 100
    assert max(map(len, text.splitlines())) <= columns
    if command in LOOKING or command == "verify":
        assert f"agentrl {command} runs/demo" in examples


def test_help_loads_nothing_heavy() -> None:
    code = "import sys\nfrom agentrl_core.cli import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.split()
    assert "agentrl_core.cli" in modules
    assert not {"numpy", "polars", "rich", "torch"} & set(modules)


@pytest.mark.parametrize("command", ["ls", "stats"])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_tables_fit_the_terminal(agentrl, recorded, command, columns) -> None:
    printed = agentrl(command, recorded, columns=columns)
    assert max(map(len, printed.splitlines())) <= columns
    heads = [name for line in printed.splitlines() if line.startswith("iteration ") for name in line.split()]
    full_heads = agentrl(command, recorded).splitlines()[0].split()
    assert [name for name in heads if name != "iteration"] == full_heads[1:], (
        "every column is there once, beside its iteration"
    )
    assert (heads.count("iteration") == 1) == (columns == 200 or (command, columns) == ("ls", 80))
    assert "\x1b" not in printed


def test_ls_counts_match_the_store(agentrl, recorded) -> None:
    run = scan(recorded)
    trajectories = run.trajectories.collect()
    printed = agentrl("ls", recorded)
    names = printed.splitlines()[0].split()
    rows = [dict(zip(names, cells, strict=True)) for cells in numbers(printed)]
    assert [row["iteration"] for row in rows] == ["0", "1", "2"]
    for iteration, row in enumerate(rows):
        mine = trajectories.filter(iteration=iteration)
        assert row["groups"] == str(mine["group_id"].n_unique())
        assert row["trajectories"] == str(len(mine))
        assert row["success"] == f"{mine['success'].mean():.3f}"
        assert row["reward"] == f"{mine['reward'].mean():.3f}"
        nodes = run.nodes.filter(pl.col("kind") == "action", pl.col("group_id").is_in(mine["group_id"].to_list()))
        assert row["generated"].replace(",", "") == str(
            nodes.select(pl.col("tokens").list.len().sum()).collect().item()
        )
        assert row["finished"] == str((mine["status"] == "finished").sum())
    assert f"3 iterations closed, {trajectories['group_id'].n_unique()} groups, {len(trajectories)} traj" in printed


def test_ls_lists_the_trajectories_of_an_iteration(agentrl, recorded) -> None:
    printed = agentrl("ls", recorded, "--iteration", 1)
    rows = numbers(printed)
    expected = scan(recorded).trajectories.filter(iteration=1).sort("group_id", "trajectory_id").collect()
    assert [int(row[0]) for row in rows] == expected["trajectory_id"].to_list()
    assert [row[2] for row in rows] == expected["task_id"].to_list()
    assert [row[5] for row in rows] == ["yes" if success else "no" for success in expected["success"]]
    run = scan(recorded)
    lengths = expected.agentrl.paths(run)["tokens"].list.len().to_list()
    assert printed.splitlines()[0].split()[7] == "length"
    assert [int(row[7]) for row in rows] == lengths
    narrow = agentrl("ls", recorded, "--iteration", 1, columns=40)
    assert max(map(len, narrow.splitlines())) <= 40
    message = agentrl("ls", recorded, "--iteration", 9, status=1)
    assert message == "agentrl: the run has no trajectories of iteration 9; give one of the nearest: 0, 1, 2\n"


def test_stats_are_those_of_the_batches(agentrl, recorded) -> None:
    printed = agentrl("stats", recorded)
    names = printed.splitlines()[0].split()
    rows = [dict(zip(names, cells, strict=True)) for cells in numbers(printed)]
    assert len(rows) == 3
    with Store.open(recorded, read_only=True) as store:
        for iteration, row in enumerate(rows):
            batch = store.batch(iteration)
            score, groups = batch.column("score", "draw"), batch.keys("group_id", "draw")
            steps, flags = batch.offsets("step"), batch.column("flags", "step")
            generated = pl.DataFrame(batch.nodes)["entropies"].drop_nulls().list.explode()
            same = [len(set(score[groups == group])) == 1 for group in range(batch.num_groups)]
            assert row["draws"] == str(batch.num_draws)
            assert float(row["success"]) == pytest.approx(batch.column("success", "draw").mean(), abs=5.1e-4)
            assert float(row["reward"]) == pytest.approx(batch.column("reward", "draw").mean(), abs=5.1e-4)
            assert float(row["same_reward"]) == pytest.approx(sum(same) / len(same), abs=5.1e-4)
            assert float(row["entropy"]) == pytest.approx(generated.mean(), abs=5.1e-4)
            assert float(row["turns"]) == pytest.approx(steps[-1] / batch.num_draws, abs=5.1e-4)
            actions = batch.offsets("token")[-1] / batch.num_draws
            assert float(row["action_length"]) == pytest.approx(actions, abs=5.1e-4)
            assert float(row["sharing"]) == pytest.approx(batch.sharing_ratio, abs=5.1e-4)
            called = flags & 4 != 0
            assert float(row["tool_errors"]) == pytest.approx((flags & 1 != 0).sum() / called.sum(), abs=5.1e-4)
            assert float(row["staleness"]) == iteration, "the scripted engine stays at version 0"
    assert {float(row["tool_errors"]) > 0 for row in rows} == {True}
    nodes = sum(file.stat().st_size for file in (recorded / "nodes").glob("*.arrow"))
    tokens = scan(recorded).nodes.select(pl.col("tokens").list.len().sum()).collect().item()
    assert f"bytes per token on disk: {nodes / tokens:.1f} in nodes" in printed


def a_branch(recorded: Path) -> dict[str, Any]:
    branches = scan(recorded).trajectories.filter(pl.col("parent_trajectory").is_not_null()).collect()
    assert len(branches) > 0
    return branches.row(0, named=True)


@pytest.mark.parametrize("columns", [40, 200, None])
def test_show_prints_the_group_text_and_advantages_of_a_trajectory(agentrl, recorded, columns) -> None:
    from tokenizers import Tokenizer

    branch = a_branch(recorded)
    printed = agentrl("show", recorded, branch["trajectory_id"], columns=columns)
    if columns is not None:
        assert max(map(len, printed.splitlines())) <= columns
    flat = re.sub(r"[\s│├└─]+", "", printed)
    run = scan(recorded)
    members = run.trajectories.filter(group_id=branch["group_id"]).collect()
    id_lists = re.findall(r"trajector(?:y|ies)([\d,]+):finished", flat)
    assert sorted(int(number) for ids in id_lists for number in ids.split(",")) == sorted(members["trajectory_id"])
    assert f"reward{branch['reward']:.3f},shownbelow" in flat
    assert f"branchoftrajectory{branch['parent_trajectory']}" in flat
    path = run.trajectories.filter(trajectory_id=branch["trajectory_id"]).agentrl.paths(run).collect()["tokens"][0]
    text = Tokenizer.from_file(str(recorded / "start" / "tokenizer.json")).decode(path, skip_special_tokens=False)
    text_below = re.sub(r"(step\d+:action|observation:|prompt:)", "\n", flat[flat.index("shownbelow") :])
    for piece in re.findall(r"<(?:call|answer|result)>[^<]*<[^<]*>", text):
        assert re.sub(r"\s+", "", piece) in text_below
    tokens = run.draws.filter(trajectory_id=branch["trajectory_id"]).agentrl.tokens(run).collect()
    for step in tokens.partition_by("step", maintain_order=True):
        assert f"action,{len(step)}tokens" in flat
        assert f"advantage{step['advantage'][0]:.3f}" in flat
        assert f"state{step['state_key'][0].hex()[:8]}" in flat


def test_show_colours_advantages_on_a_terminal(agentrl, recorded, monkeypatch) -> None:
    run = scan(recorded)
    tokens = run.draws.filter(iteration=0).agentrl.tokens(run).collect()
    for sign, code in ((1, "32m"), (-1, "31m")):
        chosen = tokens.filter(pl.col("advantage") * sign > 0)["trajectory_id"][0]
        plain = agentrl("show", recorded, chosen)
        assert "\x1b" not in plain
        monkeypatch.setenv("FORCE_COLOR", "1")
        coloured = agentrl("show", recorded, chosen, columns=120)
        path = coloured[coloured.index("prompt: ") :]
        assert re.search(rf"\x1b\[(1;)?{code}<(call|answer)>", path)
        monkeypatch.delenv("FORCE_COLOR")


def test_show_without_a_tokenizer_shows_ids(agentrl, recorded, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(recorded, run, ignore=shutil.ignore_patterns("start", "tokenizer"))
    tokens = scan(run).nodes.collect()["tokens"][0].to_list()
    ids = " ".join(map(str, tokens))
    assert ids in agentrl("show", run, 0)
    output = agentrl("show", run, 0, "--tokenizer", recorded / "start")
    assert output == agentrl("show", recorded, 0)
    assert output == agentrl("show", run, 0, "--tokenizer", recorded / "start" / "tokenizer.json")
    missing = agentrl("show", run, 0, "--tokenizer", tmp_path, status=1)
    assert f"{tmp_path / 'tokenizer.json'} does not exist" in missing
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer" in agentrl("show", run, 0, "--tokenizer", tmp_path, status=1)


def test_text_cannot_control_the_terminal() -> None:
    words = Detokenizer(lambda tokens: "".join(chr(token) for token in tokens))
    assert words.pieces([0x1B, ord("["), ord("\n"), 0x7F, ord("ü")]) == ["\\x1b", "[", "\n", "\\x7f", "ü"]


def test_a_character_of_several_tokens_is_shown_at_its_last_token() -> None:
    text = "a é€😀 b".encode()
    words = Detokenizer(lambda tokens: bytes(tokens).decode(errors="replace"))
    pieces = words.pieces(list(text))
    assert "".join(pieces) == "a é€😀 b"
    assert pieces[2:5] == ["", "é", ""]
    assert "".join(words.pieces([ord("x"), 0xF0, 0x9F])) == "x\ufffd"


def test_unknown_trajectories_name_their_neighbours(agentrl, recorded) -> None:
    last = scan(recorded).trajectories.select(pl.col("trajectory_id").max()).collect().item()
    message = agentrl("show", recorded, last + 5, status=1)
    assert (
        message
        == f"agentrl: the run has no trajectory {last + 5}; give one of the nearest: {last - 2}, {last - 1}, {last}\n"
    )


@pytest.mark.parametrize("command", [*LOOKING, "verify"])
def test_a_path_that_is_not_a_run_is_reported(agentrl, recorded, tmp_path, command) -> None:
    more = {"show": ["0"], "export": ["--to", str(tmp_path / "x.jsonl")], "compare": [recorded]}.get(command, [])
    missing = agentrl(command, tmp_path / "none", *more, status=1)
    assert missing.startswith(f"agentrl: {tmp_path / 'none'} does not exist; give the directory of a run")
    if command == "ls":  # which lists the runs of a folder
        return
    above = agentrl(command, recorded.parent, *more, status=1)
    assert above == f"agentrl: {recorded.parent} is not a run; give one of the runs in it: {recorded}\n"


def test_names_of_folders_cannot_control_the_terminal(agentrl, tmp_path) -> None:
    run = tmp_path / "a\x1b[31m\nb"
    Store.open(run).close()
    message = agentrl("stats", tmp_path, status=1)
    assert message == f"agentrl: {tmp_path} is not a run; give one of the runs in it: {tmp_path}/a\\x1b[31m\\nb\n"
    assert "\x1b" not in agentrl("ls", f"{run}/none", status=1)
    assert "\x1b" not in agentrl("verify", run)


def test_names_of_tasks_cannot_control_the_terminal(agentrl, tmp_path) -> None:
    forest = Forest()
    forest.add_group(0, "a\x1b[31m\nb")
    path = forest.start(0, 0)
    forest.append(path, [1], kind="prompt")
    forest.append(path, [2], kind="action", logprobs=[-1.0])
    forest.finish(path, reward=1.0)
    with Store.open(tmp_path / "run") as store:
        store.append(forest.freeze(), iteration=0)
    assert "a\\x1b[31m\\nb" in agentrl("ls", tmp_path / "run", "--iteration", 0)


def test_train_help_shows_each_default_at_most_once(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    options = re.split(r"\n  --", capsys.readouterr().out)
    assert len(options) > 10
    assert {option.count("(default") for option in options[1:]} == {0, 1}
    assert "None" not in "".join(options[1:])


@pytest.mark.parametrize("command", ["ls", "stats"])
def test_ls_and_stats_accept_an_empty_run(agentrl, tmp_path, command) -> None:
    Store.open(tmp_path / "run").close()
    assert agentrl(command, tmp_path / "run").splitlines()[0].startswith("iteration")
    assert "wait until it has some" in agentrl("show", tmp_path / "run", 0, status=1)


def test_commands_read_while_a_writer_holds_the_run(agentrl, tmp_path) -> None:
    with Store.open(tmp_path / "run") as store:
        batch, _ = grow(0)
        store.append(batch, iteration=0)
        store.flush()
        assert "0 iterations closed, 3 groups" in agentrl("ls", tmp_path / "run")
        assert numbers(agentrl("stats", tmp_path / "run"))[0][:2] == ["0", str(batch.num_draws)]
        assert "shown below" in agentrl("show", tmp_path / "run", 0)


def read(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path, infer_schema_length=None)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_training_rows_are_exported(agentrl, recorded, tmp_path, form) -> None:
    target = tmp_path / f"rows.{form}"
    agentrl("export", recorded, "--to", target)
    rows = read(target)
    run = scan(recorded)
    expected = run.draws.agentrl.sequences(run).collect()
    for name in ("draw_id", "sequence", "tokens", "trainable", "kinds"):
        assert rows[name].to_list() == expected[name].to_list()
    rewards = dict(run.trajectories.select("trajectory_id", "reward").collect().rows())
    assert rows["reward"].to_list() == [rewards[trajectory] for trajectory in rows["trajectory_id"]]
    assert set(rows["source"]) == {"fresh"}
    if form == "parquet":
        assert rows["advantage"].equals(expected["advantage"], null_equal=True)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("table", [field.name for field in fields(Tables)])
def test_tables_are_exported(agentrl, recorded, tmp_path, table) -> None:
    target = tmp_path / "table.parquet"
    agentrl("export", recorded, "--to", target, "--table", table)
    expected = getattr(scan(recorded), table).collect()
    assert read(target).equals(expected, null_equal=True)
    agentrl("export", recorded, "--to", tmp_path / "table.jsonl", "--table", table)
    lines = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    assert len(lines) == len(expected)
    if lines and "state_key" in lines[0]:
        assert [line["state_key"] for line in lines] == [key.hex() for key in expected["state_key"]]


@pytest.mark.parametrize(
    ("text", "chosen"), [("1", [1]), ("1:", [1, 2]), (":1", [0]), ("0:2", [0, 1]), ("7:9", []), (":", [0, 1, 2])]
)
def test_iterations_are_chosen(agentrl, recorded, tmp_path, text, chosen) -> None:
    run = scan(recorded)
    inside = pl.col("iteration").is_in(chosen)
    draws = run.draws.filter(inside).collect()
    groups = run.trajectories.filter(inside).collect()["group_id"].unique()
    nodes = run.nodes.collect().filter(pl.col("group_id").is_in(groups.implode()))
    for table, key, expected in (
        ("rows", "draw_id", draws["draw_id"]),
        ("draw_columns", "draw_id", draws["draw_id"]),
        ("nodes", "node_id", nodes["node_id"]),
        ("node_columns", "node_id", nodes["node_id"]),
    ):
        target = tmp_path / f"{table}.parquet"
        agentrl("export", recorded, "--to", target, "--table", table, "--iterations", text)
        assert read(target)[key].to_list() == expected.to_list()


def test_exports_that_cannot_be(agentrl, recorded, tmp_path) -> None:
    target = tmp_path / "rows.jsonl"
    target.write_text("mine")
    assert f"{target} exists and is never overwritten" in agentrl("export", recorded, "--to", target, status=1)
    assert target.read_text() == "mine"
    for wrong, message in (
        (["--to", tmp_path / "rows.csv"], "the name does not end with .parquet or .jsonl"),
        (["--to", tmp_path / "none" / "rows.jsonl"], f"folder {tmp_path / 'none'} does not exist"),
        (["--to", tmp_path / "x.jsonl", "--iterations", "3:1"], "--iterations is 3:1; give A:B"),
        (["--to", tmp_path / "x.jsonl", "--iterations", "two"], "--iterations is two; give A:B"),
        (
            ["--to", tmp_path / "x.jsonl", "--table", "tasks", "--iterations", "1"],
            "table tasks has no iterations",
        ),
    ):
        assert message in agentrl("export", recorded, *wrong, status=1)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    agentrl("export", recorded, "--to", tmp_path / "rows", "--format", "jsonl")
    assert len((tmp_path / "rows").read_text().splitlines()) == len(scan(recorded).draws.collect())


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_full_disk_leaves_nothing(recorded, tmp_path, name) -> None:
    """Like a full disk: a file may not be longer than 100 bytes."""
    code = (
        "import resource, sys; from agentrl_core.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "export", str(recorded), "--to", str(tmp_path / name)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"{tmp_path / name} cannot be written" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_nothing(recorded, tmp_path) -> None:
    code = """
        import sys, time
        from agentrl_core.cli import export, main
        rows = export._rows

        def slow(tables, chosen):
            parts, schema = rows(tables, chosen)
            return [lambda: print("part", flush=True) or time.sleep(0.2) or parts[0]()] * 1000, schema

        export._rows = slow
        sys.exit(main(sys.argv[1:]))
    """
    command = [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines()), "export", recorded]
    process = subprocess.Popen(
        [*map(str, command), "--to", str(tmp_path / "rows.parquet")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["part\n"] * 3
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=600)
    assert rest.count("part") < 900  # of a thousand: the output stopped
    assert (process.returncode, errors.strip()) == (130, "interrupted")  # rich before 14.3 adds an empty line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", LOOKING)
def test_a_damaged_file_is_named(agentrl, recorded, tmp_path, command) -> None:
    run = tmp_path / "run"
    shutil.copytree(recorded, run)
    file = min((run / "trajectories").glob("*.arrow"))  # the pager has the shown trajectory
    file.write_bytes(file.read_bytes()[:-100])
    more = {"show": ["0"], "export": ["--to", str(tmp_path / "x.jsonl")], "compare": [recorded]}.get(command, [])
    message = agentrl(command, run, *more, status=1)
    assert message.startswith(f"agentrl: {run} cannot be read: ")
    assert message.endswith(f"; run agentrl verify {run}\n")


def test_a_damaged_tree_is_named_with_one_remedy(recorded) -> None:
    circle = NodeColumns(*np.array([[0, 1], [1, 0], [-1, -1], [2, 2]]))
    with pytest.raises(CorruptError) as raised, opened(str(recorded)):
        walk(circle, last=np.array([0]), end=np.array([-1]))
    reason = "the stored tree is damaged: node 1 is its own ancestor"
    assert str(raised.value) == f"{recorded} cannot be read: {reason}; run agentrl verify {recorded}"


@pytest.mark.parametrize("columns", [40, 200, None])
def test_verify_lists_all_findings(agentrl, recorded, monkeypatch, capsys, columns) -> None:
    findings: list[dict[str, Any]] = []
    monkeypatch.setattr(Store, "verify", lambda _: findings, raising=False)
    assert "no errors found" in agentrl("verify", recorded, columns=columns)
    findings += [
        {"folder": "nodes", "kind": "value", "id": 7, "message": "logprobs[2] is NaN"},
        {"folder": "steps", "kind": "damage", "id": None, "message": "its \x1b checksum is not the written one"},
    ]
    assert main(["verify", str(recorded)]) == 1
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "nodes value 7: logprobs[2] is NaN steps damage: its \\x1b checksum is not the written one" in printed
    assert "2 findings" in printed


@pytest.mark.skipif(not hasattr(Store, "verify"), reason="this store cannot verify")
def test_verify_finds_a_flipped_bit(agentrl, recorded, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(recorded, run)
    assert "no errors found" in agentrl("verify", run)
    file = next((run / "nodes").glob("*.arrow"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(run)]) == 1


def test_a_closed_pipe_is_not_an_error(recorded) -> None:
    command = f"{sys.executable} -m agentrl_core show {recorded} 0 | head -1"
    completed = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert (completed.stdout.count("\n"), completed.stderr) == (1, "")


def test_a_missing_package_is_named_with_its_install_command(recorded) -> None:
    code = "import sys; sys.modules['rich'] = None; from agentrl_core.cli import main; sys.exit(main(sys.argv[1:]))"
    completed = subprocess.run(
        [sys.executable, "-c", code, "ls", recorded], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (1, "agentrl: ls needs rich: pip install 'agentrl-core[cli]'\n")


def test_without_a_command_the_commands_are_listed() -> None:
    completed = program()
    assert completed.returncode == 0
    assert all(f"    {command} " in completed.stdout for command in COMMANDS)


def test_invalid_arguments_are_reported() -> None:
    for arguments, message in (
        (["lss"], "invalid choice: 'lss'"),
        (["ls", "run", "--nonsense"], "agentrl ls: error: unrecognized arguments: --nonsense"),
        (["show", "run"], "the following arguments are required: TRAJECTORY"),
        (["show", "run", "x"], "argument TRAJECTORY: invalid int value: 'x'"),
        (["export", "run", "--to", "x.jsonl", "--table", "no"], "argument --table: invalid choice: 'no'"),
    ):
        completed = program(*arguments)
        assert completed.returncode == 2
        assert message in completed.stderr
