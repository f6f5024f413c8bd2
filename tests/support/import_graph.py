"""Find cycles in the imports between files."""

from graphlib import CycleError, TopologicalSorter

Arrow = tuple[str, str]


def circle(arrows: set[Arrow]) -> list[str] | None:
    """Return the files of one circle, or None."""
    graph = TopologicalSorter[str]()
    for source, target in sorted(arrows):
        graph.add(source, target)
    try:
        graph.prepare()
    except CycleError as error:
        return error.args[1]
    return None
