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
# All of the workspace, as `make test` builds it: for one test alone cargo chooses other features, and compiles anew. Of the programs that come, in
# any order: the end-to-end tests, which the kind marks, and the unit tests of the packet engine, whose peer is the machine's kernel.
built=$(cargo test --workspace ${FLANNEL_VM_TEST:+--test "$FLANNEL_VM_TEST"} --no-run --message-format=json 2>/dev/null) || built=
program() { # KIND NAME
    sed -n '/"kind":\["'"$1"'"\]/s/.*"executable":"\([^"]*\/'"$2"'-[^"]*\)".*/\1/p' <<<"$built" | tail -n 1
}
tests=$(program test "${FLANNEL_VM_TEST:-e2e}")
[ -x "$tests" ] || { echo "the end-to-end tests are not built" >&2; exit 1; }
units=
[ -n "${FLANNEL_VM_TEST:-}" ] || units=$(program lib packet_engine)
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo -E)
# Two processors that are emulated: more tests at once would take each other's time.
# shellcheck disable=SC2016
both='tests=$1; units=$2; shift 2; code=0; "$tests" "$@" || code=1; [ -z "$units" ] || "$units" "$@" || code=1; exit $code'
"${sudo[@]}" "$here/run.sh" "$seconds" sh -c "$both" sh "$tests" "$units" --include-ignored --test-threads=2 "$@"
