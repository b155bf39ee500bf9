#!/usr/bin/env bash
# Unpacks an emulator and a kernel of the distribution into FOLDER, with a first file system for it; nothing is installed.
# Usage: get.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
half=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$half"' EXIT
chmod 755 "$half"
mkdir "$half/root" "$half/debs"

# The newest kernel for clouds: small, and with every kind of tunnel.
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: *\(linux-image-[^ ]*\)$/\1/p' | head -n 1)
[ -n "$kernel" ] || { echo "there is no package linux-image-cloud-amd64 here" >&2; exit 1; }
# What installing the emulator would bring, without what is here already.
mapfile -t packages < <(apt-get install --dry-run --no-install-recommends qemu-system-x86 2>/dev/null | sed -n 's/^Inst \([^ ]*\).*/\1/p')
packages+=("$kernel" busybox-static wireguard-tools)
! apt-cache show virtiofsd >/dev/null 2>&1 || packages+=(virtiofsd)
(cd "$half/debs" && apt-get -o APT::Sandbox::User=root download -qq "${packages[@]}")
for package in "$half"/debs/*.deb; do dpkg-deb -x "$package" "$half/root"; done
rm -rf "$half/debs"

# What makes the host's files this machine's, and nothing else.
root=$half/root
busybox=$root/bin/busybox
[ -e "$busybox" ] || busybox=$root/usr/bin/busybox
modules=$(echo "$root"/lib/modules/*)
[ -d "$modules" ] || modules=$(echo "$root"/usr/lib/modules/*)
version=$(basename "$modules")
# depmod looks in lib/modules.
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
"$busybox" depmod -b "$root" "$version"
initrd=$half/initrd
mkdir -p "$initrd"/{bin,sbin,dev,proc,sys}
cp "$busybox" "$initrd/bin/busybox"
cp "$here/init" "$initrd/init"
ln -s /bin/busybox "$initrd/sbin/modprobe"
for module in virtio_pci virtiofs overlay; do
    # A line has the module and what it needs.
    for file in $(sed -n "s|:||; /\/$module\.ko/p" "$modules/modules.dep" | grep "^[^ ]*/$module\.ko"); do
        install -D "$modules/$file" "$initrd/lib/modules/$version/$file"
    done
done
"$busybox" depmod -b "$initrd" "$version"
(cd "$initrd" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) > "$half/initrd.gz"
rm -rf "$initrd"
mv "$root"/boot/vmlinuz-* "$half/vmlinuz"
cp "$busybox" "$half/busybox"
ln -s "root${modules#"$root"}" "$half/modules"
chmod 755 "$half"
rm -rf "$folder"
mv "$half" "$folder"
trap - EXIT
