#!/usr/bin/env bash
# Makes a release of the commit that is checked out, in build/release_files: an archive of the sources, what
# scripts/build_wheels.sh makes, and the hashes of all.
#
#   scripts/release.sh [VERSION...]                the wheel serves these versions of PyTorch; all that were tried by default
#   scripts/release.sh --archive                   the archive alone
#
# The version is that of CMakeLists.txt, and CHANGELOG.md must have a heading with it and its date.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "release: $*" >&2; exit 1; }
version=$(sed -nE 's/^project\(distca VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
grep -qE "^## $version \([0-9]{4}-" CHANGELOG.md || die "CHANGELOG.md has no heading '## $version (YYYY-MM-DD)'"
[ -z "$(git status --porcelain)" ] || die "there are changes that no commit has"
folder=build/release_files
rm -rf "$folder"
mkdir -p "$folder"
git archive --format=tar.gz --prefix="distca-$version/" -o "$folder/distca-$version.tar.gz" HEAD
if [ "${1:-}" != --archive ]; then
  scripts/build_wheels.sh "$@"
  cp build/wheels/dist/* "$folder"
fi
(cd "$folder" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
