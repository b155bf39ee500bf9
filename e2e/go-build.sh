# Sourced by the build.sh beside each go.mod, with the folder that the programs go to: sets `out` and `half`, and ends with `keep`.
# A build goes beside the folder first: an interrupted one must not pass for a finished one.
out=$1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[1]}")"
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly
half=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$half"' EXIT

# build TARGET PACKAGE [LINKER FLAGS]
build() { go build -trimpath -ldflags "-s -w ${3:-}" -o "$half/$1" "$2"; }
keep() { mv "$half"/* "$out/"; }
