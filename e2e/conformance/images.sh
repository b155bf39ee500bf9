#!/usr/bin/env bash
# Makes the images that Kubernetes' own tests of networks name, without an engine or a registry: agnhost with Debian's programs.
# Usage: images.sh TESTS COREDNS OUT     (the folders of the two build.sh, and where the archives go; half a minute)
set -euo pipefail
built=$(realpath "$1") coredns=$(realpath "$2") out=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
arch=$(dpkg --print-architecture)
mkdir -p "$out"
half=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$half"' EXIT

# The programs that tests call in pods, with all that they need: what is installed on this machine does not matter.
root=$half/root
mkdir -p "$half"/apt/{lists,archives}/partial "$root"/{bin,etc,tmp,root,uploads}
apt=(apt-get -qq -o Dir::State::lists="$half/apt/lists" -o Dir::State::status=/dev/null -o Dir::Cache::archives="$half/apt/archives"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root -o Debug::NoLocking=1)
"${apt[@]}" update
"${apt[@]}" install --yes --download-only --no-install-recommends \
    bash bind9-dnsutils busybox-static conntrack curl iperf iproute2 libc-bin netcat-openbsd wget >/dev/null
for package in "$half"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
rm -rf "$root"/{boot,usr/share,usr/include,var,etc/*} "$root"/usr/lib/*/{perl*,gconv}

# What is still missing is busybox'. A shell of its own would prefer its nc and wget to Debian's.
ln -sf bash "$root/bin/sh"
ln -sf nc.openbsd "$root/bin/nc"
for name in $("$root/bin/busybox" --list); do
    for folder in bin sbin usr/bin usr/sbin; do
        [ ! -L "$root/$folder/$name" ] && [ ! -e "$root/$folder/$name" ] || continue 2
    done
    ln -s /bin/busybox "$root/bin/$name"
done
printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
install "$built/agnhost" "$root/agnhost"
ln -s agnhost "$root/agnhost-2"
install -m 644 "$built"/localhost.{crt,key} "$root/"

image() { # NAME:TAG ROOT OPTION...
    local file=${1##*/}
    python3 "$here/../../conf/image/mkimage.py" --out "$half/${file%%:*}.tar" --ref "registry.k8s.io/$1" --arch "$arch" --level 1 "${@:3}" "$2" >/dev/null
}
image e2e-test-images/agnhost:2.63.0 "$root" --entrypoint /agnhost --command pause
image e2e-test-images/glibc-dns-testing:2.0.0 "$root" --command /bin/sh
image e2e-test-images/busybox:1.37.0-1 "$root" --command sh
image e2e-test-images/nginx:1.15-4 "$root" --entrypoint /agnhost --command test-webserver --command=--port=80
gcc -Os -static -s -o "$half/pause" "$here/../kubernetes/pause.c"
for one in coredns/coredns:v1.14.2="$coredns/coredns" e2e-test-images/regression-issue-74839:1.4="$built/regression-issue-74839" pause:3.10.2="$half/pause"; do
    name=${one%%=*} program=${one#*=}
    rm -rf "$half/one"
    install -D "$program" "$half/one/${program##*/}"
    image "$name" "$half/one" --entrypoint "/${program##*/}"
done
mv "$half"/*.tar "$out/"
