#!/usr/bin/env python3
"""Includes go down only, and PyTorch stays where it belongs (the table in docs and below).

  cli python bench tests      examples
  train      torch_ops
  report
  forecast   api
  config
  model      runtime  sim
             program  comm  kernels  checkpoint
             plan   trace
             cost
             batch
             base

The sources of config and forecast include no PyTorch. They may include headers of model, runtime and comm: what they
link of those is checked by the test Distca.starts_without_pytorch.
"""

import re

from project import files, read, report

# The rooms each room may include, besides itself.
CORE = {
    "base": set(),
    "batch": {"base"},
    "cost": {"base", "batch"},
    "plan": {"base", "batch", "cost"},
    "trace": {"base", "batch", "cost"},
    "program": {"base", "batch", "cost", "plan", "trace"},
    "sim": {"base", "batch", "cost", "plan", "trace", "program"},
    "kernels": {"base"},
    "checkpoint": {"base"},
    "config": {"base", "batch", "cost", "plan", "program", "kernels", "checkpoint", "model"},
    "forecast": {"base", "batch", "cost", "plan", "trace", "program", "sim", "kernels", "runtime", "model", "config"},
}
TORCH = {
    "comm": {"base", "batch", "cost", "plan", "trace"},
    "runtime": {"base", "batch", "cost", "plan", "trace", "program", "comm", "kernels"},
    "api": {"base", "batch", "cost", "plan", "trace", "program", "comm", "kernels", "runtime"},
    "torch_ops": {"base", "comm", "api"},
    "model": {"base", "batch", "cost", "plan", "trace", "program", "comm", "kernels", "checkpoint"},
    "report": {"base", "batch", "cost", "plan", "program", "comm", "kernels", "runtime", "model", "checkpoint", "config",
               "forecast"},
    "train": {"base", "batch", "cost", "plan", "trace", "program", "comm", "kernels", "runtime", "api", "model",
              "checkpoint", "config", "forecast", "report"},
    "examples": {"base", "comm", "api"},  # what is installed
}
ROOMS = CORE | TORCH
TOP = {"cli", "python", "bench", "tests"}
# What lies in a folder of a room is used through one file at the room's door.
DOORS = {"distca/plan/balanced": "distca/plan/scheduler.cc", "distca/plan/baselines": "distca/plan/scheduler.cc"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
GLOO_HEADER = "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"


def room_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "distca" else parts[0]


def direction_fault(path, target):
    """Why `path` may not include the project header `target`, or None."""
    folder = target.rsplit("/", 1)[0]
    if path != DOORS.get(folder, path) and not path.startswith(folder + "/"):
        return f"{path}: may not include {target}: only {DOORS[folder]} may"
    room, other = room_of(path), room_of(target)
    if room == other or room in TOP and other in ROOMS:
        return None
    if room not in ROOMS:
        return f"{path}: room {room} is not in the table of scripts/check_layers.py"
    if other in ROOMS[room]:
        return None
    return f"{path}: {room} may not include {target}: includes go down only"


def torch_fault(path, target):
    if path.endswith(".h"):
        return f"{path}: includes <{target}>: no PyTorch header in a header, declare the type instead"
    if room_of(path) in CORE:
        return f"{path}: includes <{target}>: {room_of(path)} knows no PyTorch"
    return None


faults, gloo_users = [], []
for path in files(*(f"{top}/**.{ending}" for top in ("distca", *TOP, "examples") for ending in ("h", "cc"))):
    text = read(path)
    for bracket, target in INCLUDE.findall(text):
        fault = None
        if target == "distca/base/build_info.h":
            continue
        if TORCH_HEADER.match(target):
            fault = torch_fault(path, target)
            if target == GLOO_HEADER and not path.endswith("_test.cc") and room_of(path) != "examples":
                gloo_users.append(path)
        elif target.split("/")[0] in TOP | {"distca"}:
            fault = direction_fault(path, target)
        elif bracket == '"':
            fault = f'{path}: "{target}": include as "distca/room/header.h"'
        if fault:
            faults.append(fault)
    if re.search(r"\bgetenv\s*\(", text) and path != "distca/base/env.cc":
        faults.append(f"{path}: calls getenv: only distca/base/env.cc reads the environment")
if len(gloo_users) > 1:
    faults.append(f"{', '.join(gloo_users)}: exactly one file beside tests and examples may include ProcessGroupGloo.hpp")
report(faults)
