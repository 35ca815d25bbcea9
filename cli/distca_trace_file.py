"""Reads traces of `distca train --trace` and `distca simulate --trace` for distca_trace.py, beside which it lies."""

import functools
import json
import re
import sys
from collections import namedtuple
from operator import itemgetter

KINDS = ("step", "compute", "copy", "launch", "wait", "flight")  # as distca/trace/chrome.cc names them
MOST_US = 9e12  # 2^53 ns are 104 days: beyond them microseconds in a double lose nanoseconds

# operation: the name without layer, nano-batch, exchange and bucket, "forward core_attention".
Event = namedtuple("Event", "rank kind operation begin end step layer micro_batch nano_batch tick tag awaited to bytes "
                   "received_bytes flops")
# Of an event's "args", those that it may lack.
ABSENT = {"layer": -1, "micro_batch": -1, "nano_batch": -1, "tick": -1, "tag": 0, "from": (), "to": (), "bytes": 0,
          "received_bytes": 0, "flops": 0}
ARGUMENTS = itemgetter("step", *ABSENT)  # in the order of an Event


class Fault(Exception):
    """What is wrong with a trace; who catches it says where."""


def fail(line, exit_code=2):
    """Ends the program with an error line, as cli/main.cc would: control characters are shown as spaces."""
    line = re.sub(r"[\x00-\x1f\x7f]", " ", line)
    print(f"distca: error: {line}", file=sys.stderr)
    sys.exit(exit_code)


def shown(value):
    return f"{json.dumps(value, default=str):.40}"


def member(thing, key, kind=object):
    if not isinstance(thing, dict):
        raise Fault(f"expected an object, found {shown(thing)}")
    if key not in thing:
        raise Fault(f'no "{key}"')
    if not isinstance(thing[key], kind):
        wanted = {str: "a string", list: "a list"}[kind]
        raise Fault(f'"{key}" is {shown(thing[key])}: expected {wanted}')
    return thing[key]


def number(thing, key, least=0, most=1e18):
    value = member(thing, key)
    if type(value) not in (int, float) or not least <= value <= most:
        raise Fault(f'"{key}" is {shown(value)}: expected a number from {least:g} to {most:g}')
    return value


def integer(value, key):
    if type(value) is not int or not 0 <= value < 2**63:
        raise Fault(f'"{key}" is {shown(value)}: expected an integer from 0 on')
    return value


@functools.cache
def operation_of(name, layer, nano_batch):
    name = re.sub(r" \(part \d+\)", "", name)  # a share of core attention
    name = name.replace(f" layer {layer}", "", 1).replace(f" of nano-batch {nano_batch}", "", 1)
    return name.partition(" of bucket ")[0].partition(" of exchange ")[0]


def event_of(line):
    """The Event of an object of "traceEvents" that has "ph"; None of a name, an arrow or a counter's value."""
    if line["ph"] in ("M", "s", "f", "C"):
        return None
    if line["ph"] != "X":
        raise Fault(f'"ph" is {shown(line["ph"])}: expected X, M, s, f or C')
    if member(line, "cat") not in KINDS:
        raise Fault(f'"cat" is {shown(line["cat"])}: no kind of event')
    begin, length = round(number(line, "ts", 0, MOST_US) * 1e3), round(number(line, "dur", 0, MOST_US) * 1e3)
    given = member(line, "args")
    member(given, "step")
    for key, value in given.items():
        if key == "flops":
            number(given, key, 0, 1e300)
        elif key in ("from", "to"):
            for rank in member(given, key, list):
                integer(rank, key)
        else:
            integer(value, key)
    more = {**ABSENT, **given}
    operation = operation_of(member(line, "name", str), more["layer"], more["nano_batch"])
    return Event(integer(member(line, "pid"), "pid"), line["cat"], operation, begin, begin + length, *ARGUMENTS(more))


def compact(thing):
    """What the parser keeps of an object: of an event only its Event, for there may be millions."""
    if "ph" not in thing:
        return thing
    try:
        return event_of(thing)
    except Fault as fault:
        return fault


def check_other(other):
    """Raises a Fault unless "otherData" is a trace's."""
    if member(other, "program", str) != "distca":
        raise Fault("of another program")
    for key in ("version", "commit", "overlap"):
        member(other, key, str)
    for rank in member(other, "ranks", list):
        if member(rank, "role") not in ("worker", "server"):
            raise Fault(f'"role" is {shown(rank["role"])}: expected worker or server')
        for key, least in (("clock_offset_s", -1e18), ("clock_drift", -1), ("clock_uncertainty_s", 0)):
            number(rank, key, least)
        for key in ("stage", "tensor", "rank"):
            integer(rank.get(key, 0), key)
    if "predicted" in other:
        member(other["predicted"], "machine", str)
        for key in ("num_ranks", "alike"):
            if integer(member(other["predicted"], key), key) == 0:
                raise Fault(f'"{key}" is 0')


def alike_ranks(other):
    """The number of neighbouring ranks for which the first one stands: above 1 in predicted traces alone."""
    return other.get("predicted", {}).get("alike", 1)


def placed(events, other):
    """The events with the places of ranks in "ranks" as their numbers; a rank that the file has not is -1.

    They differ where the file has some ranks of a run alone. Who does the same as a rank of the file stands for it.
    """
    ranks = other["ranks"]
    places = {rank.get("rank", place): place for place, rank in enumerate(ranks)}
    if len(places) < len(ranks):
        raise Fault('two of "ranks" have the same "rank"')
    for rank in {event.rank for event in events}:
        if rank not in places:
            raise Fault(f'an event of rank {rank}, "otherData" names {len(ranks)} ranks')
    if not any("rank" in rank for rank in ranks):
        return events
    alike = alike_ranks(other)

    def places_of(peers):
        return list(dict.fromkeys(places.get(peer, places.get(peer - peer % alike, -1)) for peer in peers))

    return [event._replace(rank=places[event.rank], awaited=places_of(event.awaited), to=places_of(event.to))
            for event in events]


def read_trace(path):
    """("otherData", events) of a trace. Ranks of events are places in "ranks"."""
    try:
        with open(path, encoding="utf-8") as file:
            root = json.load(file, object_hook=compact)
    except OSError as error:
        fail(f"{path}: cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        fail(f"{path}: byte {getattr(error, 'pos', getattr(error, 'start', 0)) + 1} is not JSON: {error}")
    try:
        events = member(root, "traceEvents", list)
        for index, event in enumerate(events):
            if event is not None and not isinstance(event, Event):
                raise Fault(f"traceEvents[{index}]: {event if isinstance(event, Fault) else 'no event'}")
        other = member(root, "otherData")
        check_other(other)
        return other, placed([event for event in events if event], other)
    except Fault as fault:
        fail(f"{path}: not a trace that `distca train --trace` wrote: {fault}")
