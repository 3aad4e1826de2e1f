#!/usr/bin/env bash
# Everything that wants a GPU, in one go: at most 8 minutes on one GPU of 80 GB or more.
#
#   bash benchmarks/gpu.sh              on the GPU; CSVs, figures and logs go to $OUT (results/gpu unless set)
#   bash benchmarks/gpu.sh --dry-run    the same steps on the CPU, much reduced, to try the script; to results/quick/gpu
#
# It needs no network. It runs with the python3 in PATH (or $PYTHON): Python 3.11 or later, torch 2.11 or later with
# CUDA, torchvision, transformers 5, accelerate, peft, safetensors, sentencepiece, timm, numpy, scipy, pandas,
# matplotlib, seaborn, rich, filelock, pytest, hypothesis, pyyaml, pillow. On a machine that has those, these wheels must be
# brought, all pure Python, under 10 MiB together:
#
#   pip download --no-deps --only-binary=:all: -d wheels diffusers==0.42.1 open_clip_torch==3.3.0 ftfy==6.3.1 \
#       wcwidth==0.2.13 tyro==1.0.17 typeguard==4.6.1 docstring_parser==0.18.0
#   python3 -m pip install --no-index --no-deps --target /tmp/site wheels/*.whl && export PYTHONPATH=/tmp/site
#
# Steps: 1 the environment; 2 tests marked gpu; 3 the wall-clock table of tiny-flux; 4 FLUX.1-dev's architecture at
# full size with random weights, LoRA; 5 the same with all weights, without an optimizer step; 6 Qwen-Image's, LoRA.
# 720x720, bfloat16, checkpointing, 21 steps, W 4, two images. A step that fails, or for which no time is left, is told
# at the end; the others still run.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
LIMIT=${LIMIT:-470}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1

default=results/gpu device=cuda full=(--dtype bfloat16) tiny=(--rounds 3 --variations base velocities)
if [ "${1:-}" = --dry-run ]; then
  default=results/quick/gpu device=cpu full=(--reduced --dtype bfloat16)
  tiny=(--rounds 1 --variations base --prompts 1 --images 2)
elif [ $# -gt 0 ]; then
  echo "gpu.sh: unknown argument $1, expected --dry-run or none" >&2
  exit 2
fi

OUT=${OUT:-$default}
mkdir -p "$OUT"
failed=()
started=$SECONDS

step() { # step NAME SECONDS COMMAND...: run it with a limit, its output also in $OUT/NAME.log
  local name=$1 seconds=$2 left=$((LIMIT - SECONDS + started))
  shift 2
  if [ $left -lt 20 ]; then
    failed+=("$name (no time left)")
    return
  fi
  [ $seconds -lt $left ] || seconds=$left
  echo "== $name (${left} s left)"
  timeout "$seconds" "$@" 2>&1 | tee "$OUT/$name.log"
  local status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || failed+=("$name (exit $status)")
}

speedup() { # speedup NAME SECONDS OPTIONS...
  local name=$1 seconds=$2
  shift 2
  step "$name" "$seconds" "$PYTHON" -m repro run speedup --device "$device" --out "$OUT/$name" "$@"
}
synthetic=(--synthetic-weights --algorithms dance_grpo --prompts 1 --images 2 "${full[@]}")

step environment 60 "$PYTHON" - "$device" <<'PYTHON'
import importlib.util
import sys
from importlib.metadata import version

needed = "torch torchvision diffusers transformers open_clip ftfy accelerate peft safetensors sentencepiece timm"
needed += " numpy scipy pandas matplotlib seaborn rich tyro pytest hypothesis yaml PIL"
if missing := [name for name in needed.split() if importlib.util.find_spec(name) is None]:
    sys.exit(f"gpu.sh: missing {', '.join(missing)}: bring the wheels that the script's header names")
import torch

versions = (f"{name} {version(name)}" for name in ("torch", "transformers", "peft", "timm"))
print(f"python {sys.version.split()[0]}, {', '.join(versions)}")
if sys.argv[1] == "cuda":
    if not torch.cuda.is_available():
        sys.exit("gpu.sh: torch sees no CUDA device; --dry-run tries the script on the CPU")
    gpu = torch.cuda.get_device_properties(0)
    print(f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")
PYTHON
if [ ${#failed[@]} -gt 0 ]; then
  exit 2
fi

# pytest's 5 says that no test is marked.
step gpu-tests 90 bash -c '"$@"; status=$?; [ $status -eq 5 ] || exit $status' - \
  "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu tests
speedup tiny-flux 100 --model tiny-flux --algorithms dance_grpo "${tiny[@]}"
speedup flux-dev-lora 150 --model flux-dev "${synthetic[@]}" --variations weights --rounds 1
speedup flux-dev-full 120 --model flux-dev "${synthetic[@]}" --variations base --schemes jagg --no-optimizer --rounds 1
speedup qwen-image-lora 150 --model qwen-image "${synthetic[@]}" --variations weights --rounds 1

if [ ${#failed[@]} -gt 0 ]; then
  printf 'gpu.sh: not done: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "gpu.sh: all steps done in $((SECONDS - started)) s, results in $OUT"
