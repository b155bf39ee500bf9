#!/usr/bin/env bash
# Builds CoreDNS from its Go modules.  Usage: build.sh FOLDER   (Go 1.26 or later, no C compiler; a minute on two processors)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../go-build.sh"
build coredns .
keep
