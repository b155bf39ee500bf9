#!/usr/bin/env bash
# Builds cnitool and the reference CNI plugins from their Go modules.  Usage: build.sh FOLDER   (Go 1.24 or later; no C compiler)
set -euo pipefail
out=$1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly
# Beside the folder first: an interrupted build must not pass for a finished one.
half=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$half"' EXIT
go build -trimpath -ldflags "-s -w" -o "$half/" tool
mv "$half"/* "$out/"
