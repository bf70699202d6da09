#!/bin/bash
# First run on a GPU, at most 330 s: is it right, does Ray see the GPU, does a default search end, and how fast is it?
#
#     OUT=results bash benchmarks/gpu/first.sh [SECONDS OF PROBING]         DEVICE=cpu: does it run?
#
# From the top of a source tree, where pack.sh was run if packages are missing. Results are files in $OUT, what is printed beside them is in $OUT/first.log.
. benchmarks/gpu/_environment.sh; t unpacked
quick=; [ "$DEVICE" = cuda ] && nvidia-smi --query-gpu=name,memory.total,driver_version,compute_mode --format=csv,noheader || quick=--quick
$PYTHON -c "import torch; from nas_evidence.workers.trial import versions; print(versions(torch.device('$DEVICE')))" || exit 9
limited 150 $PYTHON $HERE/check.py measure --device cpu $quick --out "$OUT/cpu.json" >> "$OUT/first.log" 2>&1 & cpu=$!
limited 110 $PYTHON $HERE/check.py measure --device "$DEVICE" $quick --out "$OUT/gpu.json" >> "$OUT/first.log" 2>&1
wait $cpu; t "values measured"
$PYTHON $HERE/check.py compare "$OUT/cpu.json" "$OUT/gpu.json" > "$WORK/compare.txt" 2>&1; agree=$?
tail -c 3500 "$WORK/compare.txt" | tee -a "$OUT/first.log"; t compared
limited 60 $PYTHON $HERE/ray_gpu.py --device "$DEVICE" 2>> "$OUT/first.log" | tee -a "$OUT/first.log"; t "Ray seen"
[ -n "$quick" ] && few="--trials 2 --set plan.epochs=2" || few="--trials 12"
rm -rf "$WORK/digits"; OMP_NUM_THREADS=4 limited 100 $PYTHON -m nas_evidence search digits $few --out "$WORK/digits" > "$WORK/digits.txt" 2>&1
searched=$?; tail -22 "$WORK/digits.txt" | cut -c1-160 | tee -a "$OUT/first.log"; t "default search ended with $searched"
probing=${1:-90}
limited $((probing + 25)) $PYTHON $HERE/probe.py --device "$DEVICE" $quick --seconds "$probing" --out "$OUT/probe.jsonl" 2>> "$OUT/first.log" | cut -c1-230
t probed; exit $((agree + searched))
