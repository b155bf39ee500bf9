#!/usr/bin/env bash
# Builds the CNI plugin as one static program.  Usage: build.sh [amd64 | arm64]   (this machine's architecture is the default)
#
# With musl if rustup has that target: the smallest and fastest to start. Else with the C library of this machine, linked statically;
# that needs a C compiler for the architecture. Prints the path, target/cni/ARCH/flannel, as its last line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-$(uname -m)} in
    amd64 | x86_64) arch=amd64 rust=x86_64 ;;
    arm64 | aarch64) arch=arm64 rust=aarch64 ;;
    *) echo "build.sh: unknown architecture $1: say amd64 or arm64" >&2; exit 2 ;;
esac
musl=$rust-unknown-linux-musl gnu=$rust-unknown-linux-gnu
target_dir=${CARGO_TARGET_DIR:-target}
has_target() { [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ]; }
add_target() { has_target "$1" || { command -v rustup >/dev/null && rustup target add "$1" >&2; }; }
build() { cargo build --locked --profile cni -p flannel-cni --bin flannel --target "$1" >&2; }

variable=$(printf '%s' "$gnu" | tr a-z- A-Z_)
if add_target "$musl"; then
    target=$musl
    # Rust brings what musl needs, the linker included.
    export "CARGO_TARGET_$(printf '%s' "$musl" | tr a-z- A-Z_)_LINKER=rust-lld"
    build "$target"
elif add_target "$gnu"; then
    target=$gnu
    if [ "$rust" != "$(uname -m)" ]; then
        command -v "$rust-linux-gnu-gcc" >/dev/null || { echo "build.sh: there is no $rust-linux-gnu-gcc: apt-get install gcc-$(echo "$rust" | tr _ -)-linux-gnu" >&2; exit 1; }
        export "CARGO_TARGET_${variable}_LINKER=$rust-linux-gnu-gcc"
    fi
    export "CARGO_TARGET_${variable}_RUSTFLAGS=-C target-feature=+crt-static"
    build "$target"
else
    echo "build.sh: Rust has neither $musl nor $gnu: install it with your Rust" >&2
    exit 1
fi

out=target/cni/$arch/flannel
install -D -m 755 "$target_dir/$target/cni/flannel" "$out"
echo "build.sh: $target, $(stat -c %s "$out") bytes" >&2
echo "$out"
