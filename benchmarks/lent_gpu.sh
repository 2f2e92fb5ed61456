#!/usr/bin/env bash
# A study on a GPU that is lent by the minute, by a machine that forgets: as many runs as fit, and
# of them what is small enough to take home. The same command goes on, there, or on the next
# machine from the runs that were taken home (not in the middle of one: checkpoints stay behind).
#
#   bash benchmarks/lent_gpu.sh SECONDS STUDY [key=value …]
#
# DATA  where the data is, or is to be ($TMPDIR/data); CIFAR-10 is unpacked into it from $DATA/parts
#       by $UNPACK, a command that is given $DATA and --from $DATA/parts, if both are there
# TAKEN a folder of earlier STUDY.tgz to go on from (results/runs)
# OUT   where STUDY.json, the summary, and STUDY.tgz, the run folders, go ($TMPDIR/out); the latter
#       every minute too, for those who let it run on (setsid … &) and come back for what is there
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 study=$2
shift 2
began=$SECONDS tmp=${TMPDIR:-/tmp}
data=${DATA:-$tmp/data} taken=${TAKEN:-results/runs} out=${OUT:-$tmp/out}
name=$(tr ' =.,[]/' '_' <<< "$study${*:+ $*}")
runs=$tmp/runs/$name
export PYTHONPATH=src PYTHONUNBUFFERED=1
mkdir -p "$data" "$runs" "$out"

if [ -n "${UNPACK:-}" ] && [ -d "$data/parts" ] && [ ! -d "$data/cifar-10-batches-py" ]; then
  $UNPACK "$data" --from "$data/parts"
fi
if [ -f "$taken/$name.tgz" ] && [ -z "$(ls "$runs")" ]; then
  tar xzf "$taken/$name.tgz" -C "$tmp/runs"
fi

pack() {  # under another name first: whoever copies it has a whole one
  local part=$out/.$BASHPID
  tar czf "$part" -C "$tmp/runs" --exclude='*.pt' "$name" && mv "$part" "$out/$name.tgz"
}
(while sleep 60; do pack || true; done) > /dev/null 2>&1 &  # a file that grows meanwhile: next time
packer=$!
trap 'kill $packer 2> /dev/null || true' EXIT

left=$((seconds - (SECONDS - began)))
minutes=$(python3 -c "print(round(($left - 45) / 60, 2))")  # a model that is measured is not stopped
timeout "$left" python3 -m crsam study "$study" "$@" "data.root=$data" \
  --out "$runs" --minutes "$minutes" --summary "$out/$name.json" || echo "ended with $?"
kill $packer || true  # or it might put an older one in the place of this
pack
rm -f "$out/.$packer"
