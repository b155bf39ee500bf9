#!/usr/bin/env bash
# Builds cnitool and the reference CNI plugins from their Go modules.  Usage: build.sh FOLDER   (Go 1.24 or later; no C compiler)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../go-build.sh"
build "" tool
keep
