#!/usr/bin/env bash
# Builds Helm's command from its Go modules.  Usage: build.sh FOLDER   (Go 1.26 or later, no C compiler; two minutes on two processors)
set -euo pipefail
out=$1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly
# Beside the folder first: an interrupted build must not pass for a finished one.
half=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$half"' EXIT
go build -trimpath -ldflags "-s -w" -o "$half/" tool   # helm
mv "$half"/* "$out/"
