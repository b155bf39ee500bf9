#!/usr/bin/env bash
# Runs the tests of the lane vm in the virtual machine, with what `run.py` built on this one.
# Usage: test.sh SECONDS LANE [PART...]     (parts of the tests' names)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ "$(uname -m)" != x86_64 ]; then
    echo "test-vm: skipped, because the virtual machine is an x86-64 one and this machine is $(uname -m)"
    exit 0
fi
vm=${FLANNEL_VM_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/flannel-rs/vm-$(cat "$here/get.sh" "$here/init" | cksum | cut -d' ' -f1)}
for package in linux-image-cloud-amd64 qemu-system-x86; do
    [ ! -e "$vm/vmlinuz" ] || break
    apt-cache show $package >/dev/null 2>&1 && continue
    echo "test-vm: skipped, because this distribution has no package $package"
    exit 0
done
seconds=$1
shift
cd "$here/../.."
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo -E)
"${sudo[@]}" "$here/run.sh" "$seconds" "$(command -v python3)" e2e/run.py --built "$@"
