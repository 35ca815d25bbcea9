#!/usr/bin/env bash
# Packs into offline/ (ignored by git) what apt would install: the header-only libraries, GoogleTest's sources, and
# the files or folders named on the command line (into offline/data), and FlashAttention 4's kernels where
# `distca kernels build` has made some (offline/kernels). With it a machine that has CMake, Ninja, a
# compiler and a PyTorch wheel, but no apt, builds and tests DistCA:
#
#   scripts/offline_bundle.sh data/stdlib.bin data/stdlib.idx
#   cmake -G Ninja -B build/offline -DCMAKE_PREFIX_PATH=$PWD/offline && cmake --build build/offline
set -euo pipefail
cd "$(dirname "$0")/.."

headers=(fmt nlohmann CLI toml++ gloo)
die() { echo "offline_bundle: $*" >&2; exit 1; }
for name in "${headers[@]}"; do [ -d "/usr/include/$name" ] || die "no /usr/include/$name: run scripts/setup.sh"; done
[ -d /usr/src/googletest ] || die "no /usr/src/googletest: run scripts/setup.sh"
for path in "$@"; do [ -e "$path" ] || die "$path: no such file or folder"; done

# Built beside and moved, so that a broken run leaves no half bundle.
bundle=build/offline.partial
rm -rf "$bundle"
trap 'rm -rf "$bundle"' EXIT
mkdir -p "$bundle"/{include,data}
for name in "${headers[@]}"; do cp -rL "/usr/include/$name" "$bundle/include/"; done
cp -rL /usr/src/googletest "$bundle/googletest"
# FlashAttention 4's compiled kernels, which need CUDA's run-time library alone: PyTorch brings it.
kernels=${DISTCA_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/distca/kernels}
[ ! -d "$kernels" ] || cp -rL "$kernels" "$bundle/kernels"
[ $# -eq 0 ] || cp -rL "$@" "$bundle/data/"

# Answers of find_package() whose headers are the bundle's.
for name in fmt nlohmann_json CLI11 tomlplusplus; do
  mkdir -p "$bundle/share/cmake/$name"
  cat >"$bundle/share/cmake/$name/${name}Config.cmake" <<CMAKE
if(NOT TARGET $name::$name)
  add_library($name::$name INTERFACE IMPORTED)
  target_include_directories($name::$name SYSTEM INTERFACE \${CMAKE_CURRENT_LIST_DIR}/../../../include)
endif()
CMAKE
done

mkdir -p "$bundle/share/cmake/GTest"
cat >"$bundle/share/cmake/GTest/GTestConfig.cmake" <<'CMAKE'
if(NOT TARGET GTest::gtest_main)
  set(INSTALL_GTEST OFF)
  add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/../../../googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  foreach(library gtest gtest_main gmock gmock_main)
    if(NOT TARGET GTest::${library})
      add_library(GTest::${library} ALIAS ${library})
    endif()
  endforeach()
endif()
CMAKE

rm -rf offline
mv "$bundle" offline
echo "offline_bundle: offline/ holds $(du -sh offline | cut -f1)"
echo "  cmake -G Ninja -B build/offline -DCMAKE_PREFIX_PATH=$PWD/offline && cmake --build build/offline"
