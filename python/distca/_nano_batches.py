"""The documents of a batch of Transformers, and a batch dealt to nano-batches by documents.

A batch is [rows, tokens]; its documents are numbered row by row, and so are its tokens. Nothing here sends a message,
but run_in_parts calls what it is given. Bad input raises ValueError in one line. Any thread may call anything.
"""

import contextlib
import functools
import itertools
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from distca._ping_pong import ping_pong
from distca._served import state_of

_OF_TOKENS = ("input_ids", "inputs_embeds", "position_ids", "seq_idx", "per_layer_inputs")
_OF_DOCUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
CACHES = {"past_key_values", "cache"}  # arguments and outputs that hold K and V: the name until Transformers 5.23, and from 5.24 on


def find_documents(shape, given) -> list:
    """[documents + 1]: where the documents of a batch [rows, tokens] begin, and where the last one ends."""
    rows, tokens = shape
    places, positions = given.get("cu_seq_lens_q"), given.get("position_ids")
    if places is not None:
        return _given(shape, places, given.get("cu_seq_lens_k"))
    if positions is None:
        return [row * tokens for row in range(rows + 1)] if tokens else [0]
    if positions.dim() != 2 or positions.shape[1] != tokens or positions.shape[0] not in (1, rows):
        raise ValueError(f"position_ids have shape {list(positions.shape)}: {list(shape)}, one position for a token; those of images "
                         "are not served")
    steps = positions.diff(dim=1).cpu()
    if given.get("attention_mask") is not None and bool((steps > 1).any()):
        raise ValueError("position_ids jump forward within a row, beside an attention_mask: documents may begin there or not, so say where "
                         "they do with cu_seq_lens_q, or leave the mask out if they do")
    begins = torch.ones(rows, tokens, dtype=torch.bool, device="cpu")
    begins[:, 1:] = steps != 1
    return [*begins.flatten().nonzero().flatten().tolist(), rows * tokens]


def _given(shape, places, of_keys) -> list:
    if shape[0] != 1:
        raise ValueError(f"cu_seq_lens_q and {shape[0]} rows: documents that are packed lie in one row")
    if of_keys is not None and of_keys is not places and not torch.equal(of_keys, places):
        raise ValueError("cu_seq_lens_q and cu_seq_lens_k differ: cross attention is not served")
    found = places.flatten().tolist()
    if not found or found[0] != 0 or found[-1] != shape[1] or any(b < a for a, b in itertools.pairwise(found)):
        raise ValueError(f"cu_seq_lens_q begins with 0, never descends and ends with the batch's {shape[1]} tokens")
    return found


def deal(lengths, parts) -> list:
    """The numbers of the documents of each part, ascending: whole documents, the largest part as small as is found.

    Parts are runs of neighbours where these are as even as dealing the longest document first.
    """
    if parts == 1:
        return [list(range(len(lengths)))]
    before = [0, *itertools.accumulate(lengths)]
    cut = min(range(len(before)), key=lambda i: max(before[i], before[-1] - before[i]))
    dealt, loads = ([], []), [0, 0]
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        lighter = loads.index(min(loads))
        dealt[lighter].append(document)
        loads[lighter] += lengths[document]
    if max(loads) < max(before[cut], before[-1] - before[cut]):
        return [sorted(one) for one in dealt]
    return [list(range(cut)), list(range(cut, len(lengths)))]


def _of_tokens(given, shape) -> dict:
    """The arguments that have a value for each token, each as [..., rows * tokens, ...]: those known to, and others of this shape."""
    found = {name: value for name, value in given.items() if name in _OF_TOKENS or (
        name not in _OF_DOCUMENTS and isinstance(value, torch.Tensor) and tuple(value.shape[:2]) == shape)}
    if "position_ids" in found:  # [tokens], [rows, tokens], or [3, rows, tokens] where images have positions
        found["position_ids"] = found["position_ids"].expand(*found["position_ids"].shape[:-2], *shape)
    for name, value in found.items():
        of = value.shape[-2:] if name == "position_ids" else value.shape[:2]
        if tuple(of) != shape:
            raise ValueError(f"{name} has shape {list(value.shape)}: {list(shape)}, a value for each token")
    return {name: value.flatten(-2) if name == "position_ids" else value.flatten(0, 1) for name, value in found.items()}


def _rest_of(given, of_tokens) -> dict:
    rest = {name: value for name, value in given.items() if name not in of_tokens and name not in _OF_DOCUMENTS}
    for name, value in rest.items():
        if any(isinstance(one, torch.Tensor) and one.numel() > 1 for one in tree_leaves(value)):
            raise ValueError(f"{name} has no value for each token, so it cannot be divided: attach with nano_batches=1, and give each "
                             "rank tokens")
    return rest


@dataclass(frozen=True, eq=False)
class Part:
    """Documents of a batch that go through the model together. Without documents, it has one token of padding."""

    tokens: torch.Tensor  # [tokens] their numbers
    cu_seqlens: torch.Tensor  # [documents + 1] for attention, or [pieces, 3]


def parts_of(shape, given, count) -> list:
    """The batch [rows, tokens] dealt to `count` parts. A single part has the cu_seq_lens_q of the batch itself."""
    return _dealt(find_documents(shape, given), given.get("cu_seq_lens_q"), count)


def _dealt(places, cu_seq_lens_q, count) -> list:
    bounds = list(itertools.pairwise(places))
    is_kept = count == 1 and _is_kept(cu_seq_lens_q)
    parts = []
    for documents in deal([end - begin for begin, end in bounds], count):
        at = torch.cat([torch.arange(*bounds[document], device="cpu") for document in documents] or [torch.arange(0, device="cpu")])
        of_part = [0, *itertools.accumulate(bounds[document][1] - bounds[document][0] for document in documents)]
        cu_seqlens = torch.tensor(of_part if len(at) else [0, 1], dtype=torch.int32, device="cpu")
        parts.append(Part(at, cu_seq_lens_q if is_kept and len(at) else cu_seqlens))
    return parts


class Ahead:
    """A batch that is planned ahead: its parts, for one forward, whose batch says the documents that were planned."""

    def __init__(self, shape, batch, count):
        self._name, self._said = _saying(batch)
        self._state = state_of(self._said) if _is_on_device(self._said) else None
        self._places = find_documents(shape, batch)
        self.parts = _dealt(self._places, batch.get("cu_seq_lens_q"), count)

    def take(self, shape, given):
        """The parts; None if a forward has them already. Raises ValueError if the batch says other documents now.

        On the CPU, numbers are compared. The host does not wait for a device: there, the object and its version are.
        """
        parts, self.parts = self.parts, None
        name, said = _saying(given)
        if parts is None:
            return None
        if _is_on_device(said) and self._said is not None and not _is_on_device(self._said):
            name, said = self._name, self._said  # the forward has a copy of it, as DDP makes on a device
        if _is_on_device(said):
            is_same = said is self._said and state_of(said) == self._state
        else:
            is_same = find_documents(shape, {name: said}) == self._places
        if not is_same and self._said is None:
            raise ValueError(f"{name} was not in the batch when plan_ahead planned it, so each row was taken for a document")
        if not is_same:
            name = self._name if said is None else name
            raise ValueError(f"{name} was written to after plan_ahead had planned it, or replaced: each batch has "
                             "a tensor of its own")
        return parts


def _saying(given):
    """(the name, the tensor) of what says where documents begin; of rows that are documents, there is no tensor."""
    found = (name for name in ("cu_seq_lens_q", "position_ids") if given.get(name) is not None)
    name = next(found, "input_ids")
    return name, given[name] if name != "input_ids" else None


def _is_on_device(tensor) -> bool:
    return tensor is not None and tensor.device.type != "cpu"


def positions_of(shape, parts):
    """[rows, tokens] on the CPU: where each token stands in its document."""
    found = torch.zeros(shape, dtype=torch.int64, device="cpu").flatten()
    for part in parts:
        if len(part.tokens):
            begins, lengths = part.cu_seqlens[:-1].long(), part.cu_seqlens.diff().long()
            found[part.tokens] = torch.arange(len(part.tokens), device="cpu") - begins.repeat_interleave(lengths)
    return found.view(shape)


def _is_kept(places) -> bool:
    """Whether attention can take the given cu_seq_lens_q itself, to which a plan made ahead may belong.

    It would read one on a device again: it gets a copy on the CPU of what was read when the batch was dealt.
    """
    return (places is not None and places.dim() == 1 and places.dtype in (torch.int32, torch.int64)
            and places.device.type == "cpu" and not places.is_inference())


def run_in_parts(call, given, shape, parts):
    """Outputs of a decoder for the batch, of which `call(arguments, cu_seqlens)` computes a part.

    given: its arguments without None. Two parts run as a ping-pong. Outputs of padding are dropped.
    """
    of_tokens = _of_tokens(given, shape)
    rest = _rest_of(given, of_tokens)
    bodies = []
    for part in parts:
        one = {name: _chosen(name, value, part.tokens) for name, value in of_tokens.items()}
        bodies.append(functools.partial(call, {**rest, **one, "return_dict": True}, part.cu_seqlens))
    order = [part.tokens for part in parts]
    if len(bodies) == 1:
        return _joined([bodies[0]()], order, shape)
    with _without_cache_of_weights(next(iter(of_tokens.values())).device.type):
        return _joined(ping_pong(*bodies), order, shape)


def _chosen(name, value, tokens):
    """A row of the tokens of a part, whose places are `tokens`. A part without tokens has one of padding."""
    axis = value.dim() - 1 if name == "position_ids" else 0
    if len(tokens):
        return value.index_select(axis, _on(value.device, tokens)).unsqueeze(axis)
    shape = [*value.shape[:axis], 1, 1, *value.shape[axis + 1:]]
    return value.new_zeros(shape)


def _on(device, places):
    """Indices where what they choose from is. The host does not wait for the device."""
    return places.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else places


def _without_cache_of_weights(device):
    """Autocast casts a weight once for both nano-batches. Selective checkpointing counts casts: each needs its own."""
    if not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False)


def _joined(outputs, order, shape):
    """One output of the decoder out of those of the parts, whose tokens are those of `order`."""
    places = torch.cat(order)
    back = None if torch.equal(places, torch.arange(len(places), device="cpu")) else places.argsort()

    def join(name, values):
        if values[0] is None:
            return None
        if isinstance(values[0], (tuple, list)):
            return type(values[0])(join(name, of_layer) for of_layer in zip(*values, strict=True))
        sizes = [max(len(part), 1) for part in order]
        is_row = [tuple(value.shape[:2]) for value in values] == [(1, size) for size in sizes]
        if not is_row and [value.shape[:1] for value in values] != [(size,) for size in sizes]:
            raise ValueError(f"{name} of nano-batches cannot be joined: nano_batches=1, and no empty batch")
        axis = 1 if is_row else 0  # what routers say has no axis of rows
        tokens = torch.cat([value.narrow(axis, 0, len(part)) for value, part in zip(values, order, strict=True)], axis)
        tokens = tokens if back is None else tokens.index_select(axis, _on(tokens.device, back))
        return tokens if shape[0] == 1 or not is_row else tokens.unflatten(1, shape)[0]  # FSDP warns of views

    fields = {name: join(name, [output[name] for output in outputs])
              for name in outputs[0].keys() if name not in CACHES}
    return type(outputs[0])(**fields)
