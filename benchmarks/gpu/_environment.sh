# Read by first.sh and second.sh: paths, and the archive of pack.sh where packages are missing.
set -u
export PYTHONPATH=$PWD OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
OUT=${OUT:-gpu-results}; DEVICE=${DEVICE:-cuda}; PYTHON=${PYTHON:-python3}; WORK=${WORK:-/tmp/nas-evidence-gpu}
HERE=benchmarks/gpu; mkdir -p "$OUT" "$WORK"
t() { echo "[$SECONDS s] $*"; }
limited() { if [ "$DEVICE" = cuda ]; then timeout "$@"; else shift; "$@"; fi; }  # time counts on a GPU alone
if [ -f .gpu/site.tar.xz ] && ! $PYTHON -c "import ray, optuna, pydantic, tomli_w, tenacity" 2> /dev/null; then
  [ -d "$WORK/site" ] || { mkdir "$WORK/site"; tar xJf .gpu/site.tar.xz -C "$WORK/site" ||
    $PYTHON -c "import tarfile; tarfile.open('.gpu/site.tar.xz').extractall('$WORK/site')"; }
  export PYTHONPATH=$WORK/site:$PWD
fi
