"""Which of several engines answers the requests of a group."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

Member = TypeVar("Member")

# So many groups have an engine of their own; the one asked for longest ago is forgotten first.
_MOST_GROUPS = 65_536


class GroupHomes(Generic[Member]):
    """Send the requests of a group to one engine, whose prefix cache has their beginning.

    A group's first request goes to the engine with the least load.
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
        """Return the engine of a group; None: none is able.

        Args:
            group: its name; "": the request belongs to none.
            able: engines that can answer.
            load: how busy an engine is; the smallest value is chosen.
            rests: whether the group of an engine goes to another one for a while.
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
