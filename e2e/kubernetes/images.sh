#!/usr/bin/env bash
# Makes the images of the pods' world in the tests: pause, and busybox for everything else.  Usage: images.sh BUSYBOX FOLDER
set -euo pipefail
busybox=$1 out=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
arch=$(dpkg --print-architecture)
mkdir -p "$out"
half=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$half"' EXIT
image() { # NAME ENTRYPOINT: of the folder with this name
    python3 "$here/../../conf/image/mkimage.py" --out "$half/$1.tar" --ref "localhost/$1:1" --arch "$arch" --level 1 --entrypoint "$2" "$half/$1" >/dev/null
}
mkdir "$half/pause"
gcc -Os -static -s -o "$half/pause/pause" "$here/pause.c"
image pause /pause
install -D "$busybox" "$half/busybox/bin/busybox"
for name in sh sleep cat echo nc httpd ping ping6 ip wget; do ln -s busybox "$half/busybox/bin/$name"; done
image busybox /bin/sh
mv "$half"/*.tar "$out/"
