# Which index pip takes PyTorch from: functions of setup.sh, sourced.

# has_nvidia_device [ROOT]: whether this machine, whose file system begins at ROOT, shows an NVIDIA device.
has_nvidia_device() {
  local root=${1:-} file
  for file in "$root"/dev/nvidia[0-9]* "$root"/proc/driver/nvidia/gpus/*; do
    [ ! -e "$file" ] || return 0
  done
  # Where the driver shows neither, as under WSL, its own tool knows.
  timeout 10 nvidia-smi -L 2>/dev/null | grep -q '^GPU [0-9]'
}

# index_offers INDEX VERSION SECONDS: whether the index answers in time and has that version of PyTorch.
index_offers() {
  timeout "$3" python3 - "$1" "$2" "$3" <<'PYTHON' 2>/dev/null
import os, ssl, sys, urllib.request
index, version, seconds = sys.argv[1].rstrip("/"), sys.argv[2], float(sys.argv[3])
tls = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
with urllib.request.urlopen(index + "/torch/", timeout=seconds, context=tls) as page:
    sys.exit(("torch-" + version).encode() not in page.read())
PYTHON
}

# choose_torch_index VERSION CPU_INDEX SECONDS [ROOT]: sets `torch_index`, empty for pip's own, and `torch_reason`, a
# clause for people. TORCH_INDEX_URL wins; without an NVIDIA device the CPU build is taken if its index answers.
choose_torch_index() {
  local version=$1 cpu_index=$2 seconds=$3 root=${4:-}
  torch_index=${TORCH_INDEX_URL:-}
  if [ -n "$torch_index" ]; then
    torch_reason="TORCH_INDEX_URL names the index"
  elif has_nvidia_device "$root"; then
    torch_reason="this machine has an NVIDIA device: about 3 GB to download, CUDA included"
  elif index_offers "$cpu_index" "$version" "$seconds"; then
    torch_index=$cpu_index
    torch_reason="this machine has no NVIDIA device: the CPU build, about 0.2 GB to download"
  else
    torch_reason="this machine has no NVIDIA device, but $cpu_index does not offer the CPU build within $seconds s: \
pip's own index, where it is about 3 GB with CUDA; TORCH_INDEX_URL can name a smaller one"
  fi
}
