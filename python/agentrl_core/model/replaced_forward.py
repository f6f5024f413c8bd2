"""Run this package's code in place of a causal model's forward, inside the call of the model's wrappers.

DDP, FSDP, PEFT, torch.compile, DeepSpeed and Accelerate work through hooks around the model's call. So the outer object
is called as usual, and the forward of the causal model in it is replaced for that one call.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from agentrl_core.exceptions import AgentRLError, UnsupportedError

Forward = Callable[..., Any]
Body = Callable[[Forward, Tensor], tuple[Tensor, ...]]


class ForwardSite:
    """A replaceable forward of a module: each thread calls its own replacement, other threads the module's forward.

    All replacements go through the same object, so that torch.compile, which compares it, compiles its callers once.
    """

    def __init__(self, module: nn.Module, of_instance: Forward | None = None) -> None:
        self._module = weakref.ref(module)
        self.passes = threading.RLock()
        """Lock held during `call_in_place`, so that calls run one at a time."""
        self.installed: Forward = self._forward
        self.of_thread: dict[int, Forward] = {}
        self.of_instance = of_instance
        """The forward set on the instance before the first replacement; None: that of its class."""

    def own(self) -> Forward:
        """Return the module's own forward, as without replacements."""
        module: Any = self._module()
        return self.of_instance or _of_instance(module) or MethodType(type(module).forward, module)

    def _forward(self, *args: Any, **given: Any) -> Any:
        return (self.of_thread.get(threading.get_ident()) or self.own())(*args, **given)

    def __reduce__(self) -> tuple[type[ForwardSite], tuple[nn.Module | None, Forward | None]]:
        """Pickle or copy the site with its module, so that a copy made during a replacement has its own forward."""
        return ForwardSite, (self._module(), self.of_instance)


_SITES: weakref.WeakKeyDictionary[nn.Module, ForwardSite] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def _of_instance(module: nn.Module) -> Forward | None:
    """Return the forward that was set on a module instance, not counting replacements by a `ForwardSite`."""
    forward: Forward | None = vars(module).get("forward")
    site = getattr(forward, "__self__", None)
    return site.of_instance if isinstance(site, ForwardSite) else forward


def _site_of(module: nn.Module) -> ForwardSite:
    return _SITES.get(module) or _SITES.setdefault(module, ForwardSite(module))


@contextmanager
def forwards_replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Replace the forwards of modules in this thread, inside a `with` block.

    Args:
        forwards: for each module the function that is called as `forward(own, *args, **kwargs)`, where `own` is the
            forward that the module had before the block.
    """
    thread = threading.get_ident()
    before: list[tuple[nn.Module, ForwardSite, Forward | None]] = []
    try:
        with _LOCK:
            for module, forward in forwards.items():
                site = _site_of(module)
                outer = site.of_thread.get(thread)
                if not site.of_thread:
                    site.of_instance = _of_instance(module)
                before.append((module, site, outer))
                site.of_thread[thread] = functools.partial(forward, outer or site.own())
                vars(module)["forward"] = site.installed
        yield
    finally:
        with _LOCK:
            for module, site, outer in before:
                if outer is not None:
                    site.of_thread[thread] = outer
                    continue
                site.of_thread.pop(thread, None)
                if site.of_thread:
                    continue
                if site.of_instance is None:
                    vars(module).pop("forward", None)
                else:
                    vars(module)["forward"], site.of_instance = site.of_instance, None


def call_in_place(outer: nn.Module, inner: nn.Module, body: Body, ids: Tensor) -> tuple[Tensor, ...]:
    """Call `outer(input_ids=ids)`, with `body` in place of the forward of `inner`, the model inside `outer`.

    Args:
        outer: the model in its wrappers.
        inner: the model.
        body: gets the model's own forward and the tokens that reached it, and returns tensors.
        ids: `int64[1, T]`.

    Returns:
        The tensors of `body`, as the wrappers returned them.

    Raises:
        UnsupportedError: a wrapper changes arguments or results.
    """
    inner_results: tuple[Tensor, ...] | None = None

    def forward(own: Forward, *args: Any, **given: Any) -> tuple[Tensor, ...]:
        nonlocal inner_results
        tokens = given.pop("input_ids", None)
        extra = [n for n, v in given.items() if v is not None and not isinstance(v, bool)]
        if extra:
            raise UnsupportedError(
                f"model: {type(outer).__name__} passes {', '.join(extra)} to the language model, as prompt and prefix "
                "tuning do, but packs can pass only tokens; use an adapter in the layers (LoRA)"
            )
        if args or inner_results is not None or not isinstance(tokens, Tensor) or tokens.shape != ids.shape:
            problem = "with other inputs than the tokens of the pack (as prompt tuning does)"
            if inner_results is not None:
                problem = "more than once"
            raise UnsupportedError(
                f"model: {type(outer).__name__} calls its {type(inner).__name__} {problem}; give pack.run a wrapper "
                "that passes its arguments on once"
            )
        inner_results = body(own, tokens)
        return inner_results

    with _site_of(inner).passes, forwards_replaced({inner: forward}):
        try:
            result = outer(input_ids=ids)
        except AgentRLError:
            raise
        except Exception as error:
            if inner_results is None or outer is inner:
                raise
            raise UnsupportedError(
                f"model: {type(outer).__name__} fails on what its {type(inner).__name__} returns for a pack ({error}); "
                "give a wrapper that returns what the language model returns"
            ) from error
    if inner_results is None:
        raise UnsupportedError(
            f"model: {type(outer).__name__} does not call the {type(inner).__name__} inside it; give the language "
            "model, or a wrapper that calls it"
        )
    return _checked(outer, inner, inner_results, result)


def _checked(
    outer: nn.Module, inner: nn.Module, inner_results: tuple[Tensor, ...], result: object
) -> tuple[Tensor, ...]:
    """Return the result of the wrappers, if its shapes and dtypes are those that the inner model returned."""
    if not isinstance(result, (tuple, list)) or [_form(each) for each in result] != [
        _form(each) for each in inner_results
    ]:
        shapes = [getattr(each, "shape", type(each)) for each in inner_results]
        problem, remedy = "changes the form", "give the language model itself"
        if isinstance(result, (tuple, list)) and [getattr(each, "shape", type(each)) for each in result] == shapes:
            problem = "changes the dtype"
            remedy = "set the output dtype to torch.float32 (MixedPrecisionPolicy(output_dtype=...) for FSDP)"
        raise UnsupportedError(
            f"model: {type(outer).__name__} {problem} of what its {type(inner).__name__} returns; {remedy}"
        )
    return tuple(result)


def _form(value: object) -> object:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)


def leave_uncompiled(model: nn.Module) -> None:
    """Exclude the code of packs from torch.compile, if it was applied to a model or a part of it.

    The shapes in the code of packs differ from pack to pack.
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

    for name in ("attention", "matmul", "pack_forward", "readings", "replaced_forward", "transformers_attention"):
        trace_rules.add(f"agentrl_core.model.{name}")


@contextmanager
def head_replaced(head: nn.Module, forward: Forward) -> Iterator[Captured]:
    """Replace an output layer's forward by `forward(own, hidden)` inside a `with` block; capture its final output."""
    captured = Captured()
    with forwards_replaced({head: forward}):
        handle = head.register_forward_hook(captured.keep)
        try:
            yield captured
        finally:
            handle.remove()


class Captured:
    """The last output of a module in this thread, after its hooks."""

    def __init__(self) -> None:
        self.output: Tensor | None = None
        self._thread = threading.get_ident()

    def keep(self, _module: nn.Module, _arguments: object, output: Tensor) -> None:
        """Store the module's output, if it was computed in this thread: a forward hook."""
        if threading.get_ident() == self._thread:
            self.output = output
