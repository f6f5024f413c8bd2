"""Write metrics with each writer, and read them back with its package."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import MissingDependencyError
from agentrl_core.integrations import TensorBoard, WeightsAndBiases

LOSSES = [0.5, 0.25, 0.125]


def trained(write: Any) -> None:
    """Run three iterations that report to a writer."""
    world = SmallWorld()
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=8)
    collect.on_iteration(write)
    for loss in LOSSES:
        batch = recipes.GRPO.credit(collect(tasks=2, group_size=3))
        collect.end_iteration(batch, {"update": {"loss": loss}, "note": "no number"})
    write.close()


def test_tensorboard_reads_the_written_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()["tensors"]
    assert {"update/loss", "collect/draws"} <= set(tags)
    assert not any("note" in tag for tag in tags)

    def read(tag: str) -> list[tuple[int, float]]:
        return [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(tag)]

    assert read("update/loss") == list(enumerate(LOSSES))
    assert read("collect/draws") == [(0, 6.0), (1, 6.0), (2, 6.0)]


def logged(file: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB, which the package writes after seven bytes of its own."""
    place, record = 7, b""
    while place < len(file):
        if 32768 - place % 32768 < 7:  # a block ends; no record begins in its last bytes
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", file, place)
        part = file[place + 7 : place + 7 + length]
        place += 7 + length
        record = part if kind in (1, 2) else record + part  # 1: all of it; 2: its beginning
        if kind in (1, 4):  # 4: its end
            yield record


def test_weights_and_biases_reads_the_logged_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_SILENT", "true")
    write = WeightsAndBiases(project="test", mode="offline", dir=str(tmp_path))
    trained(write)
    wandb.teardown()  # the process that the package keeps for further runs
    [path] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows: list[dict[str, str]] = []
    for data in logged(path.read_bytes()):
        record: Any = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in items})
    assert [float(row["update/loss"]) for row in rows] == LOSSES
    assert [int(row["_step"]) for row in rows] == [0, 1, 2]
    assert [float(row["collect/draws"]) for row in rows] == [6.0] * 3


@pytest.mark.parametrize(
    ("make", "package"), [(lambda: TensorBoard("nowhere"), "tensorboard"), (WeightsAndBiases, "wandb")]
)
def test_a_package_that_is_missing_is_named(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'agentrl-core\[{package}\]'"):
        make()
    assert not Path("nowhere").exists()
