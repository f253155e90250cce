# Begins a machine under systemd, as process 1 of namespaces of its own: GROUP (of control groups), UNITS (a directory), LOG.
# Nothing but these units runs there. /run and /sys/fs/cgroup are its own, for systemd remounts the latter read-only; everything else is
# that of the caller.
set -eu
group=$1 units=$2 log=$3
# enter TREE: makes the groups of the machine there, with what the groups above have
enter() {
    at=$1
    for part in "${group#/}" machine; do
        # words of one line
        # shellcheck disable=SC2013
        for controller in $(cat "$at/cgroup.controllers" 2>/dev/null); do
            echo "+$controller" >"$at/cgroup.subtree_control" || true
        done
        mkdir -p "$at/$part"
        for name in cpuset.cpus cpuset.mems; do
            [ ! -e "$at/$part/$name" ] || cat "$at/$name" >"$at/$part/$name" || true
        done
        at=$at/$part
    done
    echo $$ >"$at/cgroup.procs"
}
trees=
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
    enter /sys/fs/cgroup
else
    for tree in /sys/fs/cgroup/*/; do
        [ -e "$tree/cgroup.procs" ] || continue
        enter "${tree%/}"
        trees="$trees $(basename "$tree")"
    done
fi
# expanded by that shell
# shellcheck disable=SC2016
exec unshare --cgroup --mount --propagation private --pid --fork --kill-child=KILL --mount-proc sh -euc '
    if [ -z "$2" ]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    else
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
        for name in $2; do
            mkdir "/sys/fs/cgroup/$name"
            options=$name
            [ "$name" != systemd ] || options=none,name=systemd
            mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$name"
        done
    fi
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/units
    cp -r "$0"/* /run/units
    for unit in basic sysinit shutdown final umount local-fs slices paths sockets timers multi-user rescue emergency; do
        cp "/usr/lib/systemd/system/$unit.target" /run/units 2>/dev/null || true
    done
    # one version of control groups, as crun wants it
    exec env -i container=test PATH="$PATH" SYSTEMD_PROC_CMDLINE=systemd.legacy_systemd_cgroup_controller=1 SYSTEMD_UNIT_PATH=/run/units /usr/lib/systemd/systemd --system --unit=multi-user.target \
        --log-target=console --log-level=info --show-status=0 >"$1" 2>&1 </dev/null' "$units" "$log" "$trees"
