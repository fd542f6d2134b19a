#!/usr/bin/env bash
# One node: write the store (or resume writing), cluster it, requeue at the time limit. See README.md.
#
#     sbatch one-node.sh FOLDER import distances.npy --kind distance
#     sbatch one-node.sh FOLDER pairwise features.npy --metric euclidean
#
#SBATCH --job-name=dasrel
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=8 --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue --open-mode=append
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: one-node.sh FOLDER import|pairwise SOURCE [OPTIONS]" >&2
    exit 2
fi
folder=$1 command=$2 source=$3
shift 3
store="$folder/matrix.zarr"
read -ra cluster <<<"${CLUSTER:---rule fcm1 --clusters 2,3,4,5 --n-init 20 --on-negative heal}"

# Run one command in the background, so that this shell can hear the SIGTERM that Slurm sends it before the time is up
# and pass it on. When that stops the command (75; 143 if it came before there was anything to keep), the job goes back
# into the queue and this script is run again from the top.
run() {
    local child code=0 stopped=0
    "$@" &
    child=$!
    trap 'stopped=1; kill -TERM "$child" 2>/dev/null || true' TERM
    wait "$child" || code=$?
    if [ "$stopped" = 1 ]; then # the signal ended the wait, not the command
        code=0
        wait "$child" || code=$?
    fi
    trap - TERM
    if [ "$code" = 75 ] || [ "$code" = 143 ]; then
        echo "stopped (exit code $code); the job goes back into the queue"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    if [ "$code" != 0 ]; then exit "$code"; fi
}

mkdir -p "$folder"
if ! dasrel audit "$store" --json 2>/dev/null | grep -q '"state": "complete"'; then
    run dasrel "$command" "$source" "$store" "$@" --resume --quiet
fi
run dasrel cluster "$store" "$folder/clusters" "${cluster[@]}" \
    --checkpoint "$folder/checkpoint" --every 10 --resume --force --quiet
