#!/usr/bin/env bash
# Import, check, cluster and draw a matrix; safe to run again. See README.md beside this file.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: cluster.sh MATRIX KIND FOLDER [CLUSTERS]" >&2
    exit 2
fi
matrix=$1 kind=$2 folder=$3 clusters=${4:-2,3,4,5}
store="$folder/matrix.zarr"

mkdir -p "$folder"
if [ ! -e "$store" ]; then
    dasrel import "$matrix" "$store" --kind "$kind" --quiet
elif ! dasrel audit "$store" --json | grep -q '"state": "complete"'; then
    dasrel import "$matrix" "$store" --kind "$kind" --resume --quiet
fi
dasrel audit "$store" --verify --quiet
dasrel cluster "$store" "$folder/clusters" \
    --rule fcm1 --clusters "$clusters" --n-init 20 --on-negative heal --force --quiet
dasrel image "$store" "$folder/ivat.png" --order ivat --force --quiet
