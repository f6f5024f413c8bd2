"""Run code of ours in the place of a causal model's forward, inside the call of whatever wraps the model.

DDP, FSDP, PEFT, torch.compile, DeepSpeed and Accelerate work through hooks around the model's call. So the outer object
is called as always, and for that one call the forward of the causal model in it is another one.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from agentrl_core.exceptions import AgentRLError, UnsupportedError

Forward = Callable[..., Any]
Body = Callable[[Forward, Tensor], tuple[Tensor, ...]]
_SITES: weakref.WeakKeyDictionary[nn.Module, ForwardSite] = weakref.WeakKeyDictionary()


class ForwardSite:
    """The forward that stands for a model's own during a call; one for each model.

    It is the same object in every call, so that torch.compile, which compares it, compiles its callers once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.lock = threading.RLock()
        self.installed: Forward = self._forward
        self.own: Forward | None = None
        self.body: Body | None = None
        self.ids: Tensor | None = None
        self.found: tuple[Tensor, ...] | None = None
        self.thread = 0

    def _forward(self, *args: Any, **given: Any) -> Any:
        if threading.get_ident() != self.thread:  # another thread generates with the same model
            own = self.own or cast("nn.Module", self._model()).forward
            return own(*args, **given)
        ids, wanted = given.pop("input_ids", None), cast("Tensor", self.ids)
        added = [n for n, v in given.items() if v is not None and not isinstance(v, bool)]
        if added:
            raise UnsupportedError(
                f"model: its wrapper gives the language model {', '.join(added)} besides the tokens (as prefix tuning "
                "does), which packs cannot use; use an adapter in the layers, such as LoRA"
            )
        if args or self.found is not None or not isinstance(ids, Tensor) or ids.shape != wanted.shape:
            raise UnsupportedError(
                "model: its wrapper calls the language model more than once, or with other tokens than it was given "
                "(as prompt tuning does); give pack.run a wrapper that passes its arguments on"
            )
        self.found = cast("Body", self.body)(cast("Forward", self.own), ids)
        return self.found


def call_in_place(outer: nn.Module, inner: nn.Module, body: Body, ids: Tensor) -> tuple[Tensor, ...]:
    """Call `outer(input_ids=ids)` with `body` in the place of the forward of `inner`, the model in it.

    Args:
        outer: the model in its wrappers.
        inner: the model.
        body: gets the model's own forward and the tokens that reached it, and returns tensors.
        ids: `int64[1, T]`.

    Returns:
        The tensors of `body`, as they came out of the wrappers.

    Raises:
        UnsupportedError: a wrapper changes arguments or results.
    """
    site = _SITES.get(inner)
    if site is None:
        site = _SITES.setdefault(inner, ForwardSite(inner))
    with site.lock, _replaced(inner, site.installed) as own:
        site.own, site.body, site.ids, site.thread = own, body, ids, threading.get_ident()
        site.found = None
        try:
            result = outer(input_ids=ids)
        except AgentRLError:
            raise
        except Exception as error:
            if site.found is None or outer is inner:
                raise
            raise UnsupportedError(
                f"model: {type(outer).__name__} fails on what its {type(inner).__name__} returns for a pack ({error}); "
                "give a wrapper that returns what the language model returns"
            ) from error
        finally:
            found, site.own, site.body, site.ids, site.found = site.found, None, None, None, None
    if found is None:
        raise UnsupportedError(
            f"model: {type(outer).__name__} does not call the {type(inner).__name__} inside it; give the language "
            "model, or a wrapper that calls it"
        )
    return _checked(outer, inner, found, result)


def _checked(outer: nn.Module, inner: nn.Module, found: tuple[Tensor, ...], result: object) -> tuple[Tensor, ...]:
    """The result, if the wrappers left it as it was."""
    if not isinstance(result, (tuple, list)) or [_form(each) for each in result] != [_form(each) for each in found]:
        rounded = isinstance(result, (tuple, list)) and len(result) == len(found)
        advice = "set its output dtype to torch.float32" if rounded else "give the language model itself"
        raise UnsupportedError(
            f"model: {type(outer).__name__} changes shapes or dtypes of what its {type(inner).__name__} returns; "
            f"{advice} (MixedPrecisionPolicy(output_dtype=torch.float32) for FSDP)"
        )
    return tuple(result)


def _form(value: object) -> object:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)


def leave_uncompiled(model: nn.Module) -> None:
    """Let torch.compile, if it was applied to a model or a part of it, compile the model's code and not that of packs.

    The shapes in the latter differ from pack to pack.
    """
    if is_compiled(model):
        _skip_in_dynamo()


def is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile was applied to a model or a part of it."""
    return any(
        getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule"
        for part in model.modules()
    )


@functools.cache
def _skip_in_dynamo() -> None:
    from torch._dynamo import trace_rules

    for name in ("attention", "call", "run", "scores", "transformers_attention"):
        trace_rules.add(f"agentrl_core.model.{name}")


@contextmanager
def _replaced(module: nn.Module, forward: Forward) -> Iterator[Forward]:
    """Let a module have another forward inside the block, and hand out its own, which may be one of the instance."""
    own, of_instance = module.forward, vars(module).get("forward")
    module.forward = forward
    try:
        yield own
    finally:
        if of_instance is None:
            del module.forward
        else:
            module.forward = of_instance


@contextmanager
def head_replaced(head: nn.Module, forward: Callable[[Forward, Tensor], Tensor]) -> Iterator[Captured]:
    """Let `forward(own, hidden)` stand for the forward of an output layer, and capture what its hooks let out."""
    captured, thread = Captured(), threading.get_ident()
    own: Forward

    def stands_in(hidden: Tensor, *args: Any, **others: Any) -> Tensor:
        if threading.get_ident() != thread:
            return cast("Tensor", own(hidden, *args, **others))
        return forward(own, hidden)

    with _replaced(head, stands_in) as own:
        handle = head.register_forward_hook(captured.keep)
        try:
            yield captured
        finally:
            handle.remove()


class Captured:
    """The last output of a module in this thread, behind its hooks."""

    def __init__(self) -> None:
        self.output: Tensor | None = None
        self._thread = threading.get_ident()

    def keep(self, _module: nn.Module, _arguments: object, output: Tensor) -> None:
        """Keep an output."""
        if threading.get_ident() == self._thread:
            self.output = output
