#!/usr/bin/env bash
# sshd as process 1 of a container, whose ranks save a checkpoint when the container is told to end.
#
#   launch/sshd.sh [PORT]      22, or SSH_PORT
#
# SIGTERM goes to the ranks on this host; sshd, and the container with it, ends when they have ended.
# A container's runtime kills it after a while: give it minutes (docker stop --time 120;
# terminationGracePeriodSeconds in mpijob.yaml).
set -euo pipefail

# Prints the process ids of this container's ranks, which have their number in their environment.
ranks() {
    local environment pid
    for environment in /proc/[0-9]*/environ; do
        pid=${environment%/environ} pid=${pid##*/}
        [[ /proc/$pid/ns/mnt -ef /proc/self/ns/mnt ]] || continue
        { grep -qz '^HOROVOD_RANK=' "$environment" && printf '%s\n' "$pid"; } 2>/dev/null || true
    done
}

stop() {
    trap '' TERM
    local pids
    mapfile -t pids < <(ranks)
    ((${#pids[@]} == 0)) || kill -TERM "${pids[@]}" 2>/dev/null || true
    while [[ $(ranks) ]]; do sleep 0.5; done
    [[ ! $sshd ]] || kill "$sshd"
    exit 0
}

sshd=''
trap stop TERM
ssh-keygen -A # when a container starts, so no two share them
mkdir -p /run/sshd
"$(command -v sshd || echo /usr/sbin/sshd)" -De -p "${1:-${SSH_PORT:-22}}" &
sshd=$!
wait "$sshd"
