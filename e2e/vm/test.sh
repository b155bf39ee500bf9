#!/usr/bin/env bash
# Runs end-to-end tests in the virtual machine, those that are ignored outside too.
# Usage: [FLANNEL_VM_TEST=interop] test.sh SECONDS NAME...     (parts of the tests' names)
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
# All of the workspace, as `make test` builds it: for one test alone cargo chooses other features, and compiles anew. The programs come in
# any order: the kind marks that of the tests.
program=$(cargo test --workspace ${FLANNEL_VM_TEST:+--test "$FLANNEL_VM_TEST"} --no-run --message-format=json 2>/dev/null | sed -n '/"kind":\["test"\]/s/.*"executable":"\([^"]*\/'"${FLANNEL_VM_TEST:-e2e}"'-[^"]*\)".*/\1/p' | tail -n 1) || program=
[ -x "$program" ] || { echo "the end-to-end tests are not built" >&2; exit 1; }
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo -E)
# Two processors that are emulated: more tests at once would take each other's time.
"${sudo[@]}" "$here/run.sh" "$seconds" "$program" --include-ignored --test-threads=2 "$@"
