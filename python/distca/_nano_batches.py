"""The documents of a batch of Transformers, and a batch dealt to nano-batches by documents.

A batch is [rows, tokens]; its documents are numbered row by row, and so are its tokens. Nothing here sends a message,
but run_in_parts calls what it is given. Bad input raises ValueError in one line. Any thread may call anything.
"""

import contextlib
import functools
import itertools
from dataclasses import dataclass

import torch

from distca._ping_pong import ping_pong

_PADDING = {"labels": -100, "shift_labels": -100}  # of all else: 0
_OF_TOKENS = ("input_ids", "inputs_embeds", "position_ids", "labels", "shift_labels", "seq_idx")
_OF_DOCUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def find_documents(shape, given) -> list:
    """[documents + 1]: where the documents of a batch [rows, tokens] begin, and where the last one ends."""
    rows, tokens = shape
    places, positions = given.get("cu_seq_lens_q"), given.get("position_ids")
    if places is not None:
        return _given(shape, places, given.get("cu_seq_lens_k"))
    if positions is None:
        return [row * tokens for row in range(rows + 1)] if tokens else [0]
    if positions.dim() != 2 or positions.shape[1] != tokens or positions.shape[0] not in (1, rows):
        raise ValueError(f"position_ids have shape {list(positions.shape)}: {list(shape)}, one position for a token")
    begins = torch.ones(rows, tokens, dtype=torch.bool)
    begins[:, 1:] = positions.diff(dim=1) != 1
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
    """The arguments that have a value for each token, each as [rows * tokens, ...]."""
    found = {name: given[name] for name in _OF_TOKENS if given.get(name) is not None}
    if "position_ids" not in found:
        found["position_ids"] = torch.arange(shape[1], device=next(iter(found.values())).device)[None]
    found["position_ids"] = found["position_ids"].expand(shape)
    if "labels" in found and "shift_labels" not in found:  # of the whole batch, as its loss has it
        found["shift_labels"] = torch.nn.functional.pad(found["labels"], (0, 1), value=-100)[..., 1:]
    for name, value in found.items():
        if tuple(value.shape[:2]) != shape:
            raise ValueError(f"{name} has shape {list(value.shape)}: {list(shape)}, a value for each token")
    return {name: value.flatten(0, 1) for name, value in found.items()}


def _rest_of(given) -> dict:
    rest = {name: value for name, value in given.items() if name not in _OF_TOKENS + _OF_DOCUMENTS}
    for name, value in rest.items():
        if isinstance(value, torch.Tensor) and value.numel() > 1:
            raise ValueError(f"{name} cannot be dealt to nano-batches: nano_batches=1, and no empty batch")
    return rest


@dataclass(frozen=True, eq=False)
class Part:
    """Documents of a batch that go through the model together. Without documents, it has one token of padding."""

    tokens: torch.Tensor  # [tokens] their numbers
    cu_seqlens: torch.Tensor  # [documents + 1] for attention


def parts_of(shape, given, count) -> list:
    """The batch [rows, tokens] dealt to `count` parts. A single part has the cu_seq_lens_q of the batch itself."""
    places = find_documents(shape, given)
    bounds = list(itertools.pairwise(places))
    is_kept = count == 1 and _is_kept(given.get("cu_seq_lens_q"))
    parts = []
    for documents in deal([end - begin for begin, end in bounds], count):
        at = torch.cat([torch.arange(0), *(torch.arange(*bounds[document]) for document in documents)])
        of_part = [0, *itertools.accumulate(bounds[document][1] - bounds[document][0] for document in documents)]
        cu_seqlens = torch.tensor(of_part if len(at) else [0, 1], dtype=torch.int32)
        parts.append(Part(at, given["cu_seq_lens_q"] if is_kept and len(at) else cu_seqlens))
    return parts


def _is_kept(places) -> bool:
    """Whether attention can take the given cu_seq_lens_q itself, to which a plan made ahead may belong.

    It would read one on a device again: it gets a copy on the CPU of what was read when the batch was dealt.
    """
    return (places is not None and places.dim() == 1 and places.dtype in (torch.int32, torch.int64)
            and places.device.type == "cpu" and not places.is_inference())


def run_in_parts(call, given, shape, parts):
    """Outputs of a model for the batch, of which `call(arguments, cu_seqlens)` computes a part.

    Two parts run as a ping-pong. Outputs of padding are dropped.
    """
    of_tokens, rest = _of_tokens(given, shape), _rest_of(given)
    if "shift_labels" in of_tokens and "num_items_in_batch" not in rest:
        rest["num_items_in_batch"] = (of_tokens["shift_labels"] != -100).sum().clamp_min(1)
    bodies = []
    for part in parts:
        one = {name: value[_on(value.device, part.tokens)][None] for name, value in of_tokens.items()}
        if not len(part.tokens):
            one = {name: value.new_full((1, 1, *value.shape[1:]), _PADDING.get(name, 0))
                   for name, value in of_tokens.items()}
        bodies.append(functools.partial(call, {**rest, **one, "return_dict": True}, part.cu_seqlens))
    order = [part.tokens for part in parts]
    if len(bodies) == 1:
        return _joined([bodies[0]()], order, shape)
    with _without_cache_of_weights(next(iter(of_tokens.values())).device.type):
        return _joined(ping_pong(*bodies), order, shape)


def _on(device, places):
    """Indices where what they choose from is. The host does not wait for the device."""
    return places.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else places


def _without_cache_of_weights(device):
    """Autocast casts a weight once for both nano-batches. Selective checkpointing counts casts: each needs its own."""
    if not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False)


def _joined(outputs, order, shape):
    """One output of the model out of those of the parts, whose tokens are those of `order`."""
    places = torch.cat(order)
    back = None if torch.equal(places, torch.arange(len(places))) else places.argsort()

    def join(values):
        if isinstance(values[0], tuple):
            return tuple(join(of_layer) for of_layer in zip(*values, strict=True))
        tokens = torch.cat([value[:, : len(part)] for value, part in zip(values, order, strict=True)], 1)
        tokens = tokens if back is None else tokens[:, _on(tokens.device, back)]
        return tokens if shape[0] == 1 else tokens.unflatten(1, shape)[0]  # FSDP warns of views

    fields = {}
    for name in outputs[0].keys():
        values = [output[name] for output in outputs]
        if name == "loss":
            fields[name] = functools.reduce(torch.add, values)
        elif name in ("logits", "hidden_states"):
            fields[name] = join(values)
        elif name != "past_key_values":
            raise ValueError(f"{name} of nano-batches cannot be joined: nano_batches=1, and no empty batch")
    return type(outputs[0])(**fields)
