"""Parts of the page: Arrow as read by the browser, blocks, signs of health, descriptions of recipes."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from graphlib import CycleError

import numpy as np
import polars as pl
import pytest

import agentrl_core as arl
from agentrl_core import recipes, scan
from agentrl_core.view.blocks import Chosen, packed, plain
from agentrl_core.view.health import signs
from agentrl_core.view.iteration_recipes import described
from agentrl_core.view.javascript_bundle import joined


def frame(seed: int, rows: int) -> pl.DataFrame:
    """Return a column of each type of a page, with and without nulls."""
    rng = np.random.default_rng(seed)
    columns: dict[str, pl.Series] = {}
    for kind in (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64):
        columns[f"{kind}"] = pl.Series(rng.integers(0, 100, rows), dtype=kind)
    for kind in (pl.Float32, pl.Float64):
        columns[f"{kind}"] = pl.Series(rng.standard_normal(rows).round(3), dtype=kind)
    texts = ["", "plain", "é€😀", "\x00<b>"]
    columns["text"] = pl.Series([texts[place] for place in rng.integers(0, 4, rows)], dtype=pl.String)
    columns["truth"] = pl.Series(rng.integers(0, 2, rows).astype(bool), dtype=pl.Boolean)
    lists = [rng.integers(0, 9, count).tolist() for count in rng.integers(0, 4, rows)]
    columns["list"] = pl.Series(lists, dtype=pl.List(pl.Int32))
    columns["floats"] = pl.Series([[value / 4 for value in each] for each in lists], dtype=pl.List(pl.Float32))
    hollow = [[None if value == 3 else value / 2 for value in each] for each in lists]
    columns["hollow"] = pl.Series(hollow, dtype=pl.List(pl.Float32))
    without_nulls = pl.DataFrame(columns)
    holes = without_nulls.select(
        pl.when(pl.Series(rng.random(rows) < 0.6)).then(pl.col(name)).alias(f"{name} or null")
        for name in without_nulls.columns
    )
    return pl.concat([without_nulls, holes], how="horizontal")


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 300])
def test_the_browser_reads_tables_written_by_polars(browser, page_file, rows) -> None:
    if not browser.do("location.href").endswith(page_file.name):
        browser.open(page_file)
    for seed in range(3):
        table = frame(seed, rows)
        read_rows = read(browser, stream_of(table))
        expected = table.with_columns(pl.selectors.boolean().cast(pl.UInt8)).rows(named=True)
        assert len(read_rows) == rows
        for mine, theirs in zip(read_rows, expected, strict=True):
            assert same(mine, theirs), (mine, theirs)


def messages(stream: bytes) -> list[bytes]:
    """Return the messages of an Arrow stream: the schema, then the record batches."""
    parts, at = [], 0
    while (size := struct.unpack_from("<i", stream, at + 4)[0]) != 0:
        table = at + 8 + struct.unpack_from("<I", stream, at + 8)[0]
        fields = table - struct.unpack_from("<i", stream, table)[0]
        known = struct.unpack_from("<H", stream, fields)[0] > 4 + 2 * 3
        place = struct.unpack_from("<H", stream, fields + 4 + 2 * 3)[0] if known else 0
        end = at + 8 + size + (struct.unpack_from("<q", stream, table + place)[0] if place else 0)
        parts.append(stream[at:end])
        at = end
    return parts


def stream_of(table: pl.DataFrame) -> bytes:
    """Return the Arrow stream of a frame in a page."""
    data = gzip.decompress(packed({"x": table}))
    name, size = struct.unpack_from("<II", data)
    return data[8 + name : 8 + name + size]


@pytest.mark.parametrize("sizes", [(3, 5), (1, 0, 9, 8), (0, 0), (17,) * 4])
def test_the_browser_reads_streams_of_several_batches(browser, page_file, sizes) -> None:
    if not browser.do("location.href").endswith(page_file.name):
        browser.open(page_file)
    parts = [frame(seed, rows) for seed, rows in enumerate(sizes)]
    streams = [messages(stream_of(part)) for part in parts]
    end = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    stream = streams[0][0] + b"".join(batch for _, *batches in streams for batch in batches) + end
    assert len(messages(stream)) > 2 or not sum(sizes)
    read_rows = read(browser, stream)
    expected = pl.concat(parts).with_columns(pl.selectors.boolean().cast(pl.UInt8)).rows(named=True)
    assert len(read_rows) == sum(sizes)
    for mine, theirs in zip(read_rows, expected, strict=True):
        assert same(mine, theirs), (mine, theirs)


def test_a_table_has_as_many_rows_as_it_has(browser, page_file) -> None:
    """More rows than Polars writes into one record batch."""
    if not browser.do("location.href").endswith(page_file.name):
        browser.open(page_file)
    count = 2**19 + 2
    table = pl.DataFrame({"x": pl.int_range(count, eager=True) % 100}, schema={"x": pl.Int8})
    stream = stream_of(table)
    assert len(messages(stream)) > 2, "it is one batch: nothing is tried"
    numbers = browser.do(
        f"(() => {{ {BYTES.format(base64.b64encode(stream).decode())}"
        " const table = arrow_js.readStream(bytes.buffer);"
        " const values = table.columns.x.values;"
        " return [table.rows, values.length, values.reduce((sum, one) => sum + one, 0), values.at(-1)]; })()"
    )
    assert numbers == [count, count, table["x"].cast(pl.Int64).sum(), table["x"][-1]]


BYTES = "const bytes = Uint8Array.from(atob('{}'), (letter) => letter.charCodeAt(0));"


def read(browser, stream: bytes) -> list[dict[str, object]]:
    """Return the rows of an Arrow stream as read by the page."""
    text = browser.do(
        f"(() => {{ {BYTES.format(base64.b64encode(stream).decode())}"
        " const rows = arrow_js.records(arrow_js.readStream(bytes.buffer));"
        " const plain = (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);"
        " return JSON.stringify(rows, plain); })()"
    )
    rows: list[dict[str, object]] = json.loads(text)
    return rows


def same(mine: dict[str, object], theirs: dict[str, object]) -> bool:
    """Return whether two rows are equal; numbers to seven digits, and missing values in a list as null."""

    def equal(one: object, other: object) -> bool:
        if isinstance(other, list):
            return np.allclose(np.array(one, float), np.array(other, float), equal_nan=True)
        return one == (pytest.approx(other, rel=1e-6) if isinstance(other, float) else other)

    return mine.keys() == theirs.keys() and all(equal(mine[name], value) for name, value in theirs.items())


def test_every_group_is_in_one_block_until_the_budget(recorded) -> None:
    tables = scan(recorded)
    tokens = tables.nodes.group_by("group_id").agg(tokens=pl.col("tokens").list.len().sum()).sort("group_id").collect()
    everything = Chosen.of(tables, (0, 2**62), 10**9)
    assert everything.kept["group_id"].to_list() == tokens["group_id"].to_list()
    for most in (1, 300, 700):
        chosen_groups = Chosen.of(tables, (0, 2**62), most).kept
        size = tokens.filter(pl.col("group_id").is_in(chosen_groups["group_id"].implode()))["tokens"].sum()
        assert len(chosen_groups) == 1 or size <= most
        first = tables.trajectories.filter(pl.col("group_id").is_in(chosen_groups["group_id"].implode()))
        latest = tables.trajectories.select(pl.col("iteration").max()).collect().item()
        assert first.select(pl.col("iteration").max()).collect().item() == latest, "the latest are kept first"
    assert len(Chosen.of(tables, (1, 2), 10**9).kept) == 3


def test_numbers_of_tokens_keep_three_digits() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(1000) * 10.0 ** rng.integers(-6, 6, 1000), [0.0, 1e35, -1e35]])
    table = pl.DataFrame({"x": pl.Series([values.astype(np.float32).tolist()], dtype=pl.List(pl.Float32))})
    rounded = plain(table)["x"][0].to_numpy()
    # 12 bits: half a unit of the last is 2^-12 of the number
    np.testing.assert_allclose(rounded, values.astype(np.float32), rtol=2.0**-12)
    assert np.unique(rounded[:1000].view(np.uint32) & 0xFFF).tolist() == [0]


def test_signs_are_bad_where_a_run_is(tmp_path) -> None:
    tables = scan(arl.Store.open(tmp_path / "empty"))

    def of(**changed: float) -> dict[str, str]:
        usual = {
            "length": 8.0,
            "same_reward": 0.1,
            "tool_errors": 0.0,
            "staleness": 0.0,
            "entropy": 1.0,
            "sharing": 1.5,
        }
        iterations = pl.DataFrame([{"iteration": 0, **usual}, {"iteration": 1, **usual, **changed}], strict=False)
        groups = pl.DataFrame(
            {
                "iteration": [0, 1],
                "turns": [10, 10],
                "drifted": [0, 0],
                "members": [4, 4],
                "truncated": [0, 4],
                "failed": [0, 0],
                "length": [10, 10],
            }
        )
        return {sign.name: sign.level for sign in signs(tables, iterations, groups)}

    assert of()["same rewards"] == "good"
    assert of(same_reward=0.5)["same rewards"] == "watch"
    assert of(same_reward=0.9)["same rewards"] == "bad"
    assert of(entropy=0.1)["entropy"] == "bad"
    assert of(staleness=3.0)["staleness"] == "watch"
    assert of()["truncated"] == "bad", "all four of the latest iteration were"
    assert "tool errors" not in of(tool_errors=float("nan"))


def test_recipes_are_described_with_their_formulas() -> None:
    page = described(recipes.GIGPO.to_dict())
    names = [link["component"] for link in page["phases"]["advantage"]]
    assert names == ["Discounted", "GroupRelative", "GroupRelative"]
    assert "gamma" in page["phases"]["advantage"][0]["formula"]
    assert page["source"].startswith("arXiv:")
    strange = {"name": "mine", "advantage": {"component": "not.installed:Thing", "weight": 2}}
    link = {"component": "not.installed:Thing", "options": {"weight": 2}, "purpose": "", "formula": ""}
    assert described(strange)["phases"]["advantage"] == [link]


def test_modules_that_need_each_other_are_refused() -> None:
    one, two = (
        'import { b } from "./two.js";\nexport const a = b;',
        'import { a } from "./one.js";\nexport const b = a;',
    )
    with pytest.raises(CycleError):
        joined({"one.js": one, "two.js": two})
