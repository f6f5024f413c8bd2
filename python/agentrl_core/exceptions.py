"""Errors of agentrl_core: one base class, combined with the matching builtin error if there is one.

Every class can be imported and pickled, and has one message: the argument, its value and what to do. The Rust core has
one error type with a kind, which the binding maps to these classes in one place.
"""

from __future__ import annotations

import re

_LONG_WORD = re.compile(r"[^\s;]{400,}")


class AgentRLError(Exception):
    """Base class of every error that agentrl_core raises on purpose. Words of 400 or more characters are shortened."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(_LONG_WORD.sub(_shorten, each) if isinstance(each, str) else each for each in args))


class InvalidInputError(AgentRLError, ValueError):
    """An argument has a value, length or type that the call does not accept."""


class DataError(InvalidInputError):
    """External data cannot be used: an engine's response, an environment's outcome or a task.

    During a run it fails only its group. A wrong call by a program (any other `InvalidInputError`) ends the run.
    """


class RecipeError(InvalidInputError):
    """A recipe or one of its components is incomplete or has an option out of range."""


class NotFoundError(AgentRLError, LookupError):
    """A requested node, trajectory, group, column or file does not exist."""


class StoreError(AgentRLError, OSError):
    """Reading or writing a store failed: permissions, a full disk, another writer."""


class CorruptError(AgentRLError):
    """Stored data are damaged, such as a file of a store that does not match its manifest."""


class UnsupportedError(AgentRLError, NotImplementedError):
    """This build does not support a model, layout, file version or content, or the operating system."""


class EngineError(AgentRLError, RuntimeError):
    """An engine failed while it generated: out of memory, a fault in the model. The request can be retried."""


class MissingDependencyError(AgentRLError, ImportError):
    """An optional package or program is missing; the message describes how to install it, usually by an extra."""


class InternalError(AgentRLError, RuntimeError):
    """A bug in agentrl_core, such as a panic of the Rust core that the binding caught."""


class AgentRLWarning(RuntimeWarning):
    """Category of every warning of agentrl_core: the call continues, but probably not as intended."""


def _shorten(word: re.Match[str]) -> str:
    text = word.group()
    return f"{text[:80]}…({len(text)} characters)…{text[-40:]}"
