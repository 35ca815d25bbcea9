"""Compares the gradients of a model on balanced attention with those on attention that each rank computes alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from distca._deal import DEALT
from distca._group import balanced_calls, by_itself

_BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2}
_LEAST = 1e-3  # of the whole gradient's norm: what a smaller gradient is compared with


@dataclass(frozen=True)
class Verified:
    """What `verify` found, the same on all ranks. True if the worst difference is within the bound."""

    worst: float  # the norm of the difference over that of the gradient
    parameter: str
    rank: int
    bound: float
    loss: float  # on that rank
    loss_alone: float

    def __bool__(self) -> bool:
        return self.worst <= self.bound

    def __str__(self) -> str:
        verdict = "within" if self else "above"
        return (f"worst gradient: {self.parameter} on rank {self.rank}, off by {self.worst:.1e}, {verdict} the bound of "
                f"{self.bound:.0e}; loss {self.loss:.9g}, alone {self.loss_alone:.9g}")


def verify(model, batch, loss=None, bound=None) -> Verified:
    """Runs forward and backward twice, with attention balanced over all ranks and computed on each rank alone.

    model: a torch.nn.Module whose attention is DistCA's. It may be wrapped by DDP or fully_shard.
    batch: what the model takes: a dictionary of keywords, or one argument. All ranks call verify, each with its own.
    loss: what takes the model's output and returns the loss; None takes output.loss, or the output itself.
    bound: what the worst difference may be; None: 1e-10 for float64, 1e-4 for float32, 3e-2 for bfloat16, by the
      coarsest of the parameters and of autocast.

    It leaves weights, gradients and random numbers as they were. Buffers that a forward changes are changed twice.
    Raises what the model raises, on every rank RuntimeError that names the rank where another one raised.
    """
    if not torch.is_grad_enabled():
        raise ValueError("verify computes gradients: call it outside of no_grad and inference_mode")
    if isinstance(batch, Mapping) and DEALT in batch:
        raise ValueError("verify: each rank computes its batch alone, and this one is dealt over ranks: give a batch of the loader")
    parameters = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    kept = [(one, one.grad) for _, one in parameters]
    try:
        with by_itself():
            alone, of_alone = _gradients_of_all(model, parameters, batch, loss)
        before = balanced_calls()
        ours, of_ours = _gradients_of_all(model, parameters, batch, loss)
        balanced = balanced_calls() - before
    finally:
        for one, gradient in kept:
            one.grad = gradient
    if _num_ranks() > 1 and balanced == 0:
        raise ValueError("verify: no attention of this model is balanced: attach it, or call distca.attention in it")
    found = _of_all((*_worst(of_ours, of_alone), _bound(parameters) if bound is None else bound, ours, alone))
    rank = max(range(len(found)), key=lambda one: found[one][0])
    worst, parameter, bound, loss, loss_alone = found[rank]
    return Verified(worst, parameter, rank, bound, loss, loss_alone)


def _bound(parameters) -> float:
    """Of the coarsest dtype."""
    dtypes = {one.dtype for _, one in parameters}
    for device in {one.device.type for _, one in parameters} & {"cpu", "cuda"}:
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
    return max(_BOUNDS.get(dtype, max(_BOUNDS.values())) for dtype in dtypes)


def _gradients_of_all(model, parameters, batch, loss):
    """`_gradients`, and then every rank learns whether another one raised, before it waits for anything else."""
    error = found = None
    with torch.random.fork_rng({one.device.index for _, one in parameters if one.device.type == "cuda"}):
        try:
            found = _gradients(model, parameters, batch, loss)
        except Exception as raised:
            error = raised
    lines = _of_all(error and str(error))
    if error is not None:
        raise error
    for rank, line in enumerate(lines):
        if line is not None:
            raise RuntimeError(f"verify: rank {rank} failed: {line}")
    return found


def _gradients(model, parameters, batch, loss) -> tuple[float, dict]:
    """The loss, and the gradient of each parameter in float64, of this rank's shard where it is sharded."""
    for _, one in parameters:
        one.grad = None
    output = model(**batch) if isinstance(batch, Mapping) else model(batch)
    found = loss(output) if loss else getattr(output, "loss", output)
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        what = f"a tensor of {list(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"verify: the loss is {what}, where one number is needed: loss=torch.sum, say, makes one of the output")
    found.backward()
    gradients = {}
    for name, one in parameters:
        if one.grad is not None:
            gradients[name] = getattr(one.grad, "_local_tensor", one.grad).detach().double()
    if not gradients:
        raise ValueError("verify: no parameter got a gradient: the model is called as for training")
    return found.item(), gradients


def _worst(ours, alone) -> tuple[float, str]:
    """The largest distance and its parameter. A gradient that only one of the two has is zero in the other."""
    least = _LEAST * torch.stack([gradient.norm() for gradient in alone.values()]).norm().item()
    worst, nothing = (0.0, ""), torch.zeros((), device="cpu")
    for name in {**alone, **ours}:
        want = alone.get(name, nothing)
        size = max(want.norm().item(), least)
        distance = (ours.get(name, nothing) - want).norm().item()
        distance = distance / size if size else distance
        worst = max(worst, (distance if math.isfinite(distance) else math.inf, name))
    return worst


def _num_ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _of_all(mine) -> list:
    """[ranks] What each gives."""
    found = [mine] * _num_ranks()
    if len(found) > 1:
        dist.all_gather_object(found, mine)
    return found
