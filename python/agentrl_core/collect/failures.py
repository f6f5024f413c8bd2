"""Failed groups: each is dropped with a warning, and too many end the collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.exceptions import AgentRLError, DataError, InvalidInputError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from agentrl_core.collect.warn_once import WarnOnce
    from agentrl_core.rollout.group import Group
    from agentrl_core.rollout.progress import Progress

MOST_FAILED = 0.2
"""Share of groups that may fail before the collection fails."""
_FIRST_GROUPS = 8


class Failures:
    """The groups of an iteration that failed.

    - A wrong call of a program (`InvalidInputError`) is wrong in every group: it ends the collection at once.
    - Data that cannot be used (`DataError`) costs its group. If it is every group, the iteration has no draws.
    - What an engine or a model does not take (`UnsupportedError`) costs its group. If it is every group, it ends the
      collection: the next iteration would be no better.
    - Any other error costs its group, up to a fifth of the groups.

    Args:
        program: its title, for messages.
        notices: issues warnings once.
        progress: counts the trajectories.

    Attributes:
        groups: number of started groups, here and in other workers.
        done: number of finished groups.
    """

    def __init__(self, program: str, notices: WarnOnce, progress: Progress) -> None:
        self.groups = self.done = 0
        self._program = program
        self._notices = notices
        self._progress = progress
        self._failed: list[tuple[Group, Exception]] = []
        self._unusable: list[tuple[Group, Exception]] = []

    def take(self, group: Group, error: Exception) -> None:
        """Drop a failed group and record its error; raise the error of a wrong call, or if all first groups fail.

        Raises:
            Exception: the error itself, if it ends the collection.
        """
        if is_wrong_call(error) and not isinstance(error, UnsupportedError):
            raise name_task(error, group.task.task_id)
        for branch in group.branches:
            branch.drop(f"the program failed: {type(error).__name__}: {error}")
        if isinstance(error, (DataError, UnsupportedError)):
            self._progress.failed += len(group.branches)
            self._unusable.append((group, error))
            return
        self._failed.append((group, error))
        if not self.done and len(self._failed) >= min(_FIRST_GROUPS, self.groups):
            raise name_task(error, group.task.task_id)
        self._warn(f"program {type(error).__name__}", group, error)

    def end(self) -> None:
        """Warn of dropped groups, or raise an error if too many groups failed.

        Raises:
            Exception: the first error, if too many failed.
        """
        too_many = self._failed if len(self._failed) > MOST_FAILED * self.groups else []
        if not (too_many or self.done) and all(isinstance(error, UnsupportedError) for _, error in self._unusable):
            too_many = self._unusable
        for group, error in too_many:
            raise name_task(error, group.task.task_id)
        for group, error in self._unusable:
            self._warn(f"task {group.task.task_id}", group, error)
        self._unusable.clear()

    def summary(self) -> tuple[int, str]:
        """Return the number of failed groups, except for unusable data or unsupported input, and the first error."""
        first = next((f"{type(error).__name__}: {error}" for _, error in self._failed), "")
        return len(self._failed), first

    def _warn(self, kind: str, group: Group, error: Exception) -> None:
        remedy = "" if isinstance(error, AgentRLError) else "; correct the program"
        self._notices.once(
            kind,
            f"{self._program} failed on group {group.name} (task {group.task.task_id!r}), which is left out: "
            f"{type(error).__name__}: {error}{remedy}",
        )


def is_wrong_call(error: Exception) -> bool:
    """Return whether an error is of a type for wrong calls, such as `InvalidInputError`; a `DataError` is not."""
    wrong = (InvalidInputError, UnsupportedError, MissingDependencyError)
    return isinstance(error, wrong) and not isinstance(error, DataError)


def name_task(error: Exception, task_id: str) -> Exception:
    """Return the error with the id of its task in the message; if several groups had the error, the first one's."""
    if not isinstance(error, AgentRLError):
        error.add_note(f"task {task_id!r}")
    elif repr(task_id) not in str(error) and "(task " not in str(error):
        error.args = (f"{error} (task {task_id!r})",)
    return error
