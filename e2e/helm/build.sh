#!/usr/bin/env bash
# Builds Helm's command from its Go modules.  Usage: build.sh FOLDER   (Go 1.26 or later, no C compiler; two minutes on two processors)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../go-build.sh"
build "" tool
keep
