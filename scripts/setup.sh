#!/usr/bin/env bash
# Installs what is missing to build, test and run DistCA: Debian or Ubuntu packages by name, and PyTorch in .venv.
# Runs as root or with sudo; with everything in place it needs neither and says one line.
#
#   scripts/setup.sh [--core|--fuzz|--test]     --core: only what plan and data need, no PyTorch; --fuzz: the same, and
#                                               what fuzzing needs; --test: also what tests start
#
# PyTorch is the small CPU build where no NVIDIA device is; TORCH_INDEX_URL names another index: a CUDA version, a
# mirror. TORCH_CPU_INDEX_URL says where the CPU build is, if not at PyTorch's own index.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/torch_index.sh

torch_version=2.13.0
torch_cpu_index=${TORCH_CPU_INDEX_URL:-https://download.pytorch.org/whl/cpu}
index_seconds=10
packages=(build-essential cmake ninja-build ccache git clang-format clang-tidy nlohmann-json3-dev
          libfmt-dev libcli11-dev libtomlplusplus-dev libgtest-dev libgmock-dev googletest)
with_torch=1
case "${1:-}" in
  --core) with_torch=0 ;;
  --fuzz) with_torch=0; packages+=(clang libclang-rt-dev) ;;
  --test)
    packages+=(libgloo-dev python3-venv)
    # Tests that start mpirun or make network namespaces skip where these are not.
    if [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; then packages+=(openmpi-bin iproute2); fi ;;
  "") packages+=(libgloo-dev python3-venv) ;;
  *) echo "setup: unknown option $1: expected --core, --fuzz, --test or nothing" >&2; exit 2 ;;
esac

die() { echo "setup: $*" >&2; exit 1; }
say() { echo "setup: $*"; did_something=1; }
did_something=0

missing_packages() {
  dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | sed -n 's/ installed$//p' |
    grep -Fxvf - <(printf '%s\n' "${packages[@]}") || true
}

install_packages() {
  command -v dpkg-query >/dev/null || die "this is neither Debian nor Ubuntu; install by hand: ${packages[*]}"
  local missing sudo=()
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo)
    [ -t 0 ] || sudo=(sudo -n)
    command -v sudo >/dev/null && "${sudo[@]}" true 2>/dev/null ||
      die "needs root or sudo to run: apt-get install ${missing[*]}"
  fi
  say "installing with apt: ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)
  local log
  log=$(mktemp)
  # Whether it worked is asked of dpkg, below; apt's own words are shown only if it did not.
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } </dev/null 2>&1 |
    tee "$log" | grep --line-buffered -E '^(Need to get|After this operation)' || true
  mapfile -t missing < <(missing_packages)
  if [ ${#missing[@]} -gt 0 ]; then
    tail -n 15 "$log" >&2
    die "apt-get could not install: ${missing[*]}"
  fi
  rm -f "$log"
}

# The version of PyTorch that a Python has, unless it is older than the oldest that the sources compile against.
torch_of() {
  local version oldest
  oldest=$(sed -n 's/^TORCH = ("\([0-9.]*\)".*/\1/p' python/distca/_versions.py)
  version=$("$1" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1)" = "$oldest" ] && echo "$version"
}

install_torch() {
  local found
  if found=$(torch_of .venv/bin/python); then
    torch="PyTorch $found in .venv"
    return
  fi
  # A Python that came with its own PyTorch (CUDA images) is used as it is.
  if [ ! -e .venv ] && found=$(torch_of python3); then
    torch="PyTorch $found of $(command -v python3)"
    return
  fi
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$(python3 --version) is too old: PyTorch $torch_version here needs Python 3.11 or newer"
  python3 -m venv .venv || die "python3 -m venv .venv failed"
  choose_torch_index "$torch_version" "$torch_cpu_index" "$index_seconds"
  local where=()
  [ -z "$torch_index" ] || where=(--index-url "$torch_index")
  say "$torch_reason"
  say "installing PyTorch into .venv: pip install torch==$torch_version${where[*]:+ ${where[*]}}"
  PIP_ROOT_USER_ACTION=ignore .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
      "torch==$torch_version" "${where[@]}" </dev/null 2> >(grep -v '^WARNING' >&2) |
    { grep --line-buffered -E '^ *(Downloading|Processing|Successfully installed)' || true; } ||
    die "pip could not install torch==$torch_version; TORCH_INDEX_URL can name another index"
  found=$(torch_of .venv/bin/python) || die "pip installed no usable PyTorch"
  torch="PyTorch $found in .venv"
}

install_packages
torch="without PyTorch"
[ $with_torch = 0 ] || install_torch
if [ $did_something = 0 ]; then echo "setup: everything is there ($torch)"; else echo "setup: done ($torch)"; fi
