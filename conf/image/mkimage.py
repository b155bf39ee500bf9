#!/usr/bin/env python3
"""Writes an image archive that containerd, Podman and Docker load, without an engine.

One archive is an OCI layout and, by its manifest.json, what `docker load` before Docker 25 reads. Equal contents give equal bytes:
entries are sorted, and every time is SOURCE_DATE_EPOCH (0 if unset).

usage: mkimage.py --out FILE --ref NAME:TAG --arch amd64|arm64 [--entrypoint PATH] [--command WORD]... [--label KEY=VALUE]... [--level 1..9] ROOT
ROOT is the folder that becomes the image's root. All files belong to root; their modes are kept.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin"
OCI = "application/vnd.oci.image"


def layer(root, epoch):
    """The files below a folder as a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder, folders, files in os.walk(root):
            folders.sort()
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            inside = os.path.relpath(folder, root)
            if inside != ".":
                add(archive, inside, folder, epoch)
            for name in sorted(files + links):
                add(archive, os.path.normpath(os.path.join(inside, name)), os.path.join(folder, name), epoch)
    return out.getvalue()


def add(archive, name, path, epoch):
    """One entry: what of it depends on this machine is left out."""
    entry = tarfile.TarInfo(name)
    entry.mtime = epoch
    kind = os.lstat(path).st_mode
    if stat.S_ISLNK(kind):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        archive.addfile(entry)
    elif stat.S_ISDIR(kind):
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    elif stat.S_ISREG(kind):
        with open(path, "rb") as file:
            entry.size, entry.mode = os.fstat(file.fileno()).st_size, stat.S_IMODE(kind)
            archive.addfile(entry, file)
    else:
        raise SystemExit(f"mkimage: {path} is neither a file nor a folder nor a link")


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def text(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def archive(options, epoch):
    """The members of the archive, by name."""
    raw = layer(options.root, epoch)
    packed = gzip.compress(raw, options.level, mtime=0)
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = {"Env": ["PATH=" + PATH], "WorkingDir": "/", "Labels": dict(label.split("=", 1) for label in options.label)}
    if options.entrypoint:
        config["Entrypoint"] = [options.entrypoint]
    if options.command:
        config["Cmd"] = options.command
    image = text({
        "created": created,
        "architecture": options.arch,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(raw)]},
        "history": [{"created": created, "created_by": "conf/image/mkimage.py"}],
    })

    def described(kind, data):
        return {"mediaType": f"{OCI}.{kind}", "digest": digest(data), "size": len(data)}

    manifest = text({
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": described("config.v1+json", image),
        "layers": [described("layer.v1.tar+gzip", packed)],
    })
    index = text({
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [{
            **described("manifest.v1+json", manifest),
            "platform": {"architecture": options.arch, "os": "linux"},
            "annotations": {"io.containerd.image.name": options.ref, "org.opencontainers.image.ref.name": options.ref.rsplit(":", 1)[1]},
        }],
    })

    def blob(data):
        return "blobs/sha256/" + digest(data)[len("sha256:"):]

    # The name that Docker gives the image, without the default registry.
    tag = options.ref.removeprefix("docker.io/").removeprefix("library/")
    docker = text([{"Config": blob(image), "RepoTags": [tag], "Layers": [blob(packed)]}])
    members = {blob(data): data for data in (image, packed, manifest)}
    members.update({"oci-layout": text({"imageLayoutVersion": "1.0.0"}), "index.json": index, "manifest.json": docker})
    return members, digest(manifest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--ref", required=True)
    parser.add_argument("--arch", required=True, choices=["amd64", "arm64"])
    parser.add_argument("--entrypoint")
    parser.add_argument("--command", action="append", default=[])
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--level", type=int, default=9)
    parser.add_argument("root")
    options = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    members, name = archive(options, epoch)
    half = options.out + ".new"
    with tarfile.open(half, "w", format=tarfile.GNU_FORMAT) as out:
        for member in sorted(members):
            entry = tarfile.TarInfo(member)
            entry.size, entry.mtime, entry.mode = len(members[member]), epoch, 0o644
            out.addfile(entry, io.BytesIO(members[member]))
    os.replace(half, options.out)
    print(name)


if __name__ == "__main__":
    main()
