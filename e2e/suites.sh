#!/usr/bin/env bash
# Runs every test: first those that compute and measure, several programs at once, then the end-to-end ones, which mostly wait, and last those
# of the virtual machine, which takes both processors. A failure of one hides none of the others.
# Usage: suites.sh SECONDS NAME...     (for e2e/vm/test.sh)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=$1
shift
export INSTA_UPDATE=no
# As cargo does it: `sudo -E` in the Makefile.
runner=$(env | sed -n 's/^CARGO_TARGET_[A-Z0-9_]*_RUNNER=//p')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export runner scratch

# The programs too. All of it is built at once, and the tests are started from what that built: cargo, asked for some of them, chooses other
# features and compiles anew.
cargo test --workspace --no-run --message-format=json-render-diagnostics >"$scratch/built" || exit 1
python3 - "$scratch/built" >"$scratch/tests" <<'PYTHON' || exit 1
import json, os, sys
for line in open(sys.argv[1]):
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        folder = os.path.dirname(built["manifest_path"])
        print(os.path.relpath(built["target"]["src_path"]), folder, built["executable"], sep="\t")
PYTHON
[ "$(wc -l <"$scratch/tests")" -gt 30 ] || { echo "cargo names too few tests" >&2; exit 1; }

# Runs one program of tests in its package's folder.
run() { # SOURCE FOLDER EXECUTABLE [ARGUMENT...]
    echo "     Running $1"
    (cd "$2" && CARGO_MANIFEST_DIR=$2 $runner "${@:3}" 2>&1)
}
# The same, with all that it prints in one piece.
run_whole() {
    local log code
    log=$(mktemp -p "$scratch")
    run "$@" >"$log"
    code=$?
    flock "$scratch/tests" cat "$log"
    return "$code"
}
export -f run run_whole

code=0
end_to_end=$'^e2e/tests/e2e/main.rs\t'
# Those of the leases first, which wait the longest.
grep -v "$end_to_end" "$scratch/tests" | sort -r | tr '\t' '\n' | xargs -d '\n' -n 3 -P 4 bash -c 'run_whole "$@"' run_whole || code=1
cargo test --workspace --no-fail-fast --doc || code=1
# A thread for each: the lab lets as many run as the machine bears (e2e/lab/src/turn.rs).
IFS=$'\t' read -r source folder program < <(grep "$end_to_end" "$scratch/tests")
run "$source" "$folder" "$program" --test-threads=512 || code=1
{ ./e2e/setup.sh vm && ./e2e/vm/test.sh "$seconds" "$@"; } || code=1
exit "$code"
