"""Connect to the Ray cluster on which environments, engines and collectors run.

Episodes of an environment with `runs = "ray"` run in actors; `Collector(..., processes=)` sets their number.
`engine.RayActor` runs any engine in an actor. A collector can also be created inside an actor, with its store: a store
has one writer, so a second collector of the same folder is refused. Batches go through Ray's object store without
conversion, their arrays in shared memory.
"""

from __future__ import annotations

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
