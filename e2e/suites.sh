#!/usr/bin/env bash
# Runs every test: first those that compute and measure, then the end-to-end ones, which mostly wait, and last those of the virtual machine, which takes
# both processors. A failure of one hides none of the others.
# Usage: suites.sh SECONDS NAME...     (for e2e/vm/test.sh)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=$1
shift
export INSTA_UPDATE=no

# The programs too. All of it is built at once: parts of the workspace alone have other features, and would be compiled anew.
cargo test --workspace --no-run || exit 1

# Named one by one, because `--exclude e2e` changes the features.
mapfile -t tests < <(cargo metadata --no-deps --format-version=1 | grep -o '{[^{}]*}' | grep '"kind":\["test"\]' | grep '"test":true' |
    sed 's/.*"name":"\([^"]*\)".*/--test=\1/' | sort -u | grep -v -- '--test=e2e$')
[ ${#tests[@]} -gt 9 ] || { echo "cargo metadata names no tests" >&2; exit 1; }

code=0
cargo test --workspace --no-fail-fast --lib --bins "${tests[@]}" || code=1
cargo test --workspace --no-fail-fast --doc || code=1
# A thread for each: the lab lets as many run as the machine bears (e2e/lab/src/turn.rs).
cargo test --workspace --no-fail-fast --test e2e -- --test-threads=512 || code=1
{ ./e2e/setup.sh vm && ./e2e/vm/test.sh "$seconds" "$@"; } || code=1
exit "$code"
