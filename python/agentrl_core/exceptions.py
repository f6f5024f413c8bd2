"""The errors of agentrl_core: one base class, and the natural builtin beside it where there is one.

Every class is importable, picklable and carries a single message that names the argument, its value and what to do.
The Rust core has one error with a kind; the binding maps each kind to one of these classes, in one place.
"""

from __future__ import annotations


class AgentRLError(Exception):
    """Base of every error that agentrl_core raises on purpose."""


class InvalidInputError(AgentRLError, ValueError):
    """An argument has a value, a length or a type that the call cannot take."""


class DataError(InvalidInputError):
    """Data from outside, an engine's response, an environment's outcome or a task, that cannot be used.

    In a run it costs its group: a wrong call of a program (another `InvalidInputError`) ends the run.
    """


class RecipeError(InvalidInputError):
    """A recipe or one of its components is incomplete or has an option out of range."""


class NotFoundError(AgentRLError, LookupError):
    """A node, trajectory, group, column or file that does not exist was asked for."""


class StoreError(AgentRLError, OSError):
    """Reading or writing a store failed: permissions, a full disk, another writer."""


class CorruptError(AgentRLError):
    """A file of a store does not hold what its manifest says."""


class UnsupportedError(AgentRLError, NotImplementedError):
    """A model, layout or file version that this build does not handle."""


class EngineError(AgentRLError, RuntimeError):
    """An engine failed while it generated: out of memory, a fault in the model. It can be asked again."""


class MissingDependencyError(AgentRLError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class InternalError(AgentRLError, RuntimeError):
    """A bug in agentrl_core: a panic of the core, caught at the border."""


class AgentRLWarning(RuntimeWarning):
    """Category of every warning of agentrl_core: the call goes on, but probably not as it was meant to."""
