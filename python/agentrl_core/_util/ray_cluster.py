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


def connected(who: str) -> Any:
    """Return the module `ray`, connected to a cluster.

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


def missing_room(nodes: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Return which resources an actor asks for if no living node has all of them, even idle; empty: a node has them.

    Args:
        nodes: `ray.nodes()`.
        options: Ray options of the actor.

    Example:
        >>> from agentrl_core._util.ray_cluster import missing_room
        >>> nodes = [{"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": False, "Resources": {"GPU": 1.0}}]
        >>> missing_room(nodes, {"num_gpus": 1}), missing_room(nodes, {"num_cpus": 8})
        ('GPU: 1', '')
    """
    counts = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    wanted = {name: count for name, count in {**counts, **(options.get("resources") or {})}.items() if count}
    of_nodes = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(found.get(name, 0) >= count for name, count in wanted.items()) for found in of_nodes):
        return ""
    return ", ".join(f"{name}: {count}" for name, count in wanted.items()) or "any resources"
