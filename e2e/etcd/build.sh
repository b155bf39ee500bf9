#!/usr/bin/env bash
# Builds etcd, etcdctl and etcdutl from their Go modules.  Usage: build.sh FOLDER   (Go 1.26 or later; no C compiler)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../go-build.sh"
build etcd-for-tests .
build "" tool   # etcdutl
for name in etcd etcdctl; do ln -s etcd-for-tests "$half/$name"; done
keep
