#!/usr/bin/env bash
# Unpacks nft and iptables of another release of the distribution into FOLDER; nothing is installed. FOLDER/bin has their names.
# Usage: userspace.sh RELEASE FOLDER
set -euo pipefail
release=$1
folder=$2
half=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$half"' EXIT
mkdir -p "$half"/{debs,root,state/lists/partial,cache/archives/partial,bin}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $release main" > "$half/sources.list"
apt() {
    apt-get -qq -o Dir::Etc::SourceList="$half/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State="$half/state" \
        -o Dir::Cache="$half/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root "$@"
}
apt update
mapfile -t packages < <(apt install --dry-run --no-install-recommends iptables nftables | sed -n 's/^Inst \([^ ]*\).*/\1/p')
(cd "$half/debs" && apt download "${packages[@]}")
for package in "$half"/debs/*.deb; do dpkg-deb -x "$package" "$half/root"; done
# The programs run with the libraries of their release.
libraries=$(dirname "$(find "$half/root/usr/lib" -name libc.so.6 | head -n 1)")
libraries=$folder${libraries#"$half"}
loader=$(readlink -f "$half"/root/usr/lib*/ld-linux-*.so.* | head -n 1)
loader=$folder${loader#"$half"}
wrap() { # NAME PROGRAM [ARGUMENT]
    printf '#!/bin/sh\nexport XTABLES_LIBDIR=%s/xtables\nexec %s --library-path %s %s/root/usr/sbin/%s %s "$@"\n' \
        "$libraries" "$loader" "$libraries" "$folder" "$2" "${3:-}" > "$half/bin/$1"
    chmod 755 "$half/bin/$1"
}
wrap nft nft
for name in iptables ip6tables; do
    for command in '' -save -restore; do
        wrap "$name$command" xtables-nft-multi "$name$command"
        wrap "$name-nft$command" xtables-nft-multi "$name$command"
    done
done
rm -rf "$half"/{debs,state,cache,sources.list}
chmod 755 "$half"
rm -rf "$folder"
mv "$half" "$folder"
trap - EXIT
