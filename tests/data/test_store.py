"""The Store: what is acknowledged is there, whatever happens to the process that wrote it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forests import TABLES, Token, grow, rebuilt, same

from agentrl_core import Batch, Store
from agentrl_core.exceptions import CorruptError, InvalidInputError, NotFoundError, StoreError

HERE = Path(__file__).parent


def trained(store: Store, iteration: int) -> Batch:
    """What a loop does with one iteration."""
    batch = store.rebase(grow(iteration, iteration=iteration)[0])
    store.append(batch, iteration=iteration)
    rng = np.random.default_rng(iteration)
    batch = batch.with_columns("draw", advantage=rng.random(batch.num_draws))
    batch = batch.with_columns("token", weight=batch.token_weights(np.arange(batch.num_draws)))
    batch = batch.with_columns("node_token", reference_logprob=-rng.random(batch.offsets("node_token")[-1]))
    batch = batch.with_source("mine", {"clip": 0.2})
    store.close_iteration(batch, {"iteration": iteration, "metrics": {"loss": 0.5, "kl": float("nan")}})
    return batch


def assert_same_as_trained(found: Batch, expected: Batch) -> None:
    assert same(found, expected)
    assert pl.DataFrame(found.nodes).equals(pl.DataFrame(expected.nodes), null_equal=True), "the time of making too"
    for name in ("draw_columns", "step_columns", "node_columns"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert pl.DataFrame(mine).equals(pl.DataFrame(other), null_equal=True)
    for name, level in [("advantage", "draw"), ("weight", "token"), ("reference_logprob", "node_token")]:
        column = expected.column(name, level)
        assert found.column(name, level).dtype == column.dtype
        np.testing.assert_array_equal(found.column(name, level), column)


def test_batches_come_back_as_they_were_trained(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        assert (store.iteration, store.state, store.path) == (0, {}, str(tmp_path))
        batches = [trained(store, iteration) for iteration in range(3)]
        assert_same_as_trained(store.batch(1), batches[1])
    with Store.open(str(tmp_path)) as store:
        assert (store.iteration, store.state["iteration"]) == (3, 2)
        assert store.state["metrics"] == {"loss": 0.5, "kl": None}
        for iteration, expected in enumerate(batches):
            assert store.has_batch(iteration)
            assert_same_as_trained(store.batch(iteration), expected)
        assert not store.has_batch(3)
        for name in ("nodes", "steps", "trajectories", "draws"):
            expected = pl.concat(pl.DataFrame(getattr(batch, name)) for batch in batches)
            assert pl.DataFrame(getattr(store, name)).equals(expected, null_equal=True)
            assert pl.scan_ipc(tmp_path / name / "*.arrow").collect().equals(expected, null_equal=True)


def test_every_sampled_token_is_in_the_files(tmp_path: Path) -> None:
    batch, paths = grow(7, groups=5, turns=6)
    with Store.open(tmp_path) as store:
        store.append(batch, iteration=0)
    nodes, trajectories = (pl.read_ipc(next((tmp_path / name).glob("*.arrow"))) for name in ("nodes", "trajectories"))
    found = rebuilt(nodes, trajectories)
    assert found == [path.tokens for path in paths], "the trees come back exactly, with log-probs, versions and masks"
    sampled = [token for path in found for token in path if token.kind == "action"]
    assert len(sampled) > 100
    assert all(
        isinstance(token, Token) and token.logprob is not None and token.version is not None for token in sampled
    )


def test_ids_that_are_taken_are_refused(tmp_path: Path) -> None:
    batch, _ = grow(1)
    with Store.open(tmp_path) as store:
        store.append(batch, iteration=0)
        with pytest.raises(InvalidInputError, match=r"node_id 0, but ids below \d+ are taken .* store.rebase\(batch\)"):
            store.append(batch, iteration=1)
        store.append(store.rebase(batch), iteration=1)
        assert len(store.draws) == 2 * batch.num_draws


def test_an_iteration_is_closed_with_its_own_batch(tmp_path: Path) -> None:
    batch, _ = grow(1)
    with Store.open(tmp_path) as store:
        store.append(batch, iteration=0)
        with pytest.raises(
            InvalidInputError, match=rf"1 draws that are not the {batch.num_draws} draws committed for iteration 0"
        ):
            store.close_iteration(batch.select_draws([0]), {})
        assert store.iteration == 0
        store.close_iteration(batch, {})


def test_one_writes_and_others_read(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        first = trained(store, 0)
        with pytest.raises(StoreError, match="lock is locked: another process writes this store") as busy:
            Store.open(tmp_path)
        assert isinstance(busy.value, OSError)
        code = f"import agentrl_core as arl; arl.Store.open({str(tmp_path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process writes this store" in other.stderr
        with Store.open(tmp_path, read_only=True) as reader:
            trained(store, 1)
            assert (reader.iteration, len(reader.draws)) == (1, first.num_draws), "a snapshot"
            assert_same_as_trained(reader.batch(0), first)
            with pytest.raises(NotFoundError, match="no training batch of iteration 1"):
                reader.batch(1)
            for write in (lambda: reader.append(first, iteration=5), lambda: reader.close_iteration(first, {})):
                with pytest.raises(InvalidInputError, match="is open for reading only"):
                    write()
    Store.open(tmp_path).close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.close()
    store.close()
    for call in (
        lambda: store.nodes,
        lambda: store.iteration,
        lambda: store.batch(0),
        lambda: store.append(grow(1)[0], iteration=0),
    ):
        with pytest.raises(InvalidInputError, match="the store is closed; open it again"):
            call()


@pytest.mark.parametrize("damage", ["cut", "bit", "gone", "empty"])
@pytest.mark.parametrize("name", ["nodes/00000001.arrow", "step_columns/00000002.arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str, name: str) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
    path = tmp_path / name
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        path.write_bytes({"cut": whole[:-1], "bit": bytes(flipped), "empty": b""}[damage])
    with Store.open(tmp_path, read_only=True) as store, pytest.raises((CorruptError, StoreError), match=name) as caught:
        store.batch(0)
    assert isinstance(caught.value, StoreError if damage == "gone" else CorruptError)


@pytest.mark.parametrize("text", [b"", b"{}", b"{}\nabc\n", b"\xff\xfe\n\n"])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: bytes) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
    (tmp_path / "manifest" / "00000002.json").write_bytes(text)
    for read_only in (True, False):
        with pytest.raises(CorruptError, match=r"manifest/00000002\.json"):
            Store.open(tmp_path, read_only=read_only)


def test_a_store_that_lost_its_manifests_is_left_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
        trained(store, 1)
    for manifest in (tmp_path / "manifest").iterdir():
        manifest.unlink()
    before = sorted(tmp_path.rglob("*.arrow"))
    with pytest.raises(CorruptError, match=r"00000003\.arrow belongs to a later commit"):
        Store.open(tmp_path)
    assert sorted(tmp_path.rglob("*.arrow")) == before


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no store"):
        Store.open(tmp_path / "nothing", read_only=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Store.open(tmp_path / "file")
    with Store.open(tmp_path / "new" / "run") as store:
        assert len(store.nodes) == 0
        assert pl.DataFrame(store.nodes).columns == store.nodes.column_names
        with pytest.raises(NotFoundError, match="no training batch of iteration 0; 0 iterations are closed"):
            store.batch(0)


WRITER = """
    import sys
    sys.path.insert(0, {here!r})
    from test_store import trained
    from agentrl_core import Store

    with Store.open(sys.argv[1]) as store:
        print("open", store.iteration, flush=True)
        while True:
            trained(store, store.iteration)
            print("closed", store.iteration, flush=True)
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    code = textwrap.dedent(WRITER).format(here=str(HERE))
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("open")
    return process


def test_stock_tools_read_while_another_process_writes(tmp_path: Path) -> None:
    process = writer(tmp_path)
    counts = []
    try:
        deadline = time.monotonic() + 60
        while len(set(counts)) < 8:
            assert time.monotonic() < deadline
            if not list((tmp_path / "nodes").glob("*.arrow")):
                continue
            nodes = pl.scan_ipc(tmp_path / "nodes" / "*.arrow").collect()
            assert nodes["node_id"].to_list() == list(range(len(nodes)))
            assert (nodes["tokens"].list.len() > 0).all()
            with Store.open(tmp_path, read_only=True) as reader:
                committed = reader.iteration
                for iteration in range(max(committed - 1, 0), committed):
                    assert reader.batch(iteration).has("weight", "token")
            counts.append(len(nodes))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert counts == sorted(counts)


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    done = 0
    for _ in range(20):
        process = writer(tmp_path)
        acknowledged = done
        stop = time.monotonic() + rng.uniform(0.0, 0.08)
        while time.monotonic() < stop or acknowledged == done:
            line = process.stdout.readline().split()
            acknowledged = int(line[1])
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        acknowledged = max([acknowledged, *(int(number) for number in rest[1::2])])
        with Store.open(tmp_path) as store:
            # The next iteration may be on disk with nobody left to say so.
            assert store.iteration in (acknowledged, acknowledged + 1)
            done = store.iteration
            for iteration in range(acknowledged):
                assert store.has_batch(iteration)
            manifests = [path.stem for path in (tmp_path / "manifest").iterdir()]
            files = {path.stem for name in TABLES for path in (tmp_path / name).iterdir()}
            assert files <= set(manifests), "nothing is left of the commit that was cut off"
            assert not list(tmp_path.rglob("*.tmp"))
            for name in ("nodes", "draws", "step_columns"):
                scanned = pl.scan_ipc(tmp_path / name / "*.arrow").collect()
                if name != "step_columns":  # which has no property: it belongs to batches
                    assert scanned.equals(pl.DataFrame(getattr(store, name)), null_equal=True)
            if store.has_batch(store.iteration):
                # Committed and not closed: closed by a loop that goes on.
                store.close_iteration(store.batch(store.iteration), {})
                done = store.iteration
    with Store.open(tmp_path, read_only=True) as store:
        assert store.iteration == done >= 20
        for iteration in range(done):
            assert_facts(store.batch(iteration), iteration)


def assert_facts(found: Batch, iteration: int) -> None:
    """The batch of an iteration holds what `trained` grew for it, wherever its ids begin."""
    expected, _ = grow(iteration, iteration=iteration)
    assert found.column("token", "token").tolist() == expected.column("token", "token").tolist()
    logprobs = found.column("behaviour_logprob", "token")
    np.testing.assert_array_equal(logprobs, expected.column("behaviour_logprob", "token"))
    np.testing.assert_array_equal(found.column("reward", "draw"), expected.column("reward", "draw"))


def test_state_is_kept_as_json(tmp_path: Path) -> None:
    batch = Batch.concat([])
    with Store.open(tmp_path) as store:
        state = {"a": [1, 2.5, None], "b": {"c": np.float32(0.5), "d": np.int64(3)}, "e": float("inf"), "f": "ü"}
        store.close_iteration(batch, state)
        assert store.state == {"a": [1, 2.5, None], "b": {"c": 0.5, "d": 3}, "e": None, "f": "ü"}
        with pytest.raises(InvalidInputError, match="state cannot be saved as JSON: Object of type set"):
            store.close_iteration(batch, {"a": {1, 2}})
        assert store.iteration == 1
    text = max((tmp_path / "manifest").iterdir()).read_text().splitlines()[0]
    assert json.loads(text)["state"]["f"] == "ü"
