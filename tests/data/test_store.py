"""The Store: acknowledged data survives any failure of the writing process."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forests import Token, grow, rebuilt, same
from stores import assert_same_as_trained, scan, trained

from agentrl_core import Batch, Forest, Store
from agentrl_core.exceptions import CorruptError, InvalidInputError, NotFoundError, StoreError

SUPPORT = Path(__file__).parents[1] / "support"


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
    rebuilt_paths = rebuilt(nodes, trajectories)
    assert rebuilt_paths == [path.tokens for path in paths], (
        "the trees come back exactly, with log-probs, versions and masks"
    )
    sampled = [token for path in rebuilt_paths for token in path if token.kind == "action"]
    assert len(sampled) > 100
    assert all(
        isinstance(token, Token) and token.logprob is not None and token.version is not None for token in sampled
    )


def test_ids_that_are_taken_are_refused(tmp_path: Path) -> None:
    batch, _ = grow(1)
    with Store.open(tmp_path) as store:
        store.append(batch, iteration=0)
        with pytest.raises(
            InvalidInputError,
            match=r"(node|trajectory|group|draw)_id 0, but ids below \d+ are taken .* store.rebase\(batch\)",
        ):
            store.append(batch, iteration=0)
        store.append(store.rebase(batch), iteration=0)
        assert len(store.draws) == 2 * batch.num_draws


def test_only_a_batch_is_written(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        for wrong in (None, grow(0)[0].draws):
            for write in (
                lambda wrong: store.append(wrong, iteration=0),
                lambda wrong: store.close_iteration(wrong, {}),
                store.rebase,
            ):
                with pytest.raises(InvalidInputError, match=r"batch is a \w+; give a Batch"):
                    write(wrong)
        assert store.flush() == 0


def adopting(batch: Batch, trajectory: int) -> Batch:
    """Return a batch that continues a trajectory of another one."""
    forest = Forest(iteration=0, seed=3)
    forest.add_group(0, "task")
    path = forest.fork(forest.adopt(0, batch, trajectory))
    forest.append(path, [7], kind="action", logprobs=[-0.5])
    forest.step(path, reward=1.0)
    forest.finish(path, reward=1.0)
    return forest.freeze()


def test_rows_that_are_not_stored_are_not_taken_for_stored_ones(tmp_path: Path) -> None:
    stranger = grow(1, groups=1, members=2, turns=1)[0]
    adopted = adopting(stranger, 0)
    with Store.open(tmp_path) as store:
        with pytest.raises(InvalidInputError, match=r"stored rows with node_id 0, .* of this store"):
            store.rebase(adopted)
        other = grow(2, groups=3)[0]
        store.append(other, iteration=0)
        with pytest.raises(InvalidInputError, match=r"stored rows with node_id 0, .* of this store"):
            store.append(store.rebase(adopted), iteration=0)
        stored = store.rebase(stranger)
        store.append(stored, iteration=0)
        first = pl.DataFrame(stored.trajectories)["trajectory_id"][0]
        store.append(store.rebase(adopting(stored, first)), iteration=0)
        assert store.verify() == []
        assert len(store.trajectories) == len(other.trajectories) + len(stranger.trajectories) + 1


def test_an_iteration_can_be_closed_only_with_its_own_batch(tmp_path: Path) -> None:
    batch, _ = grow(1)
    with Store.open(tmp_path) as store:
        store.append(batch, iteration=0)
        with pytest.raises(
            InvalidInputError, match=rf"1 draws that differ from the {batch.num_draws} draws appended for iteration 0"
        ):
            store.close_iteration(batch.select_draws([0]), {})
        assert store.iteration == 0
        store.close_iteration(batch, {})


def test_one_writes_and_others_read(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        first = trained(store, 0)
        with pytest.raises(
            StoreError, match="lock is locked: another process writes this store, or this one has it open"
        ) as busy:
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


def test_copying_the_run_does_not_give_up_its_lock(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run") as store:
        trained(store, 0)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        (tmp_path / "run" / "lock").read_bytes()
        code = f"import agentrl_core as arl; arl.Store.open({str(tmp_path / 'run')!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process writes this store" in other.stderr
        trained(store, 1)
    for name, iterations in (("run", 2), ("copy", 1)):
        with Store.open(tmp_path / name) as store:
            assert (store.iteration, store.verify()) == (iterations, [])


def test_calls_on_a_closed_store_raise(tmp_path: Path) -> None:
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
@pytest.mark.parametrize("name", ["nodes/000000000000-00000001.arrow", "step_columns/000000000000-00000001.arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str, name: str) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
    path = tmp_path / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        path.write_bytes({"cut": content[:-1], "bit": bytes(flipped), "empty": b""}[damage])
    with Store.open(tmp_path, read_only=True) as store:
        with pytest.raises((CorruptError, StoreError), match=name) as caught:
            store.batch(0)
        assert isinstance(caught.value, StoreError if damage == "gone" else CorruptError)
        assert damage == "gone" or "bytes" in str(caught.value)
        folder = name.split("/", maxsplit=1)[0]
        assert {row["kind"] for row in store.verify() if row["folder"] == folder} == {"damage"}


@pytest.mark.parametrize("text", [b"", b"{}", b"{}\nabc\n", b"\xff\xfe\n\n"])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: bytes) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
    (tmp_path / "manifest" / "00000001.json").write_bytes(text)
    for read_only in (True, False):
        with pytest.raises(CorruptError, match=r"manifest/00000001\.json"):
            Store.open(tmp_path, read_only=read_only)


def test_a_store_that_lost_its_manifests_is_left_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
        trained(store, 1)
    for manifest in (tmp_path / "manifest").iterdir():
        manifest.unlink()
    before = sorted(tmp_path.rglob("*.arrow"))
    with pytest.raises(CorruptError, match=r"000000000000-0000000\d\.arrow belongs to a later commit"):
        Store.open(tmp_path)
    assert sorted(tmp_path.rglob("*.arrow")) == before


def test_a_path_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a store"):
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
    from stores import trained
    from agentrl_core import Store

    with Store.open(sys.argv[1]) as store:
        print("open", store.iteration, flush=True)
        while True:
            trained(store, store.iteration)
            print("closed", store.iteration, flush=True)
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    code = textwrap.dedent(WRITER).format(here=str(SUPPORT))
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("open")
    return process


def test_stock_tools_read_while_another_process_writes(tmp_path: Path) -> None:
    process = writer(tmp_path)
    counts = []
    try:
        deadline = time.monotonic() + 600
        while len(set(counts)) < 8:
            assert time.monotonic() < deadline
            if not list((tmp_path / "nodes").glob("*.arrow")):
                continue
            try:
                nodes = scan(tmp_path / "nodes")
            except (FileNotFoundError, pl.exceptions.PolarsError):
                continue  # files are just being merged
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


def test_replayed_trajectories_are_stored_only_once(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
        old = pl.DataFrame(store.trajectories)["trajectory_id"].to_list()[:3]
        nodes = len(store.nodes)
        fresh = grow(1, iteration=1)[0]
        batch = Batch.concat([fresh, store.trajectory_batch(old)])
        batch = batch.with_draws(
            old, source="replay", probability=[0.1, 0.2, 0.3], old_logprob="recomputed", reason="old"
        )
        batch = store.rebase(batch)
        store.append(batch, iteration=1)
        store.close_iteration(batch.with_columns("draw", advantage=np.arange(float(batch.num_draws))), {})
        assert len(store.nodes) == nodes + len(fresh.nodes)
        stored = store.batch(1)
        assert same(stored, batch)
        draws = pl.DataFrame(stored.draws).tail(3)
        assert draws["trajectory_id"].to_list() == old
        assert draws["position"].to_list() == list(range(fresh.num_draws, batch.num_draws))
        assert (draws["source"][0], draws["old_logprob"][0], draws["reason"][0]) == (1, 1, "old")
        with pytest.raises(InvalidInputError, match=r"trajectory_ids\[0\] is 99999, which is not in the batch"):
            batch.with_draws([99999])
        with pytest.raises(NotFoundError, match="no trajectory 99999"):
            store.trajectory_batch([99999])
        assert store.verify() == []


def test_appends_wait_for_a_flush_unless_sync_is_always(tmp_path: Path) -> None:
    batch, _ = grow(1)
    with Store.open(tmp_path / "batch") as store, Store.open(tmp_path / "always", sync="always") as other:
        assert store.append(batch, iteration=0) == other.append(batch, iteration=0) == 1
        assert (store.sequence, other.sequence) == (0, 1)
        with Store.open(tmp_path / "batch", read_only=True) as reader:
            assert len(reader.nodes) == 0
            assert store.flush() == 1
            assert len(reader.nodes) == 0, "a snapshot"
            reader.refresh()
            assert len(reader.nodes) == len(batch.nodes)
        store.append(store.rebase(batch), iteration=0)
    with Store.open(tmp_path / "batch", read_only=True) as reader:
        assert reader.sequence == 2, "closing is durable"
    with pytest.raises(InvalidInputError, match='sync is "often"'):
        Store.open(tmp_path, sync="often")


def test_upkeep(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        batches = [trained(store, iteration) for iteration in range(4)]
        reader = pickle.loads(pickle.dumps(store))
        store.drop_before(2)
        assert [store.has_batch(iteration) for iteration in range(4)] == [False, False, True, True]
        assert_same_as_trained(store.batch(3), batches[3])
        assert_same_as_trained(reader.batch(3), batches[3])
        with pytest.raises(NotFoundError, match="those from 2 on are kept"):
            reader.batch(1)
        with pytest.raises(NotFoundError, match="call refresh"):
            len(reader.nodes)
        reader.refresh()
        assert_same_as_trained(reader.batch(3), batches[3])
        assert store.compact() >= 0
        with pytest.raises(InvalidInputError, match="only 4 iterations are closed and can be dropped"):
            store.drop_before(5)
        writes = pl.DataFrame(store.write_log)
        assert writes["iteration"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert writes["kind"].to_list() == [0, 2] * 4
        assert [json.loads(state)["iteration"] for state in writes["state"].drop_nulls()] == [0, 1, 2, 3]
        nodes = pl.scan_ipc(tmp_path / "nodes" / "*.arrow").collect()
        assert nodes.equals(pl.DataFrame(store.nodes), null_equal=True)


def test_a_store_and_a_batch_are_pickled(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        first = trained(store, 0)
        text = pickle.dumps(store)
        trained(store, 1)
        copy = pickle.loads(text)
        assert (copy.iteration, len(copy.draws)) == (1, first.num_draws)
        with pytest.raises(InvalidInputError, match="open for reading only"):
            copy.append(first, iteration=1)
    buffers: list[pickle.PickleBuffer] = []
    small = pickle.dumps(first, protocol=5, buffer_callback=buffers.append)
    assert len(small) < 1000 < sum(buffer.raw().nbytes for buffer in buffers)
    assert_same_as_trained(pickle.loads(small, buffers=buffers), first)
    for protocol in (4, 5):
        assert_same_as_trained(pickle.loads(pickle.dumps(first, protocol=protocol)), first)


def use_in_child(store: Store, answers: multiprocessing.Queue[str]) -> None:
    for call in (lambda: store.iteration, lambda: store.append(grow(1)[0], iteration=0), store.close):
        try:
            call()
            answers.put("no error")
        except NotImplementedError as error:
            answers.put(str(error))
    try:
        Store.open(store_path())
        answers.put("no error")
    except StoreError as error:
        answers.put(str(error))


def store_path() -> str:
    return os.environ["AGENTRL_TEST_STORE"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_must_reopen_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_TEST_STORE", str(tmp_path))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with Store.open(tmp_path) as store:
        child = context.Process(target=use_in_child, args=(store, answers))
        child.start()
        texts = [answers.get(timeout=600) for _ in range(4)]
        child.join(600)
        assert all("which was forked from it; open it again here" in text for text in texts[:3]), texts
        assert "is locked" in texts[3], "the parent holds the lock"
        trained(store, 0)
    assert child.exitcode == 0


def described(iteration: int, components: list[str] | None, estimator: str) -> tuple[Batch, bytes]:
    """A trajectory with rewards of some components, entropies, and a picture; and the picture's key."""
    forest = Forest(iteration=iteration, reward_components=components, entropies=estimator)
    forest.add_group(0, "task")
    path = forest.start(0, 0)
    picture = forest.add_blob(f"picture {iteration}".encode())
    forest.append(path, [1, 2], kind="prompt", blobs=[picture])
    forest.append(path, [3], kind="action", logprobs=[-0.5], entropies=[0.25])
    forest.step(path, reward=1.0, rewards=None if components is None else [1.0] * len(components))
    forest.finish(path, reward=1.0)
    return forest.freeze(), picture


def test_names_of_rewards_and_pictures_stay_with_their_rows(tmp_path: Path) -> None:
    reward_names = [(["answer"], "top_10"), (["answer", "format"], "exact"), (None, "exact"), (["answer"], "top_10")]
    with Store.open(tmp_path) as store:
        for iteration, (components, estimator) in enumerate(reward_names):
            batch, picture = described(iteration, components, estimator)
            for copy in (batch, store.rebase(batch), *(pickle.loads(pickle.dumps(batch, p)) for p in (4, 5))):
                assert (copy.reward_components, copy.entropies) == (components, estimator)
                assert copy.blob(picture) == f"picture {iteration}".encode()
            store.append(store.rebase(batch), iteration=iteration)
            store.close_iteration(store.batch(iteration), {})
        store.compact()
        for iteration, (components, estimator) in enumerate(reward_names):
            for batch in (store.batch(iteration), store.trajectory_batch([iteration])):
                assert (batch.reward_components, batch.entropies) == (components, estimator)
            picture = pl.DataFrame(store.batch(iteration).nodes)["blobs"].explode()[0]
            assert store.blob(picture) == store.batch(iteration).blob(picture) == f"picture {iteration}".encode()
            with pytest.raises(NotFoundError, match="A pickled batch of a store has no blobs"):
                pickle.loads(pickle.dumps(store.batch(iteration))).blob(picture)
        with pytest.raises(InvalidInputError, match=r'different components, \["answer"\] and \["answer","format"\]'):
            Batch.concat([store.batch(0), store.batch(1)])
        with pytest.raises(InvalidInputError, match="sha256 has 3 bytes; give the 32"):
            batch.blob(b"abc")
        # Other tools read files with different metadata about their rows.
        assert pl.scan_ipc(tmp_path / "steps" / "*.arrow").collect()["rewards"].list.len().to_list() == [1, 2, None, 1]
        assert pickle.loads(pickle.dumps(store.nodes)).num_rows == 8


def test_numbers_of_a_state_are_kept_exactly(tmp_path: Path) -> None:
    state = {"generator": np.random.default_rng(0).bit_generator.state, "loss": 0.9150125185977553, "tiny": 5e-324}
    with Store.open(tmp_path) as store:
        store.close_iteration(Batch.concat([]), state)
    with Store.open(tmp_path, read_only=True) as store:
        assert store.state == state
        rng = np.random.default_rng()
        rng.bit_generator.state = store.state["generator"]
        assert rng.random() == np.random.default_rng(0).random(), "128-bit numbers too"


def nested(depth: int) -> dict[str, object]:
    state: dict[str, object] = {"end": 1}
    for _ in range(depth - 1):
        state = {"in": state}
    return state


def test_a_state_is_not_nested_deeper_than_it_can_be_read(tmp_path: Path) -> None:
    odd = {"$serde_json::private::Number": "5", "$serde_json::private::RawValue": "[1"}
    with Store.open(tmp_path) as store:
        for depth in (65, 126, 127, 128, 5000):
            with pytest.raises(
                InvalidInputError, match=r"state is nested \d+ deep, but at most 64|cannot be saved as JSON"
            ):
                store.close_iteration(Batch.concat([]), nested(depth))
        assert store.iteration == 0
        store.close_iteration(Batch.concat([]), {"odd": odd, **nested(63)})
    with Store.open(tmp_path) as store:
        assert store.state == {"odd": odd, **nested(63)}


def test_a_stored_batch_keeps_the_state_of_its_components(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        batch = store.rebase(grow(0)[0])
        store.append(batch, iteration=0)
        assert store.batch(0).state == {}
        store.close_iteration(batch.with_state({"baseline": [0.5]}), {})
        assert store.batch(0).state == {"baseline": [0.5]}
