#!/usr/bin/env bash
# Builds Kubernetes' end-to-end tests and the programs of their images from its Go modules.
# Usage: build.sh FOLDER   (Go 1.26 or later, no C compiler; five minutes on two processors after e2e/kubernetes/build.sh)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../go-build.sh"
version=$(awk '$2 == "k8s.io/kubernetes" {print $3; exit}' go.mod)
flags="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/client-go/pkg/version.gitVersion=$version"
build agnhost k8s.io/kubernetes/test/images/agnhost "$flags"
build regression-issue-74839 k8s.io/kubernetes/test/images/regression-issue-74839
go test -c -vet=off -trimpath -ldflags "-s -w $flags" -o "$half/e2e.test" k8s.io/kubernetes/test/e2e
# The builds above have downloaded the module; before, Go knows no folder of it.
module=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)
# The certificate of a test server, and Kubernetes' own manifest of its name service.
install -m 644 "$module"/test/images/agnhost/porter/localhost.{crt,key} "$module/cluster/addons/dns/coredns/coredns.yaml.base" "$half"
keep
