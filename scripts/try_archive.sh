#!/usr/bin/env bash
# Tries an archive of scripts/release.sh in a root folder that holds Debian's base system, make and Python, and nothing
# else: README's two commands, `cmake --install`, and a project outside that finds what is installed.
#
#   sudo scripts/try_archive.sh build/release_files/distca-0.1.0.tar.gz [FOLDER]
#
# FOLDER (build/empty_root by default) must not exist, and is removed when all went well. It needs debootstrap (apt). What
# apt, pip and TLS are told on this machine (their files in /etc, PIP_*, SSL_*) holds there, too; so do folders in BIND.
set -euo pipefail

die() { echo "try_archive: $*" >&2; exit 1; }
archive=$(realpath "$1")
root=$(realpath -m "${2:-$(dirname "$0")/../build/empty_root}")
name=$(basename "$archive" .tar.gz)
[ "$(id -u)" -eq 0 ] || die "needs root, for chroot and mounts"
[ ! -e "$root" ] || die "$root exists"
command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"

unmount() { for path in /proc /dev/shm /dev ${BIND:-}; do mountpoint -q "$root$path" && umount --lazy "$root$path"; done; true; }
trap unmount EXIT
in_root() {
  local passed
  mapfile -t passed < <(env | grep -E '^(PIP_|SSL_|REQUESTS_CA)' || true)
  chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    "${passed[@]}" bash -euo pipefail -c "cd /$name && $1"
}
part() {  # NAME COMMAND
  local start=$SECONDS
  in_root "$2" </dev/null >"$root/log" 2>&1 || { tail -n 60 "$root/log" >&2; die "$1 failed; all of it is in $root/log"; }
  printf 'try_archive: %4d s  %s\n' $((SECONDS - start)) "$1"
  tail -n "${3:-3}" "$root/log" | sed 's/^/             /'
}

start=$SECONDS
debootstrap --variant=minbase --include=make,python3,ca-certificates "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" >/dev/null
printf 'try_archive: %4d s  base system\n' $((SECONDS - start))
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for path in ${BIND:-}; do
  mkdir -p "$root$path"
  mount --bind "$path" "$root$path"
done
cp -r /etc/apt "$root/etc/"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do [ ! -e "$file" ] || cp -L "$file" "$root$file"; done
tar -C "$root" -xf "$archive"

part "make demo" "make demo" 40
part "make test" "make test" 40
part "cmake --install" "cmake --install build/release --prefix /opt/distca"
part "a project outside, by find_package" "cmake -S tests/outside -B /outside -DCMAKE_PREFIX_PATH=/opt/distca \
  -DDISTCA_EXAMPLES=\$PWD/examples -DDISTCA_PYTHON=\$PWD/.venv/bin/python && cmake --build /outside -j 2 && /outside/examples/plan" 8
unmount
trap - EXIT
rm -rf "$root"
