"""The tables in other libraries: Polars without pyarrow, pyarrow, and any user of the capsule interface."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from forests import TABLES, grow

from agentrl_core import Batch, Forest, Store, Table

COMPUTED = ("draw_columns", "step_columns", "node_columns")
PLAIN = {"int32", "int64", "uint8", "uint32", "float", "double", "string", "timestamp[us]"}


def computed(batch: Batch) -> Batch:
    rng = np.random.default_rng(0)
    batch = batch.with_columns("draw", score=rng.random(batch.num_draws))
    batch = batch.with_columns("step", advantage=rng.random(len(batch.offsets("token")) - 1))
    batch = batch.with_columns("token", weight=rng.random(batch.offsets("token")[-1]))
    return batch.with_columns("node_token", value=rng.random(batch.offsets("node_token")[-1]))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return computed(grow(0)[0])


def test_polars_reads_every_table_without_pyarrow(tmp_path: Path) -> None:
    code = """
        import importlib.machinery, sys

        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "pyarrow":
                    return importlib.machinery.ModuleSpec(name, self)

            def create_module(self, spec):
                raise ImportError(f"{spec.name} is not there")

            def exec_module(self, module):
                raise ImportError

        sys.meta_path.insert(0, Broken())
        try:
            import pyarrow
        except ImportError:
            pass
        else:
            sys.exit("pyarrow is there")
        import polars as pl
        import agentrl_core as arl

        forest = arl.Forest()
        forest.add_group(0, "task")
        trajectory = forest.start(0, member=0)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.25], entropies=[0.5, 1.0], temperature=0.5)
        forest.finish(trajectory, reward=1.0, success=True, info={"why": "right"})
        batch = forest.freeze().with_columns("draw", score=[1.0]).with_columns("token", weight=[0.5, 0.5])
        for name in ("nodes", "steps", "trajectories", "draws", "tasks", "draw_columns", "step_columns"):
            table = getattr(batch, name)
            frame = pl.DataFrame(table)
            assert frame.columns == table.column_names and len(frame) == len(table), name
        with arl.Store.open(sys.argv[1]) as store:
            store.append(batch, iteration=0)
            store.close_iteration(batch, {})
            assert pl.DataFrame(store.nodes)["tokens"].to_list() == [[1, 2], [3, 4]]
        assert pl.scan_ipc(sys.argv[1] + "/nodes/*.arrow").collect()["logprobs"].to_list() == [None, [-0.5, -0.25]]
        assert pl.read_ipc(sys.argv[1] + "/step_columns/*.arrow")["weight"].to_list() == [[0.5, 0.5]]
        assert arl.advantage.group_relative(pl.Series([0.0, 2.0]), pl.Series(["a", "a"]), eps=0.0)[1] > 0.7
        print("read", "pyarrow" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout.strip()) == (0, "read False"), completed.stderr


@pytest.mark.parametrize("name", [*TABLES, *COMPUTED])
def test_polars_and_pyarrow_see_the_same(batch: Batch, name: str) -> None:
    table: Table = getattr(batch, name)
    arrow = pa.table(table)
    arrow.validate(full=True)
    frame = pl.DataFrame(table)
    assert arrow.column_names == frame.columns == table.column_names
    assert len(arrow) == len(frame) == len(table) == table.num_rows
    assert arrow.to_pylist() == frame.to_dicts()
    assert pa.schema(table) == arrow.schema
    assert repr(table).startswith(f"Table({len(table)} rows: {table.column_names[0]}")
    assert len(table) == 0 or table.nbytes >= 8 * len(table)


@pytest.mark.parametrize("name", [*TABLES, *COMPUTED])
def test_types_are_plain(batch: Batch, name: str) -> None:
    def check(kind: pa.DataType) -> None:
        if pa.types.is_struct(kind):
            for field in kind:
                check(field.type)
        elif pa.types.is_list(kind):
            check(kind.value_type)
        else:
            assert str(kind) in PLAIN or pa.types.is_fixed_size_binary(kind), f"{kind} in {name}"

    for field in pa.schema(getattr(batch, name)):
        check(field.type)


def test_formats_and_codes_are_noted(batch: Batch) -> None:
    schema = pa.schema(batch.nodes)
    assert schema.metadata[b"agentrl_format"] == b"4"
    assert schema.field("kind").metadata[b"codes"] == b"0=prompt,1=action,2=observation,3=injected"
    source = pa.schema(batch.with_recipe("mine", {"clip": 0.2}).draw_columns).metadata
    assert (source[b"recipe"], source[b"options"]) == (b"mine", b'{"clip": 0.2}')


def test_a_table_is_streamed_repeatedly_and_its_streams_outlive_it() -> None:
    grown, _ = grow(1)
    expected = pl.DataFrame(grown.nodes)
    table = grown.nodes
    streams = [table.__arrow_c_stream__() for _ in range(3)]
    reader = pa.RecordBatchReader.from_stream(table)
    del grown, table, streams[0]
    gc.collect()
    assert pl.DataFrame(reader.read_all()).equals(expected, null_equal=True)


def test_a_reader_can_request_other_arrow_types(batch: Batch) -> None:
    schema = pa.schema(
        field.with_type(pa.large_string()) if field.type == pa.string() else field
        for field in pa.schema(batch.trajectories)
    )
    cast = pa.RecordBatchReader.from_stream(batch.trajectories, schema=schema).read_all()
    assert cast.schema.field("task_id").type == pa.large_string()
    assert cast["task_id"].to_pylist() == pa.table(batch.trajectories)["task_id"].to_pylist()


def test_a_table_of_many_commits_is_one_stream(tmp_path: Path) -> None:
    with Store.open(tmp_path, sync="always") as store:
        assert pa.table(store.nodes).num_rows == 0
        for iteration in range(3):
            store.append(store.rebase(grow(iteration, iteration=iteration)[0]), iteration=iteration)
        nodes = store.nodes
        assert len(nodes) == len(pa.table(nodes)) == len(pl.DataFrame(nodes))
        assert pa.table(nodes)["node_id"].num_chunks == 3
        assert pa.table(nodes).to_pylist() == pl.DataFrame(nodes).to_dicts()


@pytest.mark.parametrize(
    "kind", ["list", "int32", "int64", "int16", "big endian", "strided", "reversed", "read only", "unaligned"]
)
def test_every_kind_of_token_array(kind: str) -> None:
    raw = b"\0" + np.array([5, 6, 7], np.int32).tobytes()
    read_only = np.array([5, 6, 7])
    read_only.flags.writeable = False
    tokens = {
        "list": [5, 6, 7],
        "int32": np.array([5, 6, 7], np.int32),
        "int64": np.array([5, 6, 7], np.int64),
        "int16": np.array([5, 6, 7], np.int16),
        "big endian": np.array([5, 6, 7], ">i4"),
        "strided": np.array([5, 0, 6, 0, 7])[::2],
        "reversed": np.array([7, 6, 5], np.int32)[::-1],
        "read only": read_only,
        "unaligned": np.frombuffer(raw, np.uint8)[1:].view(np.int32),
    }[kind]
    forest = Forest()
    forest.add_group(0, "task")
    trajectory = forest.start(0, 0)
    forest.append(trajectory, tokens, kind="prompt")
    assert forest.tokens(trajectory).tolist() == [5, 6, 7]


@pytest.mark.parametrize("kind", ["float32", "float64", "list", "strided", "unaligned", "bool", "series", "arrow"])
def test_every_kind_of_computed_column(batch: Batch, kind: str) -> None:
    count = batch.num_draws
    expected = np.arange(count) % 2
    raw = np.zeros(count, np.dtype([("pad", np.uint8), ("value", np.float64)]))
    raw["value"] = expected
    values = {
        "float32": expected.astype(np.float32),
        "float64": expected.astype(np.float64),
        "list": expected.tolist(),
        "strided": np.repeat(expected, 2)[::2],
        "unaligned": raw["value"],
        "bool": expected.astype(bool),
        "series": pl.Series(expected),
        "arrow": pa.array(expected),
    }[kind]
    assert batch.with_columns("draw", value=values).column("value", "draw").tolist() == expected.tolist()
