"""Connect to the Ray cluster on which environments, engines and collectors run.

Episodes of an environment with `runs = "ray"` run in actors; `Collector(..., processes=)` sets their number.
`engine.RayActor` runs any engine in an actor. A collector can also be created inside an actor, with its store: a store
has one writer, so a second collector of the same folder is refused. Batches go through Ray's object store without
conversion, their arrays in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

_RAY_UNITS = 10_000
"""Ray counts resources in such parts of one."""


def connected(who: str) -> Any:
    """Return the module `ray`; raise an error if it is not installed or not connected to a cluster.

    Args:
        who: the caller, for messages.

    Raises:
        MissingDependencyError: ray is not installed.
        InvalidInputError: Ray is not connected to a cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(f"{who}, which needs the package ray: pip install 'agentrl-core[ray]'") from error
    if not ray.is_initialized():
        raise InvalidInputError(
            f"{who}, but Ray is not connected to a cluster; call ray.init() for one on this machine, or "
            f'ray.init("auto") '
            "for an existing cluster of this machine"
        )
    return ray


def missing_room(nodes: Iterable[Mapping[str, Any]], options: Mapping[str, Any], count: int = 1) -> str:
    """Return a description of the resources missing for `count` equal actors in an idle cluster; empty if none are.

    Args:
        nodes: `ray.nodes()`.
        options: Ray options of each actor.
        count: number of actors.

    Example:
        >>> from agentrl_core._util.ray_cluster import missing_room
        >>> nodes = [{"Alive": alive, "Resources": {"CPU": 8.0, "GPU": 4.0}} for alive in (True, False)]
        >>> missing_room(nodes, {"num_gpus": 0.5}, count=8), missing_room(nodes, {"num_gpus": 1}, count=8)
        ('', 'room for 8 actors with GPU: 1 each, but the nodes of the cluster have room for 4')
    """
    counts = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    requested = {name: amount for name, amount in {**counts, **(options.get("resources") or {})}.items() if amount}
    of_nodes = [node["Resources"] for node in nodes if node["Alive"]]
    if of_nodes and not requested:
        return ""
    room = sum(
        min(
            round(resources.get(name, 0) * _RAY_UNITS) // round(amount * _RAY_UNITS)
            for name, amount in requested.items()
        )
        for resources in of_nodes
    )
    each = ", ".join(f"{name}: {amount}" for name, amount in requested.items()) or "any resources"
    lacking = f"room for {count} actors with {each} each, but the nodes of the cluster have room for {room}"
    return "" if room >= count else lacking
