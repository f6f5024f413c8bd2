"""The cluster of Ray that environments, engines and collectors run on.

An environment that declares `runs = "ray"` has its episodes in actors (`Collector(..., processes=)` says how many), and
`engine.RayActor` puts any engine into one. A collector can itself be made inside an actor, with its store: a store has
one writer, so a second collector of the same folder is refused. Batches travel through Ray's object store as they are,
their arrays in shared memory.
"""

from __future__ import annotations

from typing import Any

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError


def connected(who: str) -> Any:
    """The module `ray`, connected to a cluster.

    Args:
        who: needs it, for messages.

    Raises:
        MissingDependencyError: ray is not installed.
        InvalidInputError: it is connected to no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(f"{who}, which needs the package ray: pip install 'agentrl-core[ray]'") from error
    if not ray.is_initialized():
        raise InvalidInputError(
            f'{who}, and Ray is connected to no cluster; call ray.init() for one on this machine, or ray.init("auto") '
            "for the one that this machine belongs to"
        )
    return ray
