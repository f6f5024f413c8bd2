"""Route the requests of a group to the same engine while it is available."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

Member = TypeVar("Member")

# The most groups with an assigned engine; the least recently used group is dropped first.
_MOST_GROUPS = 65_536


class GroupHomes(Generic[Member]):
    """Routes the requests of a group to one engine, whose prefix cache has their common prefix.

    A group's first request goes to the engine with the least load. The group moves to another engine if its own is
    unavailable or rests, or if 65 536 other groups were routed since.
    """

    def __init__(self) -> None:
        self._homes: OrderedDict[str, Member] = OrderedDict()

    def choose(
        self,
        group: str,
        able: Iterable[Member],
        load: Callable[[Member], Any],
        rests: Callable[[Member], bool] = lambda _: False,
    ) -> Member | None:
        """Return the engine for a group's request; None if no engine is available.

        Args:
            group: name of the group; "": the request belongs to no group.
            able: the available engines.
            load: returns the load of an engine; the least loaded one is chosen.
            rests: returns whether an engine's groups should go to other engines for now.
        """
        able = list(able)
        home = self._homes.get(group) if group else None
        if home is None or home not in able or rests(home):
            home = min(able, key=load, default=None)
        if group and home is not None:
            self._homes[group] = home
            self._homes.move_to_end(group)
            if len(self._homes) > _MOST_GROUPS:
                self._homes.popitem(last=False)
        return home
