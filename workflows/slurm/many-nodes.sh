#!/usr/bin/env bash
# Many nodes: a Dask scheduler, a worker for each task, and one dasrel that clusters a store with them. See README.md.
#
#     sbatch --nodes=4 many-nodes.sh FOLDER        # FOLDER/matrix.zarr is a complete store
#
#SBATCH --job-name=dasrel-many
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=8 --mem=32G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue --open-mode=append
set -euo pipefail
if [ $# -ne 1 ]; then
    echo "usage: many-nodes.sh FOLDER" >&2
    exit 2
fi
folder=$1
read -ra cluster <<<"${CLUSTER:---rule fcm1 --clusters 2,3,4,5 --n-init 20 --on-negative heal}"

# A process that can connect to a Dask scheduler can run programs as you. So the processes of this job use TLS, with a
# key that is made here, that only you can read, and that goes with the job.
dask="$folder/dask-$SLURM_JOB_ID"
rm -rf "$dask"
(umask 077 && mkdir -p "$dask")
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=dasrel" \
    -keyout "$dask/key.pem" -out "$dask/cert.pem" 2>/dev/null
tls=(--tls-ca-file "$dask/cert.pem" --tls-cert "$dask/cert.pem" --tls-key "$dask/key.pem")
host=(--host "$(hostname)") here=()
if [ -n "${INTERFACE:-}" ]; then host=(--interface "$INTERFACE") here=("${host[@]}"); fi
# A quarter of the memory is for the scheduler and dasrel itself, which share the first node with a worker.
memory=auto cores=${SLURM_CPUS_PER_TASK:-1}
if [ "${SLURM_MEM_PER_NODE:-0}" != 0 ]; then memory=$((SLURM_MEM_PER_NODE * 3 / 4))MiB; fi

dask scheduler --protocol tls "${host[@]}" --port 0 --no-dashboard "${tls[@]}" \
    --scheduler-file "$dask/scheduler.json" >"$folder/dask-scheduler.log" 2>&1 &
scheduler=$!
srun --cpus-per-task="$cores" dask worker --scheduler-file "$dask/scheduler.json" --protocol tls "${here[@]}" \
    --no-dashboard "${tls[@]}" --nthreads "$cores" --memory-limit "$memory" --local-directory "${TMPDIR:-/tmp}" \
    --death-timeout 300 >"$folder/dask-workers.log" 2>&1 &
workers=$!
end() {
    kill "$workers" "$scheduler" 2>/dev/null || true
    wait "$workers" "$scheduler" || true
    rm -rf "$dask"
}
trap end EXIT

code=0 stopped=0
dasrel cluster "$folder/matrix.zarr" "$folder/clusters" "${cluster[@]}" \
    --scheduler-file "$dask/scheduler.json" --workers "$SLURM_NTASKS" --wait 300 \
    --tls-ca "$dask/cert.pem" --tls-cert "$dask/cert.pem" --tls-key "$dask/key.pem" \
    --checkpoint "$folder/checkpoint" --every 10 --resume --force --quiet &
child=$!
trap 'stopped=1; kill -TERM "$child" 2>/dev/null || true' TERM
wait "$child" || code=$?
if [ "$stopped" = 1 ]; then # the signal ended the wait, not the command
    code=0
    wait "$child" || code=$?
fi
if [ "$code" = 75 ] || [ "$code" = 143 ]; then
    echo "stopped (exit code $code); the job goes back into the queue"
    end
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
