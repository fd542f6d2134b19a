#!/usr/bin/env bash
# A job array: every task writes its share of the tiles of one store, at the same time as the others. See README.md.
#
#     array=$(sbatch --parsable --array=1-16 array.sh FOLDER pairwise features.npy --metric euclidean)
#     sbatch --dependency=afterok:$array one-node.sh FOLDER pairwise features.npy --metric euclidean
#
# The second job makes the store complete, and clusters it.
#
#SBATCH --job-name=dasrel-array
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=8G
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue --open-mode=append
set -euo pipefail
if [ $# -lt 3 ] || [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    echo "usage: sbatch --array=1-N array.sh FOLDER import|pairwise SOURCE [OPTIONS]" >&2
    exit 2
fi
if [ "$SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX" != "1-$SLURM_ARRAY_TASK_COUNT" ]; then
    echo "array.sh: the tasks must be numbered from 1 on: --array=1-N" >&2
    exit 2
fi
folder=$1 command=$2 source=$3
shift 3

mkdir -p "$folder"
dasrel "$command" "$source" "$folder/matrix.zarr" "$@" --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --quiet &
part=$! code=0 stopped=0
trap 'stopped=1; kill -TERM "$part" 2>/dev/null || true' TERM
wait "$part" || code=$?
if [ "$stopped" = 1 ]; then # the signal ended the wait, not the command
    code=0
    wait "$part" || code=$?
fi
if [ "$code" = 75 ] || [ "$code" = 143 ]; then
    echo "stopped (exit code $code); the task goes back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
