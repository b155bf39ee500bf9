#!/bin/sh
# What the virtual machine does once it has its files: it runs one command, says how it ended, and ends.
# run.sh writes the variables before this.
dmesg -n 1 2>/dev/null || "$VM/busybox" dmesg -n 1
# Labs of the host are not this machine's; all else there is: the work tree may be in it.
mkdir -p /tmp/flannel-lab
mount -t tmpfs labs /tmp/flannel-lab
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts
mount -t tmpfs shm /dev/shm
# The folders of modules and of the program that loads them are often links into /usr.
mkdir -p "/lib/modules/$(uname -r)"
mount --bind "$VM/modules" "/lib/modules/$(uname -r)"
[ -e /sbin/modprobe ] || ln -s "$VM/busybox" /sbin/modprobe
"$VM/busybox" hostname vm
ip link set lo up
cd "$WORK"
# Before the tests: two of them that wanted the same module at once would get an error, `Unknown device type`.
for module in veth bridge br_netfilter vxlan ipip tun wireguard sch_netem; do
    modprobe "$module" || { echo "the kernel has no module $module"; echo "RESULT 1"; "$VM/busybox" poweroff -f; }
done
mkdir -p /dev/net
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
"$@"
echo "RESULT $?"
"$VM/busybox" poweroff -f
