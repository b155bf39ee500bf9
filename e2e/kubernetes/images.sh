#!/usr/bin/env bash
# Makes the images of the pods' world in the tests: pause, and busybox for everything else.  Usage: images.sh BUSYBOX FOLDER
set -euo pipefail
busybox=$1 out=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out"
half=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$half"' EXIT
gcc -Os -static -s -o "$half/pause" "$here/pause.c"
python3 "$here/image.py" "$half/pause.tar" localhost/pause:1 '["/pause"]' "$half/pause=/pause"
links=()
for name in sh sleep cat echo nc httpd ping ping6 ip wget; do links+=("->busybox=/bin/$name"); done
python3 "$here/image.py" "$half/busybox.tar" localhost/busybox:1 '["/bin/sh"]' "$busybox=/bin/busybox" "${links[@]}"
mv "$half"/*.tar "$out/"
