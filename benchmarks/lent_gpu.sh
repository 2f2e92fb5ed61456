#!/usr/bin/env bash
# Runs a study on a GPU machine that is lent for minutes and keeps nothing afterwards.
# The script makes as many runs as fit into the time. It packs their folders without checkpoints.
# The same command continues the study, on this machine or on the next one from the packed folders.
# A run that was not finished starts again on the next machine, because checkpoints are not packed.
#
#   bash benchmarks/lent_gpu.sh SECONDS STUDY [key=value …]
#
# DATA    where the data is ($TMPDIR/data). If $DATA/parts exists and $DATA has no CIFAR folder yet,
#         the script runs "$UNPACK $DATA --from $DATA/parts" first
# TAKEN   a folder with earlier STUDY.tgz files to continue from (results/runs)
# OUT     the folder for STUDY.json, the summary, and STUDY.tgz, the run folders ($TMPDIR/out).
#         STUDY.tgz is written every minute, so that a caller may fetch it while the study runs
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

if [ -n "${UNPACK:-}" ] && [ -d "$data/parts" ] && ! compgen -G "$data/cifar-10*" > /dev/null; then
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
