"""docs/format.md: reading stores by the rules of the page, with pyarrow and json alone, gives the same stores."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forests import grow
from pages import run, text_of
from small_world import SmallWorld
from stores import trained

import agentrl_core as arl
from agentrl_core import recipes

pa = pytest.importorskip("pyarrow")
compute = pytest.importorskip("pyarrow.compute")
ipc = pytest.importorskip("pyarrow.ipc")
xxhash = pytest.importorskip("xxhash")

ITERATIONS = 18  # enough to merge small files
TABLES = ("nodes", "steps", "trajectories", "draws", "tasks", "decisions", "metrics")

FACTS = {"step": {"flawed": "number", "tool": "key"}, "trajectory": {"answer": "key"}}


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Return the names that the code of the page defines."""
    names = run("format")
    assert {"manifest", "table", "arrays", "tokens", "records"} <= names.keys()
    assert not [name for name in names if "agentrl" in name]
    return names


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arl.Store]:
    """Return a store of many iterations, with an iteration in progress."""
    with arl.Store.open(tmp_path_factory.mktemp("plain") / "run") as store:
        for iteration in range(ITERATIONS):
            trained(store, iteration)
        store.append(store.rebase(grow(99, iteration=ITERATIONS)[0]), iteration=ITERATIONS)
        store.flush()
        yield store


@pytest.fixture(scope="module")
def store_of_facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arl.Store]:
    """Return a store with facts, an image, arrays that change, and live records."""
    with arl.Store.open(tmp_path_factory.mktemp("facts") / "run") as store:
        arrays = {"a/means": np.arange(40.0), "a/table": np.arange(12, dtype=np.int32).reshape(4, 3)}
        for iteration in range(4):
            forest = arl.Forest(iteration=iteration, facts=FACTS, reward_components=["style", "truth"])
            forest.add_group(0, "Überall")
            trajectory = forest.start(0, member=0)
            image = forest.add_blob(b"an image")
            forest.append(trajectory, [1, 2], kind="prompt", blobs=[image])
            routes = {"experts": np.array([[0, iteration]], np.uint8)}
            forest.append(trajectory, [3], kind="action", logprobs=[-0.5], policy_version=iteration, columns=routes)
            forest.step(trajectory, rewards=[0.5, 1.0], facts={"flawed": 1.0} if iteration else {"tool": "search"})
            forest.finish(trajectory, reward=1.0, facts={"answer": "42"} if iteration else {})
            batch = store.rebase(forest.freeze())
            store.append(batch, iteration=iteration)
            arrays = {name: values.copy() for name, values in arrays.items()}
            if iteration == 1:  # rows that change, and one more
                arrays["a/means"] = np.append(arrays["a/means"], 7.0)
                arrays["a/means"][3] = -1.0
                arrays["a/table"][2] = 9
            if iteration == 2:
                del arrays["a/table"]
            store.close_iteration(batch, {"iteration": iteration}, arrays)
        log = store.rollout_log(4)
        log.append(b"0.1/segment", b"payload")
        log.append(b"0.2/segment", b"")
        yield store


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arl.Store]:
    """Return a store that a Collector wrote."""
    world = SmallWorld()
    with arl.Store.open(tmp_path_factory.mktemp("collected") / "run") as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store)
        for _ in range(3):
            collect.end_iteration(recipes.GRPO.credit(collect(tasks=2, group_size=4)), {"loss": 0.5})
        yield store


def rows(value: Any) -> list[dict[str, Any]]:
    return pa.table(value).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("tasks", "decisions")])
def test_tables_are_read_without_the_library(page: dict[str, Any], store: arl.Store, name: str) -> None:
    expected = rows(getattr(store, name))
    assert len(expected) >= ITERATIONS
    # As text: NaN is not equal to itself.
    assert repr(page["table"](store.path, name).to_pylist()) == repr(expected)


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_a_collector_are_read_without_the_library(
    page: dict[str, Any], collected: arl.Store, name: str
) -> None:
    expected = rows(getattr(collected, name))
    assert len(expected) >= 3
    assert repr(page["table"](collected.path, name).to_pylist()) == repr(expected)


def test_facts_are_read_without_the_library(page: dict[str, Any], store_of_facts: arl.Store) -> None:
    for name in ("steps", "trajectories", "nodes"):
        assert page["table"](store_of_facts.path, name).to_pylist() == rows(getattr(store_of_facts, name))
    steps = page["table"](store_of_facts.path, "steps")
    assert steps["facts"].to_pylist()[:2] == [{"flawed": None, "tool": "search"}, {"flawed": 1.0, "tool": None}]
    assert json.loads(steps.schema.metadata[b"reward_components"]) == ["style", "truth"]
    assert page["manifest"](store_of_facts.path)["facts"] == FACTS


def test_the_write_log_finds_the_computed_columns_of_an_iteration(page: dict[str, Any], store: arl.Store) -> None:
    writes = page["table"](store.path, "journal")
    assert writes.to_pylist() == rows(store.write_log)
    [close] = writes.filter(
        compute.and_(compute.equal(writes["iteration"], 5), compute.equal(writes["kind"], 2))
    ).to_pylist()
    batch = store.batch(5)
    for name in ("draw_columns", "step_columns", "node_columns"):
        first, end = close[f"{name}_first"], close[f"{name}_end"]
        actual = page["table"](store.path, name, first).slice(0, end - first)
        expected = rows(getattr(batch, name))
        assert len(expected) > 3
        assert actual.to_pylist() == expected
    assert json.loads(close["state"])["iteration"] == 5


def test_arrays_are_read_without_the_library(page: dict[str, Any], store_of_facts: arl.Store, store: arl.Store) -> None:
    kinds = set(page["table"](store_of_facts.path, "states")["kind"].to_pylist())
    assert kinds == {0, 1, 2}
    actual, expected = page["arrays"](store_of_facts.path), store_of_facts.arrays
    expected = expected() if callable(expected) else expected
    assert actual.keys() == expected.keys() == {"a/means"}
    np.testing.assert_array_equal(actual["a/means"], expected["a/means"])
    assert page["arrays"](store.path) == {}


def test_the_tokens_of_paths(page: dict[str, Any], tmp_path: Path) -> None:
    batch, paths = grow(7, groups=8, members=4)
    with arl.Store.open(tmp_path / "run") as store:
        store.append(batch, iteration=0)
        store.flush()
        nodes = {node["node_id"]: node for node in page["table"](store.path, "nodes").to_pylist()}
        trajectories = page["table"](store.path, "trajectories").to_pylist()
    expected = [[token.token for token in path.tokens] for path in paths]
    actual = [page["tokens"](nodes, row["leaf_node_id"], row["leaf_end"]) for row in trajectories]
    assert actual == expected
    assert any(row["parent_end"] is not None for row in nodes.values()), "no fork inside of a node"


def test_live_records_are_read_up_to_where_they_were_cut_off(page: dict[str, Any], store_of_facts: arl.Store) -> None:
    path = Path(store_of_facts.path, "live", "4.records")
    expected = [(b"0.1/segment", b"payload"), (b"0.2/segment", b"")]
    assert list(page["records"](path)) == expected == store_of_facts.rollout_log(4).records()
    truncated = path.with_name("cut")
    truncated.write_bytes(path.read_bytes()[:-1])
    assert list(page["records"](truncated)) == expected[:1]
    truncated.unlink()


def test_blobs_are_named_by_their_hash(store_of_facts: arl.Store) -> None:
    name = hashlib.sha256(b"an image").hexdigest()
    assert Path(store_of_facts.path, "blobs", name[:2], name).read_bytes() == b"an image"


def test_names_and_checksums_are_those_of_the_page(page: dict[str, Any], store: arl.Store) -> None:
    known = page["manifest"](store.path)
    [path] = Path(store.path, "manifest").iterdir()
    assert path.name == f"{known['version']:08}.json"
    body, checksum, nothing = path.read_bytes().rsplit(b"\n", 2)
    assert (xxhash.xxh3_128_hexdigest(body).encode(), b"") == (checksum, nothing)
    checked = several = bounded = 0
    for folder, segments in known["segments"].items():
        names = {f"{segment['first_row']:012}-{segment['commit']:08}.arrow" for segment in segments}
        assert {segment_file.name for segment_file in Path(store.path, folder).glob("*.arrow")} == names
        row = 0
        for segment in segments:
            data = Path(store.path, folder, f"{segment['first_row']:012}-{segment['commit']:08}.arrow").read_bytes()
            count, keys, (begin, end, digest) = segment["sealed"]
            assert (segment["first_row"], end) == (row, len(data))
            assert xxhash.xxh3_64_intdigest(data[begin:end]) == digest
            file = ipc.open_file(pa.py_buffer(data))
            blocks = json.loads(file.metadata[b"agentrl_blocks"])
            assert sum(block[0] for block in blocks) == count
            assert [min(block[1] for block in blocks), max(block[2] for block in blocks)] == keys
            from_, ends = 0, block_ends(data)
            assert ends[-1] == begin
            for (_, _, _, hash_), to in zip(blocks, ends, strict=True):
                assert xxhash.xxh3_64_intdigest(data[from_:to]) == hash_
                from_, checked = to, checked + 1
            several += len(blocks) > 1
            for column, bounds in json.loads(file.metadata.get(b"agentrl_bounds", b"{}")).items():
                values = [file.get_batch(place)[column].to_pylist() for place in range(len(blocks))]
                assert bounds == [[min(block), max(block)] for block in values]
                bounded += 1
            row += count
        assert known["rows"][folder] == row
    assert checked > 20
    assert several, "no file of several blocks"
    assert bounded, "no file with bounds of its blocks"


def block_ends(data: bytes) -> list[int]:
    """Return the ends of an Arrow file's record batches from its footer, a flatbuffer (field 3: 24-byte blocks)."""
    (length,) = struct.unpack("<i", data[-10:-6])
    footer = data[-10 - length : -10]
    (table,) = struct.unpack_from("<I", footer)
    (back,) = struct.unpack_from("<i", footer, table)
    (field,) = struct.unpack_from("<H", footer, table - back + 4 + 2 * 3)
    (to,) = struct.unpack_from("<I", footer, table + field)
    vector = table + field + to
    (count,) = struct.unpack_from("<I", footer, vector)
    blocks = (struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * place) for place in range(count))
    return [sum(block) for block in blocks]


def sections() -> dict[str, list[list[str]]]:
    """Return the documented columns of each folder: name, type, meaning."""
    parts = re.split(r"^### ", text_of("format"), flags=re.MULTILINE)[1:]
    columns_by_section = {
        part.split("\n", 1)[0]: re.findall(r"^\| `(\w+)` \| (\S.*?) \| (.*) \|$", part, re.MULTILINE) for part in parts
    }
    return {name: columns for name, columns in columns_by_section.items() if columns}


def test_the_columns_are_those_of_the_files(
    page: dict[str, Any], store_of_facts: arl.Store, collected: arl.Store
) -> None:
    documented = sections()
    assert set(documented) == {*TABLES, "journal", "states"}
    for folder, columns in documented.items():
        table = page["table"](store_of_facts.path, folder)
        schema = (page["table"](collected.path, folder) if table is None else table).schema
        bounds = re.compile(r"\w+_(first|end)")
        fields = [field for field in schema if folder != "journal" or not bounds.fullmatch(field.name)]
        if folder == "nodes":  # token columns have names of their own, and come last
            fields, more = list(fields)[: len(columns)], list(fields)[len(columns) :]
            assert all(field.name == "experts" and field.nullable for field in more)
        assert [name for name, _, _ in columns] == [field.name for field in fields]
        for (name, kind, meaning), field in zip(columns, fields, strict=True):
            assert kind.endswith("?") == field.nullable, f"{folder}.{name}"
            if name != "facts":
                type_text = re.sub(r"(item: )| not null", "", str(field.type))
                assert kind.rstrip("?") == type_text, f"{folder}.{name}"
            codes = (field.metadata or {}).get(b"codes")
            if codes is not None:
                page_codes = re.findall(r"(\d) (\w+)", meaning)
                assert ",".join(f"{code}={word}" for code, word in page_codes) == codes.decode(), f"{folder}.{name}"


def test_the_manifest_has_the_fields_and_flags_of_the_page(page: dict[str, Any], store_of_facts: arl.Store) -> None:
    known, text = page["manifest"](store_of_facts.path), text_of("format")
    fields, flags = text.split("## The manifest")[1].split("## The Arrow files")[0].split("| reader flag |")
    assert re.findall(r"^\| `(\w+)` \|", fields, re.MULTILINE) == list(known)
    assert re.findall(r"^\| `(\w+)` \|", flags, re.MULTILINE) == [flag["name"] for flag in known["reader_flags"]]
    assert known["format"] == 4
