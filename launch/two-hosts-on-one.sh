#!/usr/bin/env bash
# Two hosts, v100a and v100b, on one Linux machine: real host names, real ssh, a real link to measure.
#
#   launch/two-hosts-on-one.sh up                 make the hosts (again: says so, and the limit of the link)
#   launch/two-hosts-on-one.sh run COMMAND...     run a command on v100a, in this directory, e.g.
#       run python -m hvd_nmt.launch -H v100a:2,v100b:2 train
#   launch/two-hosts-on-one.sh limit 200mbit      make the link slow, each way
#   launch/two-hosts-on-one.sh unlimit            make it fast again
#   launch/two-hosts-on-one.sh cut | heal         pull the cable, plug it in
#   launch/two-hosts-on-one.sh status             what runs, and the bytes each host sent
#   launch/two-hosts-on-one.sh down               end everything on both hosts and remove them
#
# Each host is a network namespace with its own eth0, name and sshd; files are shared, as over NFS.
# Needs root, iproute2 and openssh-server. Nothing is changed outside the namespaces: ssh keys and
# known hosts are the rig's own, and no address is visible to the machine itself.
# Environment: VENV=.venv, the virtual environment whose programs both hosts find first.
set -euo pipefail

hosts=(v100a v100b)
subnet=10.77.0
state=/run/hvd_nmt-two-hosts
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
path=$(realpath -m "${VENV:-$root/.venv}")/bin:$PATH

main() {
    local verb=${1:-help}
    shift || true
    case $verb in
        up | down | status | run | limit | unlimit | cut | heal) "$verb" "$@" ;;
        help | -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
        *) die "'$verb' is not one of up, run, limit, unlimit, cut, heal, status, down." ;;
    esac
}

die() {
    printf 'two-hosts-on-one: %s\n' "$*" >&2
    exit 1
}

up() {
    check_tools
    if is_up; then
        local limited
        limited=$(rate v100a)
        if [[ $limited ]]; then
            printf 'Already up; link limited to %s. unlimit makes it fast again, down removes the hosts.\n' "$limited"
        else
            printf 'Already up; link not limited. down removes the hosts. status shows a cut link.\n'
        fi
        return
    fi
    clean
    mkdir -m 700 "$state"
    make_network
    make_keys
    local host
    for host in "${hosts[@]}"; do
        start_sshd "$host"
    done
    wait_for_sshd
    printf 'Up: v100a and v100b, one link between them. Next: launch/two-hosts-on-one.sh run hostname\n'
}

run() {
    need_up
    (($#)) || die "say what to run, for example: run python -m hvd_nmt.launch -H v100a:2,v100b:2 train"
    on v100a env PATH="$path" HOSTNAME=v100a "$@"
}

limit() {
    need_up
    [[ ${1:-} =~ ^[0-9.]+[kmg]?bit$ ]] || die "the rate is '${1:-}', expected one like 200mbit or 10gbit."
    local host
    for host in "${hosts[@]}"; do
        ip netns exec "$host" tc qdisc replace dev eth0 root tbf rate "$1" burst 64kb latency 400ms
    done
    printf 'Link limited to %s each way. unlimit makes it fast again.\n' "$1"
}

unlimit() {
    need_up
    local host
    for host in "${hosts[@]}"; do
        ip netns exec "$host" tc qdisc del dev eth0 root 2>/dev/null || true
    done
    printf 'Link not limited.\n'
}

cut() {
    need_up
    ip -n v100b link set eth0 down
    printf 'Link cut. heal plugs it in again.\n'
}

heal() {
    need_up
    ip -n v100b link set eth0 up
    local host
    for host in "${hosts[@]}"; do
        ip -n "$host" neigh flush dev eth0 # they remember each other as unreachable
    done
    wait_for_sshd
    printf 'Link healed: v100a and v100b reach each other.\n'
}

status() {
    is_up || { echo "down"; return; }
    local host
    for host in "${hosts[@]}"; do
        # `operstate` is a second late, and `carrier` cannot be read where the link is cut.
        # shellcheck disable=SC2016
        ip netns exec "$host" bash -c 'cd /sys/class/net/eth0 && [[ $(cat carrier 2>/dev/null) == 1 ]] && link=up || link=cut
            printf "%s  link %s, %s  sent %d MB  received %d MB  processes %d\n" "$1" "$link" "$3" \
            "$(($(<statistics/tx_bytes) / 1000000))" "$(($(<statistics/rx_bytes) / 1000000))" "$2"' \
            _ "$host" "$(ip netns pids "$host" | wc -l)" "$(limited=$(rate "$host") && echo "${limited:-no limit}")"
    done
}

# rate HOST: what its link is limited to, such as 200mbit; nothing where it is not.
rate() {
    ip netns exec "$1" tc qdisc show dev eth0 | sed -n 's/.* rate \([^ ]*\).*/\L\1/p'
}

down() {
    check_tools
    local did='Down: both hosts and all that ran on them are removed.'
    [[ -e $state ]] || did='Down: the hosts were not up.'
    clean
    printf '%s\n' "$did"
}

check_tools() {
    ((EUID == 0)) || die "network namespaces need root; run it with sudo."
    local tool missing=()
    for tool in ip:iproute2 tc:iproute2 unshare:util-linux hostname:hostname ssh:openssh-client ssh-keygen:openssh-client sshd:openssh-server; do
        command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
    done
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null || die "this machine lacks ${missing[*]}; install them and run it again."
    printf 'Installing %s\n' "${missing[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null 2>&1 ||
        die "apt-get could not install ${missing[*]}; run: apt-get install ${missing[*]}"
    if [[ " ${missing[*]} " == *" openssh-server "* ]]; then
        # Only the program is wanted, not a service of the machine.
        systemctl disable --now ssh.service ssh.socket >/dev/null 2>&1 || true
    fi
}

is_up() {
    local host
    for host in "${hosts[@]}"; do
        [[ -f $state/$host.pid ]] && kill -0 "$(<"$state/$host.pid")" 2>/dev/null || return 1
    done
}

need_up() {
    is_up || die "the hosts are not up; run: launch/two-hosts-on-one.sh up"
}

# on HOST COMMAND...: in the host's network and under its name (Gloo resolves its own name).
on() {
    local host=$1
    shift
    # shellcheck disable=SC2016
    exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

make_network() {
    local host number=0
    for host in "${hosts[@]}"; do
        ip netns add "$host" 2>/dev/null ||
            die "this machine does not allow network namespaces (a container needs --privileged)."
        mkdir -p "/etc/netns/$host"
        printf '127.0.0.1 localhost\n%s.1 v100a\n%s.2 v100b\n' "$subnet" "$subnet" >"/etc/netns/$host/hosts"
    done
    ip -n v100a link add eth0 type veth peer name eth0 netns v100b
    for host in "${hosts[@]}"; do
        number=$((number + 1))
        ip -n "$host" addr add "$subnet.$number/24" dev eth0
        ip -n "$host" link set lo up
        ip -n "$host" link set eth0 up
    done
}

# `ip netns exec` mounts /etc/netns/HOST/ssh over /etc/ssh, so plain `ssh v100b` and sshd find the
# rig's own keys there and nobody's ~/.ssh is read for them or written.
make_keys() {
    local host pam=no
    # Without PAM, sshd refuses an account whose password is locked with "!".
    [[ $(getent shadow root | command cut -d: -f2) != '!'* ]] || pam=yes
    ssh-keygen -q -t ed25519 -N '' -C two-hosts-on-one -f "$state/key"
    for host in "${hosts[@]}"; do
        ssh-keygen -q -t ed25519 -N '' -C "$host" -f "$state/$host"
        printf '%s %s\n' "$host" "$(<"$state/$host.pub")" >>"$state/known_hosts"
    done
    for host in "${hosts[@]}"; do
        mkdir -p "/etc/netns/$host/ssh"
        cat >"/etc/netns/$host/ssh/ssh_config" <<END
Host v100a v100b
    User root
    IdentityFile $state/key
    IdentitiesOnly yes
    GlobalKnownHostsFile $state/known_hosts
    UserKnownHostsFile /dev/null
    LogLevel ERROR
    ServerAliveInterval 15
END
        cat >"/etc/netns/$host/ssh/sshd_config" <<END
HostKey $state/$host
AuthorizedKeysFile $state/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM $pam
UseDNS no
PidFile none
PrintMotd no
MaxStartups 100
MaxSessions 100
SetEnv PATH=$path
END
    done
}

start_sshd() {
    mkdir -p /run/sshd # sshd refuses to start without it
    (on "$1" "$(command -v sshd)" -D -E "$state/$1.log" </dev/null >/dev/null 2>&1) &
    echo $! >"$state/$1.pid"
}

wait_for_sshd() {
    local host _
    for host in "${hosts[@]}"; do
        for _ in {1..50}; do
            ip netns exec v100a ssh -o ConnectTimeout=2 "$host" true 2>/dev/null && continue 2
            sleep 0.1
        done
        die "the sshd of $host does not answer; its log: $(tail -n 3 "$state/$host.log" 2>/dev/null)"
    done
}

# Everything that lives in the namespaces was started on the hosts, so it ends with them.
clean() {
    local host pids
    for host in "${hosts[@]}"; do
        [[ -e /run/netns/$host ]] || continue
        mapfile -t pids < <(ip netns pids "$host")
        ((${#pids[@]} == 0)) || kill -9 "${pids[@]}" 2>/dev/null || true
        ip netns del "$host"
        rm -rf "/etc/netns/$host"
    done
    rmdir --ignore-fail-on-non-empty /etc/netns 2>/dev/null || true
    rm -rf "$state"
}

main "$@"
