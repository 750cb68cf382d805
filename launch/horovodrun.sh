#!/usr/bin/env bash
# Starts a command on every rank with horovodrun, with a clean environment and exactly as many ranks
# as asked for.
#
#   launch/horovodrun.sh [-f HOSTFILE] [-n RANKS] [--nic NAME] -- COMMAND...
#
#   launch/horovodrun.sh -- python -m hvd_nmt.train                     2 ranks on this machine
#   launch/horovodrun.sh -f hostfiles/v100 --nic eth0 -- python -m hvd_nmt.train
#
#   -f HOSTFILE   hosts and their slots, hostfiles/localhost if not given
#   -n RANKS      how many ranks, all slots of the file if not given
#   --nic NAME    the network card between the hosts, of the same name on each; give it: otherwise
#                 horovodrun probes for one with services that listen on every address
#
# On SIGTERM or Ctrl-C the ranks of this host get SIGTERM and 60 seconds to save a checkpoint
# (HVD_NMT_GRACE_S; horovodrun itself: 5); a second Ctrl-C kills them at once.
#
# Only variables that training needs reach the ranks (hvd_nmt/common/rank_environment.py); HVD_NMT_RANKS tells
# them how many they should be. What a failed rank said is repeated at the end, and its exit code is
# that of the launcher. Environment: VENV=.venv
set -euo pipefail
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

read_options "$@"
choose_hosts
choose_environment
printf 'Starting %d ranks on %s\n' "$ranks" "$hosts" >&2
# Without --disable-cache horovodrun may use network cards it saw up to an hour ago.
exec env -i "${clean[@]}" "$venv/bin/python" "$root/hvd_nmt/launching/horovodrun.py" -np "$ranks" -H "$hosts" --disable-cache \
    ${nic:+--network-interface "$nic"} "${command[@]}"
