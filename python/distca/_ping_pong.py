"""Forwards that take turns inside attention, so that the messages of one travel while another one computes.

A body is a coroutine (a greenlet): it gives way to the next one inside `distca.attention`, after its Q, K and V are
sent and after its O is sent. Autograd runs backward in the opposite order of forward, so gradients take turns as well.

Each coroutine has its own copy of what PyTorch keeps of a thread: autocast, gradient and inference mode, saved-tensor
hooks, dispatch and torch-function modes with the default device, the random numbers of the CPU and of the current CUDA
device, and that device's current stream. So what a body enters in a `with` statement, checkpointing among it, stays with
this body.
"""

import contextlib
import contextvars
import ctypes
import sys
import threading

import torch
from torch.utils import _python_dispatch
from torch.utils._mode_utils import no_dispatch

from distca import _library, _ops
from distca._fsdp import SharedLayers

_running = threading.local()  # .coroutine: the one that runs on this thread

# What _python_dispatch keeps of its modes beside the thread's state.
_FLAGS = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode",
          "_is_in_any_mode_without_ignore_compile_internals")


_LIBRARY = _library.load(_ops.LIBRARY, {
    "distca_thread_state_copy": (ctypes.c_void_p, ctypes.c_int),
    "distca_thread_state_swap": (None, ctypes.c_void_p),
    "distca_thread_state_free": (None, ctypes.c_void_p),
}, ctypes.PyDLL)  # which keeps Python's lock


def require_greenlet():
    """The package greenlet. Raises ImportError in one line without it."""
    try:
        import greenlet
    except ImportError:
        raise ImportError("distca.ping_pong needs the package greenlet: pip install greenlet") from None
    return greenlet


class _ThreadState:
    """A copy of what PyTorch keeps of this thread."""

    def __init__(self):
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1
        self._state = _LIBRARY.distca_thread_state_copy(device)
        if not self._state:
            raise MemoryError("distca.ping_pong: a copy of the thread's state")
        self._flags = self._flags_now()

    @staticmethod
    def _flags_now():
        return {name: getattr(_python_dispatch, name) for name in _FLAGS if hasattr(_python_dispatch, name)}

    def swap(self):
        """Exchanges the thread's state and this one."""
        flags, self._flags = self._flags, self._flags_now()
        vars(_python_dispatch).update(flags)
        if _FLAGS[-1] in flags:
            _python_dispatch.set_is_in_mode_without_ignore_compile_internals(flags[_FLAGS[-1]])
        _LIBRARY.distca_thread_state_swap(self._state)

    def __del__(self, free=_LIBRARY.distca_thread_state_free):  # globals are gone at the end
        free(self._state)


class _Coroutine:
    """A body that runs in turns. It begins with the caller's state, and with random numbers of its own."""

    def __init__(self, body, seed):
        self.result = None
        self.caller = getattr(_running, "coroutine", None)  # the body that begins this one
        self._state = _ThreadState()
        self._is_ending = False
        self._greenlet = require_greenlet().greenlet(lambda: self._run(body, seed))
        self._greenlet.gr_context = contextvars.copy_context()

    @staticmethod
    def _run(body, seed):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)
        return body()

    @property
    def is_over(self):
        return self._greenlet.dead

    def go_on(self):
        """Runs the body until it gives way or returns. Raises what the body raises."""
        with self._in_its_state():
            result = self._greenlet.switch()
        if self.is_over:
            self.result = result

    def end(self):
        """Ends the body where it stands, as GreenletExit; what it raises meanwhile is dropped."""
        self._is_ending = True
        with self._in_its_state(), contextlib.suppress(Exception):
            self._greenlet.throw()

    def give_way(self):
        if self._is_ending:
            raise require_greenlet().GreenletExit
        self._greenlet.parent.switch()

    @contextlib.contextmanager
    def _in_its_state(self):
        caller = getattr(_running, "coroutine", None)
        self._state.swap()
        _running.coroutine = self
        try:
            yield
        finally:
            _running.coroutine = caller
            self._state.swap()


def _is_in_backward():
    return torch._C._current_graph_task_id() != -1


def give_way():
    """Lets the other bodies run, if a body of `ping_pong` calls this in its forward. Else it does nothing."""
    coroutine = getattr(_running, "coroutine", None)
    if coroutine is not None and not _is_in_backward():
        coroutine.give_way()


def refuse_reentrant_checkpoint():
    """Raises ValueError if a body calls this within reentrant checkpointing, where gradients are off.

    That is a function of autograd whose forward has a backward, which will call attention again.
    """
    if getattr(_running, "coroutine", None) is None or _is_in_backward():
        return
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount > 0:
            node = frame.f_locals.get(code.co_varnames[0])
            if isinstance(node, torch.autograd.function.BackwardCFunction) and node.next_functions:
                raise ValueError("attention of distca.ping_pong is under reentrant checkpointing: "
                                 "checkpoint with use_reentrant=False")
        frame = frame.f_back


@torch.compiler.disable
def ping_pong(*bodies) -> list:
    """Runs the bodies in turns: each gives way to the next one inside `distca.attention`. Returns what they return.

    bodies: functions without arguments; two as a rule, each the forward of a half of the batch. All ranks call
      ping_pong with equally many bodies, and call the same layers in the same order. Each body has a `cu_seqlens_q` of
      its own. A half that has no tokens on this rank calls attention with 0 tokens.

        losses = distca.ping_pong(lambda: model(first), lambda: model(second))
        sum(losses).backward()

    One backward through the sum of what they return takes turns as the forward did. `distca.dispatch`,
    `core_attention` and `combine` do not give way.

    FSDP2 (`fully_shard`): a layer is gathered once for all bodies, and resharded when the last one has left it.
    Random numbers: each body has its own, seeded from the caller's. So checkpointing draws them again as they were.

    torch.compile: bodies may call what is compiled; ping_pong itself is a break of the graph.

    Raises ImportError without the package greenlet, and ValueError for a body that cannot be called and for attention
    under reentrant checkpointing. What a body raises ends the other bodies (GreenletExit, where they stand) and is
    raised. One thread at a time calls ping_pong; a body may call it, too.
    """
    if not bodies or not all(callable(body) for body in bodies):
        raise ValueError("distca.ping_pong takes functions without arguments, one or more")
    require_greenlet()
    with no_dispatch():  # no operator of the caller's modes
        seeds = torch.randint(2**62, (len(bodies),), device="cpu", dtype=torch.int64).tolist()
    coroutines = [_Coroutine(body, seed) for body, seed in zip(bodies, seeds)]
    with SharedLayers(coroutines, lambda: getattr(_running, "coroutine", None)) as layers:
        try:
            under_way = coroutines
            while under_way:
                for coroutine in under_way:
                    coroutine.go_on()
                    if coroutine.is_over:
                        layers.left_by(coroutine)
                under_way = [coroutine for coroutine in under_way if not coroutine.is_over]
        finally:
            for coroutine in coroutines:
                if not coroutine.is_over:
                    coroutine.end()
    return [coroutine.result for coroutine in coroutines]
