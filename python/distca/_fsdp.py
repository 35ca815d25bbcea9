"""FSDP2 (torch.distributed.fsdp.fully_shard) under ping-pong: one gathering of a layer serves all bodies. FSDP1 is refused.

FSDP2 reshards a layer when a forward leaves it, and by then another body may be within. It also registers the end of a
layer's backward for every forward of it, and the first one to end reshards the layer under the others.
"""

import sys

import torch

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_FSDP1 = "torch.distributed.fsdp._flat_param"


def _groups():
    """The groups of parameters that FSDP2 gathers together, of all models of this process."""
    if _STATE not in sys.modules:  # nobody has called fully_shard
        return []
    from torch.distributed._composable_state import _module_state_mapping

    states = {reference() for reference in list(_module_state_mapping.values())}
    fsdp = [state for state in states if isinstance(state, sys.modules[_STATE].FSDPState)]
    # PyTorch 2.11 has one group, or None, for a state.
    groups = [getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)] for state in fsdp]
    return [group for of_state in groups for group in of_state if group is not None]


class SharedLayers:
    """While it is entered, a layer is resharded when all bodies have left it.

    `running()` is the coroutine that runs, and its `caller` the one that began it: a body may begin bodies of its own.
    """

    def __init__(self, bodies, running):
        self._bodies, self._running = bodies, running
        self._layers, self._handle = [], None

    def __enter__(self):
        self._layers = [_Layer(group, self._bodies, self._running) for group in _groups()]
        if len(self._bodies) > 1 and _FSDP1 in sys.modules:
            self._handle = sys.modules[_FSDP1].FlatParamHandle
            self._reshard, self._handle.reshard = self._handle.reshard, self._refuse_fsdp1
        return self

    @staticmethod
    def _refuse_fsdp1(handle, frees):
        if frees:
            raise ValueError("FSDP1 frees a layer's weights while another nano-batch or body is within: FSDP2 (fsdp_version 2, "
                             "fully_shard), sharding strategy SHARD_GRAD_OP, or nano_batches=1")

    def left_by(self, body):
        """The body has ended: it comes to no layer any more."""
        for layer in self._layers:
            layer.left_by(body)

    def __exit__(self, *_):
        if self._handle is not None:
            self._handle.reshard = self._reshard
        for layer in self._layers:
            layer.give_back()


class _Layer:
    """A group of parameters whose methods are those of this class for the time being."""

    def __init__(self, group, bodies, running):
        self._group, self._running = group, running
        self._bodies = frozenset(bodies)
        self._to_come, self._within = set(bodies), set()
        self._first = None  # body to come
        self._is_deferred = False
        # Those of a ping_pong around this one.
        self._outer = {name: vars(group)[name] for name in ("pre_forward", "reshard") if name in vars(group)}
        self._pre_forward, self._reshard = group.pre_forward, group.reshard
        group.pre_forward, group.reshard = self._enter, self._leave

    def _body(self):
        """The body whose forward runs, by itself or by a ping_pong that it called; None within backward."""
        if torch._C._current_graph_task_id() != -1:
            return None
        coroutine = self._running()
        while coroutine is not None and coroutine not in self._bodies:
            coroutine = coroutine.caller
        return coroutine

    def _pre_forward_again(self, *arguments):
        """Gathers, and registers no end of backward."""
        self._group._register_post_backward_hook = lambda args, kwargs: (args, kwargs)
        try:
            return self._pre_forward(*arguments)
        finally:
            del self._group._register_post_backward_hook

    def _enter(self, *arguments):
        body = self._body()
        if body is not None:
            self._within.add(body)
            if self._first is None:
                self._first = body
            elif body is not self._first:  # the end of backward is that of the first body, whose backward comes last
                return self._pre_forward_again(*arguments)
        return self._pre_forward(*arguments)

    def _leave(self):
        body = self._body()
        if body is None:
            self._reshard()
        else:
            self._is_deferred = True
            self.left_by(body)

    def left_by(self, body):
        self._to_come.discard(body)
        self._within.discard(body)
        if self._is_deferred and not self._to_come and not self._within:
            self._reshard_after_forward()

    def _reshard_after_forward(self):
        from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

        self._is_deferred = False
        state = self._group._training_state
        self._group._training_state = TrainingState.FORWARD  # in which alone it does what fully_shard was told of forward
        self._reshard()
        self._group._training_state = state

    def give_back(self):
        if self._is_deferred or self._within:  # a body raised: what stays gathered would be old in the next forward
            self._reshard_after_forward()
        del self._group.pre_forward, self._group.reshard
        vars(self._group).update(self._outer)
