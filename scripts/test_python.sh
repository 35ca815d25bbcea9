#!/usr/bin/env bash
# Packs the Python package's wheel from the release build, installs it in an environment of its own, and tests it there
# without the source tree. Downloads with pip, the first time, what packing and tests need (build/python/downloads).
#
#   scripts/test_python.sh [PYTEST_ARGUMENT...]     for example -k plan
#   scripts/test_python.sh --full                   also the long grids, and a wheel that pip compiles from an sdist, with
#                                                   the headers that apt brought hidden
#
# The Python and PyTorch are those of .venv, or of python3 where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "test_python: $*" >&2; exit 1; }
python=python3
[ ! -x .venv/bin/python ] || python=.venv/bin/python
folder=build/python
wheelhouse=$folder/downloads
mkdir -p "$wheelhouse"

# Where PyTorch lies, without loading it.
site_of_torch='import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parents[1])'
torch_folder=$("$python" -c "$site_of_torch" 2>/dev/null) ||
  die "no PyTorch in $python: run scripts/setup.sh"

within=()  # a command that runs pip
pip() {  # ENVIRONMENT ARGUMENT...: with pip of $python
  local environment=$1; shift
  PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 \
    "${within[@]}" "$python" -m pip --python "$folder/$environment/bin/python" --quiet "$@" </dev/null
}

# environment NAME PACKAGE...: a new one that sees PyTorch and, of all else, those packages alone. PyTorch is there
# before pip looks, so that pip fetches none for a package that needs it.
environment() {
  local name=$1 site; shift
  rm -rf "${folder:?}/$name"
  "$python" -m venv --without-pip "$folder/$name"
  site=$("$folder/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$torch_folder" >"$site/project_torch.pth"
  pip "$name" install --no-index --find-links "$wheelhouse" "$@" 2>"$folder/pip.log" || {
    pip "$name" install "$@" &&
      pip "$name" list --path "$site" --format freeze >"$folder/$name/packages" &&
      pip "$name" download --no-deps -d "$wheelhouse" -r "$folder/$name/packages"
  } 2>"$folder/pip.log" || { cat "$folder/pip.log" >&2; die "pip could not install $*"; }
}

export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2}
environment builder scikit-build-core nlohmann-json

# make_wheel DIST SOURCES ARGUMENT...: pip makes the one wheel of a folder; its path is then in `wheel`.
make_wheel() {
  local dist=$folder/$1 sources=$2 start=$SECONDS; shift 2
  rm -rf "$dist"
  pip builder wheel --no-build-isolation --no-deps --wheel-dir "$dist" "$@" "$sources" >"$folder/build.log" 2>&1 ||
    { tail -n 40 "$folder/build.log" >&2; die "the wheel cannot be built: $folder/build.log"; }
  wheel=$(echo "$PWD/$dist"/distca-*.whl)
  echo "test_python: $dist/$(basename "$wheel"), $(stat -c %s "$wheel") bytes, in $((SECONDS - start)) s"
}

# The wheel under test: what the release build has compiled, put beside the package's Python files.
scripts/build.sh release -j "${JOBS:-2}" --target distca_python
rm -rf "$folder/staged"
mkdir -p "$folder/staged"
cp -r --parents -t "$folder/staged" pyproject.toml CMakeLists.txt python/distca
cmake --install build/release --strip --component python --prefix "$folder/staged/python" >"$folder/build.log"
make_wheel dist "$folder/staged" --config-settings wheel.cmake=false --config-settings wheel.platlib=true

# What a build says that cannot be: neither compiles anything.
refused() {  # WHAT LINE COMMAND...: the command fails and says the line
  local what=$1 line=$2; shift 2
  if "$@" >"$folder/refused.log" 2>&1; then die "$what: it was built"; fi
  tr -s ' \n' ' ' <"$folder/refused.log" | grep -qF "$line" ||
    { cat "$folder/refused.log" >&2; die "$what: it does not say: $line"; }
}
configure() {  # ARGUMENT...: what pip has CMake do
  rm -rf "$folder/refused"
  cmake -S . -B "$folder/refused" -G Ninja --log-level=WARNING -DSKBUILD=2 -DDISTCA_BUILD_PYTHON=ON \
    -DDISTCA_BUILD_TESTS=OFF "$@"
}
rm -rf "$folder/bare"
"$python" -m venv --without-pip "$folder/bare"
refused "a Python without PyTorch" "is built against the PyTorch that is installed" \
  configure "-DPython_EXECUTABLE=$PWD/$folder/bare/bin/python"
site=$("$folder/bare/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$site/torch"
touch "$site/torch/__init__.py"
printf '__version__ = "2.10.0+cpu"\ncuda = None\n' >"$site/torch/version.py"
refused "no compiler" "found no C++20 compiler: apt-get install g++" env CXX=/nowhere/g++ \
  cmake -S . -B "$folder/no_compiler" -G Ninja -DSKBUILD=2 -DDISTCA_BUILD_PYTHON=ON
refused "an older PyTorch" "distca needs PyTorch 2.11 or newer, but" \
  configure "-DPython_EXECUTABLE=$PWD/$folder/bare/bin/python"
refused "no JSON headers" "whose headers distca needs: pip install nlohmann-json" \
  configure "-DPython_EXECUTABLE=$PWD/$folder/bare/bin/python" -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
refused "no fmt" "distca needs the headers of fmt: apt-get install libfmt-dev" \
  configure -DDISTCA_WITH_TORCH=OFF -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON

# Without TorchTitan, which brings 1.6 GB: make test-matrix tries it.
extras='import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*(one for name, of in extras.items() if name != "torchtitan" for one in of))'
# shellcheck disable=SC2046  # words without spaces
environment tester pytest torchdata $("$python" -c "$extras")
[ ! -x build/release/distca ] || export DISTCA_PROGRAM=$PWD/build/release/distca  # for tests of its files
standin=$PWD/build/release/rooms/comm/libnccl_standin.so
[ ! -e "$standin" ] || export DISTCA_NCCL_STANDIN=$standin  # what tests load in NCCL's place

# test_wheel PYTEST_ARGUMENT...: with the wheel that `wheel` names.
test_wheel() {
  pip tester install --no-index --no-deps --force-reinstall "$wheel"
  (cd "$folder"
   DISTCA_WHEEL=$wheel tester/bin/python -m pytest -q -rs -p no:cacheprovider --rootdir "$PWD" "$@")
}
test_wheel "$@" ../../python/tests

# What users do: pip compiles the package from its sources, in an environment that has nothing else, on a machine where
# apt brought no header: an empty folder lies over each, in a mount namespace. That needs root, or user namespaces.
hide='for folder in /usr/include/{fmt,nlohmann} /usr/{lib/*,share}/cmake/{fmt,nlohmann_json}; do
  [ ! -d "$folder" ] || mount --bind "$0" "$folder" || exit; done; exec "$@"'
if [[ " $* " == *" --full "* ]]; then
  rm -rf "$folder/sdist"
  "$folder/builder/bin/python" -c "import scikit_build_core.build as b; b.build_sdist('$folder/sdist')" >"$folder/build.log" 2>&1 ||
    { tail -n 40 "$folder/build.log" >&2; die "no sdist can be made: $folder/build.log"; }
  map=--map-root-user
  [ "$(id -u)" -ne 0 ] || map=
  mkdir -p "$folder/empty"
  within=(unshare --mount $map bash -c "$hide" "$folder/empty")
  "${within[@]}" true || { within=(); echo "test_python: the headers of apt cannot be hidden here"; }
  make_wheel compiled "$folder"/sdist/distca-*.tar.gz
  within=()
  test_wheel ../../python/tests/test_{wheel,package,plan,attention}.py
fi
