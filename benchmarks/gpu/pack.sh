#!/bin/bash
# Packs into .gpu/ what a machine with a GPU and no network lacks, under 64 MB with the source tree.
#
#     bash benchmarks/gpu/pack.sh [IMAGES.npz]
#
# The machine has Python 3.12, torch with torchvision, numpy, pandas, scipy, scikit-learn, pyarrow, Pillow
# and what these and Jupyter need (click, protobuf, pyyaml, rich, ...): wheels of those alone are over 64 MB.
# IMAGES.npz holds CIFAR-10 as JPEG streams (see images.py); without it the ranking cannot be run.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
rm -rf .gpu; mkdir -p .gpu "$work/wheels" "$work/site"
names='ray optuna colorlog pydantic pydantic_core annotated-types typing-inspection typing_extensions tomli_w
  tenacity jsonschema jsonschema-specifications referencing rpds-py backpack-for-pytorch unfoldNd'
# Beside our versions: what a constraint file does not name comes as new as the rest admits.
python=${PACK_PYTHON:-python3}
platforms=$(for n in 17 24 27 28; do echo "--platform manylinux_2_${n}_x86_64"; done)
# shellcheck disable=SC2086
$python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  $platforms --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -c constraints.txt -d "$work/wheels" $names
for wheel in "$work"/wheels/*.whl; do $python -m zipfile -e "$wheel" "$work/site"; done
# 32 MB of Java, libraries of Ray that nothing here imports, and symbols.
(cd "$work/site/ray" && rm -rf jars rllib llm serve data tune train cpp core/src/ray/cpp dashboard/client &&
  chmod +x core/src/ray/gcs/gcs_server core/src/ray/raylet/raylet &&
  strip -s core/src/ray/gcs/gcs_server core/src/ray/raylet/raylet)
find "$work/site" -name '*.so' -size +300k -exec strip --strip-unneeded {} \;
tar c --sort=name --owner=0 --group=0 -C "$work/site" . | xz -6 -T0 > .gpu/site.tar.xz
[ $# -eq 0 ] || cp "$1" .gpu/images.npz
tracked=$(git ls-files -z --cached --others --exclude-standard | xargs -0 du -cb | tail -1 | cut -f1)
total=$((tracked + $(du -sb .gpu | cut -f1)))
echo "packed: $total bytes with the source tree"; test "$total" -lt 66000000
