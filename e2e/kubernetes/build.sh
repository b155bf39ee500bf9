#!/usr/bin/env bash
# Builds Kubernetes' commands from its Go modules, as one program with a link for each.
# Usage: build.sh FOLDER   (Go 1.26 or later, no C compiler; four minutes on two processors from nothing)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../go-build.sh"
version=$(awk '$1 == "k8s.io/kubernetes" {print $2; exit}' go.mod)
minor=${version#v1.}
minor=${minor%%.*}
# Unset, kubelet would register as v0.0.0, and clients would refuse a server of that version.
flags=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    flags+=" -X $package.gitTreeState=archive -X $package.buildDate=1970-01-01T00:00:00Z"
done
build kubernetes-for-tests . "$flags"
for name in kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet kubectl; do
    ln -s kubernetes-for-tests "$half/$name"
done
keep
