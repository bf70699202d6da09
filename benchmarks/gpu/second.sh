#!/bin/bash
# Second run: a search through eight Ray actors on one GPU, its driver killed and resumed; ranking and export.
#
#     OUT=results bash benchmarks/gpu/second.sh SECONDS [FINDINGS OF PROBE]         DEVICE=cpu: does it run?
#
# The SECONDS, at most, of all of it. Results are files in $OUT, what is printed beside them is in $OUT/second.log.
. benchmarks/gpu/_environment.sh; set -m
END=$((SECONDS + ${1:-460})); PROBE=${2:-$OUT/probe.jsonl}; RUN=$WORK/c9; rm -rf "$RUN"; touch "$PROBE"
n_trials=17; least=75; threads=12
if [ "$DEVICE" = cuda ]; then
  [ -f "$WORK/cifar10.npz" ] || $PYTHON $HERE/images.py .gpu/images.npz "$WORK/cifar10.npz" || exit 9
  $PYTHON $HERE/rank.py study --images "$WORK/cifar10.npz" --to "$WORK/rank.toml" --probe "$PROBE" --seconds $((END - SECONDS - 160)); t "study written"
  nvidia-smi dmon -s um -d 5 > "$OUT/dmon.txt" 2>&1 & dmon=$!
else
  n_trials=3; least=0; threads=1; END=$((SECONDS + 3600))
  $PYTHON $HERE/rank.py study --quick --images "$WORK/quick.npz" --to "$WORK/rank.toml"; t "study written"
fi
stored() { ls "$RUN"/trials/*.parquet 2>/dev/null | wc -l; }
apps() { [ "$DEVICE" = cuda ] && nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader; }
# Trials have one thread each; the driver's serve report and export.
OMP_NUM_THREADS=$threads $PYTHON -m nas_evidence search "$WORK/rank.toml" --executor ray --out "$RUN" > "$WORK/search.txt" 2>&1 & driver=$!
begun=$SECONDS  # killed once a trial is stored, on a GPU after 75 s
while kill -0 $driver 2>/dev/null && { [ $((SECONDS - begun)) -lt $least ] || [ "$(stored)" -lt 1 ]; }; do sleep 0.2; done
tail -2 "$WORK/search.txt"; apps
kill -9 $driver 2>/dev/null; sleep 6; t "driver killed; processes left on the GPU: $(apps | wc -l)"
t "$(stored) trials were stored"
OMP_NUM_THREADS=$threads $PYTHON -m nas_evidence resume "$RUN" --executor ray > "$WORK/resume.txt" 2>&1 & driver=$!
while kill -0 $driver 2>/dev/null && [ $SECONDS -lt $((END - 45)) ]; do sleep 1; done
kill -INT $driver 2>/dev/null; for i in $(seq 15); do kill -0 $driver 2>/dev/null || break; sleep 1; done; kill -9 $driver 2>/dev/null
[ "$DEVICE" = cuda ] && kill $dmon
t "resumed: $(stored) of $n_trials trials stored"; tail -25 "$WORK/resume.txt"
$PYTHON $HERE/rank.py judge "$RUN" --out "$OUT/rank"; judged=$?; t judged
$PYTHON -m nas_evidence verify "$RUN" 2>&1 | tail -2; t verified
if [ $SECONDS -lt $((END - 8)) ]; then
  # The network that is trained fastest: once from its weights, once from its seed.
  small=$(ls "$RUN"/trials | sed -n 's/^0*\([0-9]\+\)-a.*/\1/p' | sort -n | tail -1); rm -rf "$WORK"/small "$WORK"/again
  for to in small again; do
    OMP_NUM_THREADS=$threads limited $((END - SECONDS)) $PYTHON -m nas_evidence export "$RUN" --trial "$small" --to "$WORK/$to" 2>&1 | tail -3
    t "exported into $to"; rm -f "$RUN/models/$small.safetensors"
  done
fi
cat "$WORK/search.txt" "$WORK/resume.txt" > "$OUT/second.log"; tar czf "$OUT/study.tar.gz" -C "$RUN" --exclude=checkpoints --exclude=models .; t done; exit $judged
