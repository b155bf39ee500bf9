#!/usr/bin/env bash
# Builds the two images as archives that containerd, Podman and Docker load: target/images/{flannel,flannel-cni-plugin}.tar for this
# machine's architecture, target/images/ARCH/ for another one. No engine is needed; nft and iptables come from Debian's packages.
#
# usage: build.sh [amd64|arm64] [packages]    packages: only gets Debian's packages, for a later build without a network
# environment: PROFILE=release|dev    how to build; dev is quick, its archives are large
#              IMAGES=FOLDER          where the archives go
#              PROGRAMS=FOLDER        flanneld and flannelctl that are built already
#              CNI_PLUGIN=FILE        a plugin that is built already
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/flannel-rs
profile=${PROFILE:-release}
# Equal sources give equal bytes: an image has the time of the last change.
: "${SOURCE_DATE_EPOCH:=$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH

say() { printf 'image: %s\n' "$*"; }
fail() { printf 'image: %s\n' "$*" >&2; exit 1; }

# The names of one architecture: Debian's, Rust's, and the loader of its programs.
case $(uname -m) in
    x86_64) host=amd64 ;;
    aarch64) host=arm64 ;;
    *) fail "images are built on x86-64 and on arm64, not on $(uname -m)" ;;
esac
arch=${1:-$host}
case $arch in
    amd64) cpu=x86_64 loader=/lib64/ld-linux-x86-64.so.2 ;;
    arm64) cpu=aarch64 loader=/lib/ld-linux-aarch64.so.1 ;;
    *) fail "there are images for amd64 and arm64, not for '$arch'" ;;
esac
triplet=$cpu-linux-gnu
images=${IMAGES:-$top/target/images}
[ "$arch" = "$host" ] || images=${IMAGES:-$top/target/images/$arch}
version=v$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)

# Unpacks nft, iptables and the packages that they need. The packages installed on this machine do not matter.
packages=$cache/image-packages/$arch
get_packages() {
    [ -e "$packages/versions" ] && return 0
    command -v apt-get >/dev/null || fail "there is no apt-get here: images are built on Debian or Ubuntu"
    say "nft, iptables and their libraries for $arch from the distribution into $packages"
    local half apt
    mkdir -p "$cache/image-packages"
    half=$(mktemp -d "$packages.XXXXXX")
    mkdir -p "$half"/{apt/lists/partial,apt/archives/partial,root}
    # apt uses its own lists and state here, and treats no package as installed.
    apt=(apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State::lists="$half/apt/lists"
        -o Dir::State::status=/dev/null -o Dir::Cache::archives="$half/apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Sandbox::User=root -o Debug::NoLocking=1)
    "${apt[@]}" update
    "${apt[@]}" install --yes --download-only --no-install-recommends nftables iptables netbase libc6 libgcc-s1 >/dev/null
    for package in "$half"/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$half/root"
        dpkg-deb --showformat '${Package} ${Version}\n' --show "$package"
    done | sort >"$half/versions"
    rm -rf "$half/apt" "$packages"
    mv "$half" "$packages"
}

[ "${2:-}" != packages ] || { get_packages; exit; }

# Builds a dynamically linked program of the workspace for the architecture. Prints only cargo's lines.
build_daemon() {
    local options=(--locked -p flanneld -p flannelctl)
    [ "$profile" = dev ] || options+=(--profile "$profile")
    if [ "$arch" != "$host" ]; then
        command -v "$triplet-gcc" >/dev/null || fail "there is no $triplet-gcc: apt-get install gcc-${cpu/_/-}-linux-gnu libc6-dev-$arch-cross"
        has_target "$cpu-unknown-linux-gnu" || fail "Rust has no target $cpu-unknown-linux-gnu here, and no rustup to add it"
        local name=${cpu^^}_UNKNOWN_LINUX_GNU
        export "CARGO_TARGET_${name}_LINKER=$triplet-gcc" "CC_${cpu}_unknown_linux_gnu=$triplet-gcc" "AR_${cpu}_unknown_linux_gnu=$triplet-ar"
        options+=(--target "$cpu-unknown-linux-gnu")
    fi
    (cd "$top" && cargo build "${options[@]}")
}

has_target() { # TARGET: there, or to be had
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ] || { command -v rustup >/dev/null && rustup target add "$1" >/dev/null 2>&1; }
}

# Builds the small static program: with musl if Rust has this target, and otherwise with a static glibc.
build_install() {
    local target=$cpu-unknown-linux-musl
    export RUSTFLAGS=
    if has_target "$target"; then
        # Rust has its own linker and start files, so the build needs no compiler for the other architecture.
        [ "$arch" = "$host" ] || RUSTFLAGS="-C linker=rust-lld -C link-self-contained=yes"
    else
        target=$cpu-unknown-linux-gnu
        RUSTFLAGS="-C target-feature=+crt-static"
        [ "$arch" = "$host" ] || export "CARGO_TARGET_${cpu^^}_UNKNOWN_LINUX_GNU_LINKER=$triplet-gcc"
    fi
    (cd "$top" && cargo build --locked --profile cni -p install-file --target "$target")
    install_program=$target_dir/$target/cni/flannel-install
    unset RUSTFLAGS
}

library() { # NAME: the file of a library in the packages
    local found
    found=$(find "$packages/root/lib/$triplet" "$packages/root/usr/lib/$triplet" -maxdepth 1 -name "$1" 2>/dev/null | head -n 1)
    [ -z "$found" ] || readlink -f "$found"
}

# Copies the libraries that an ELF file of the packages needs into the image, each of them once.
add_libraries() { # ROOT FILE...
    local root=$1 name found file
    shift
    for file; do
        while read -r name; do
            [ ! -e "$root/usr/lib/$triplet/$name" ] && [ "$name" != "${loader##*/}" ] || continue
            found=$(library "$name")
            [ -n "$found" ] || fail "$file needs $name, which none of the packages in $packages has"
            install -D -m 644 "$found" "$root/usr/lib/$triplet/$name"
            add_libraries "$root" "$root/usr/lib/$triplet/$name"
        done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    done
}

add_install() { # ROOT: the names under which manifests call it
    install -D -m 755 "$install_program" "$1/opt/bin/install-conf"
    mkdir -p "$1/bin"
    ln -s ../opt/bin/install-conf "$1/bin/cp"
    ln -s ../opt/bin/install-conf "$1/bin/rm"
    ln -s ../opt/bin/install-conf "$1/bin/pause"
}

make_daemon() { # ROOT
    local root=$1 program family
    install -d "$root"/{opt/bin,usr/sbin,run/flannel,etc}
    for program in flanneld flannelctl; do
        install -m 755 "$programs/$program" "$root/opt/bin/$program"
        # Only developers need symbols, so the image has none.
        "$strip" --strip-all "$root/opt/bin/$program"
    done
    for program in nft xtables-nft-multi xtables-legacy-multi; do
        install -m 755 "$packages/root/usr/sbin/$program" "$root/usr/sbin/$program"
    done
    for family in iptables ip6tables; do
        for program in "" -save -restore; do
            ln -s xtables-nft-multi "$root/usr/sbin/$family$program"
            ln -s xtables-nft-multi "$root/usr/sbin/$family-nft$program"
            ln -s xtables-legacy-multi "$root/usr/sbin/$family-legacy$program"
        done
    done
    # nft and iptables must also be able to read the extensions that other programs' rules use.
    install -d "$root/usr/lib/$triplet/xtables"
    install -m 644 "$packages/root/usr/lib/$triplet/xtables"/lib{xt,ipt,ip6t}_*.so "$root/usr/lib/$triplet/xtables/"
    install -D -m 755 "$(library "${loader##*/}")" "$root$loader"
    add_libraries "$root" "$root"/opt/bin/flanneld "$root"/opt/bin/flannelctl "$root"/usr/sbin/* "$root/usr/lib/$triplet/xtables"/*.so
    # The names of protocols for nft, and the order of sources for host names.
    install -m 644 "$packages/root/etc/protocols" "$root/etc/protocols"
    echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
    add_origin "$root"
    add_install "$root"
}

# Adds the list of the packages in the image, and their licences.
add_origin() { # ROOT
    install -D -m 644 "$packages/versions" "$1/usr/share/flannel/packages"
    local name
    while read -r name _; do
        case $name in
            nftables | iptables | netbase | lib*)
                [ ! -e "$packages/root/usr/share/doc/$name/copyright" ] ||
                    install -D -m 644 "$(readlink -f "$packages/root/usr/share/doc/$name/copyright")" "$1/usr/share/doc/$name/copyright" ;;
        esac
    done <"$packages/versions"
}

make_plugin() { # ROOT
    install -D -m 755 "$plugin" "$1/flannel"
    add_install "$1"
}

pack() { # NAME LIMIT-IN-KIB [ENTRYPOINT]
    local out=$images/$1.tar ref=docker.io/flannel-rs/$1:$version digest
    digest=$(python3 "$here/mkimage.py" --out "$out" --ref "$ref" --arch "$arch" --level "$level" ${3:+--entrypoint "$3"} \
        --label "org.opencontainers.image.version=$version" --label org.opencontainers.image.licenses=Apache-2.0 "$stage/$1")
    local size=$((($(stat -c %s "$out") + 1023) / 1024))
    say "$out: $ref for $arch, $size KiB, $digest"
    [ "$profile" = dev ] || [ "$size" -le "$2" ] || fail "$out has $size KiB and may have $2: look for what is not needed in $stage/$1"
}

strip=strip
[ "$arch" = "$host" ] || strip=$triplet-strip
for tool in python3 readelf "$strip"; do
    command -v "$tool" >/dev/null || fail "there is no $tool: apt-get install python3 binutils"
done
level=9
[ "$profile" != dev ] || level=1
target_dir=${CARGO_TARGET_DIR:-$top/target}
programs=${PROGRAMS:-$target_dir/$([ "$arch" = "$host" ] || echo "$cpu-unknown-linux-gnu/")$([ "$profile" = dev ] && echo debug || echo "$profile")}
get_packages
[ -n "${PROGRAMS:-}" ] || build_daemon
build_install
plugin=${CNI_PLUGIN:-}
# The last line names the program.
[ -n "$plugin" ] || plugin=$top/$("$top/cni/build.sh" "$arch" | tail -n 1)

umask 022
mkdir -p "$images"
stage=$images/root
rm -rf "$stage"
make_daemon "$stage/flannel"
make_plugin "$stage/flannel-cni-plugin"
pack flannel 16384 /opt/bin/flanneld
pack flannel-cni-plugin 1024
