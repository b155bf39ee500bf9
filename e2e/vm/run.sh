#!/usr/bin/env bash
# Runs a command in a virtual machine with a kernel of the distribution, which has WireGuard, IPIP and netem. The command sees this
# machine's files; what it writes is gone with the machine. There is no network.  As root.
# Usage: run.sh SECONDS COMMAND [ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=$1
shift
vm=${FLANNEL_VM_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/flannel-rs/vm-$(cat "$here/get.sh" "$here/init" | cksum | cut -d' ' -f1)}
[ -e "$vm/vmlinuz" ] || { echo "there is no $vm/vmlinuz: ./e2e/setup.sh vm gets it" >&2; exit 1; }

scratch=$(mktemp -d)
console=$scratch/console
files=
cleanup() {
    [ -z "$files" ] || kill "$files" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT

{
    printf 'VM=%q WORK=%q\n' "$vm" "$PWD"
    printf 'export PATH=%q HOME=%q\n' "$PATH:/usr/sbin:/sbin:$vm/root/usr/bin" "$HOME"
    for name in XDG_CACHE_HOME RUST_BACKTRACE FLANNEL_BIN_DIR FLANNEL_ETCD_DIR FLANNEL_TEST_GUARD FLANNEL_TEST_RESTARTS FLANNEL_TEST_PORTS FLANNEL_TEST_PSK \
        GO_FLANNELD; do
        [ -z "${!name:-}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'set --'
    printf ' %q' "$@"
    printf '\n'
    cat "$here/inside.sh"
} > "$scratch/script"

export LD_LIBRARY_PATH=$vm/root/usr/lib/x86_64-linux-gnu:$vm/root/lib/x86_64-linux-gnu
daemon=$vm/root/usr/libexec/virtiofsd
[ -x "$daemon" ] || daemon=$vm/root/usr/lib/qemu/virtiofsd
case $("$daemon" --help 2>&1) in
    # The root itself can be shared by chroot alone. Nothing is written: the machine mounts it so.
    *--shared-dir*) "$daemon" --socket-path="$scratch/files" --shared-dir=/ --sandbox=chroot --cache=always >"$scratch/files.log" 2>&1 & ;;
    *) "$daemon" --socket-path="$scratch/files" -o source=/ -o sandbox=chroot -o cache=always -f >"$scratch/files.log" 2>&1 & ;;
esac
files=$!
for _ in $(seq 600); do
    [ ! -S "$scratch/files" ] || break
    sleep 0.1
done
[ -S "$scratch/files" ] || { cat "$scratch/files.log" >&2; exit 1; }

memory=${FLANNEL_VM_MEMORY:-2048}
# Nested virtualization is rare, and some machines have /dev/kvm and run no guest: the first use tries it. Emulation works everywhere; with
# two processors, threads run in parallel.
accelerator=${FLANNEL_VM_ACCELERATOR:-}
if [ -z "$accelerator" ]; then
    [ -e "$vm/accelerator" ] || {
        if [ -w /dev/kvm ] && FLANNEL_VM_ACCELERATOR=kvm "${BASH_SOURCE[0]}" 60 true >/dev/null 2>&1; then echo kvm; else echo tcg; fi > "$vm/accelerator.$$"
        mv "$vm/accelerator.$$" "$vm/accelerator"
    }
    accelerator=$(cat "$vm/accelerator")
fi
case $accelerator in
    kvm) processor=(-accel kvm -cpu host) clock= ;;
    # What qemu64 lacks of `max` would be emulated, a fifth slower; and the kernel would read the emulated HPET.
    *) processor=(-accel tcg,thread=multi -cpu qemu64) clock=tsc=reliable ;;
esac
timeout --foreground --kill-after=5 "$seconds" "$vm/root/usr/bin/qemu-system-x86_64" -L "$vm/root/usr/share/qemu" -L "$vm/root/usr/share/seabios" \
    "${processor[@]}" -smp 2 -m "$memory" -object "memory-backend-memfd,id=memory,size=${memory}M,share=on" -numa node,memdev=memory \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -chardev "socket,id=files,path=$scratch/files" -device vhost-user-fs-pci,chardev=files,tag=host \
    -kernel "$vm/vmlinuz" -initrd "$vm/initrd.gz" -append "console=ttyS0 quiet panic=-1 $clock script=$scratch/script" </dev/null \
    | sed -u 's|\r||g' | tee "$console" || true
result=$(sed -n 's/^RESULT \([0-9]*\).*/\1/p' "$console" | tail -n 1)
[ -n "$result" ] || { cat "$scratch/files.log" >&2; echo "the virtual machine ended without a result, or was stopped after $seconds s" >&2; exit 1; }
exit "$result"
