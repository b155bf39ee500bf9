#!/usr/bin/env python3
"""Writes an OCI image archive of some files, the same bytes each time, without an engine.

Usage: image.py ARCHIVE NAME:TAG ENTRYPOINT FILE=PATH...   (ENTRYPOINT is JSON, PATH is in the image; a FILE of the form ->TARGET is a link)
"""
import gzip, hashlib, io, json, platform, sys, tarfile

archive, name, entrypoint, *files = sys.argv[1:]
MEDIA = "application/vnd.oci.image."
architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
blobs = {}


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def blob(kind, content):
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": MEDIA + kind, "digest": digest, "size": len(content)}


def entry(tar, path, content=None, link=None, mode=0o644):
    info = tarfile.TarInfo(path)
    info.mode = mode
    if content is not None:
        info.size = len(content)
    elif link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    else:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(info, io.BytesIO(content) if content is not None else None)


layer, folders = io.BytesIO(), set()
with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
    for source, path in (file.rsplit("=", 1) for file in files):
        path = path.lstrip("/")
        parents = path.split("/")[:-1]
        for folder in ("/".join(parents[: depth + 1]) for depth in range(len(parents))):
            if folder not in folders:
                folders.add(folder)
                entry(tar, folder)
        if source.startswith("->"):
            entry(tar, path, link=source[2:], mode=0o777)
        else:
            entry(tar, path, content=open(source, "rb").read(), mode=0o755)

layer = layer.getvalue()
environment = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
config = blob("config.v1+json", compact({
    "architecture": architecture, "os": "linux", "config": {"Entrypoint": json.loads(entrypoint), "Env": environment},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
}))
layers = [blob("layer.v1.tar+gzip", gzip.compress(layer, 6, mtime=0))]
manifest = blob("manifest.v1+json", compact({
    "schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "config": config, "layers": layers,
}))
manifest["platform"] = {"architecture": architecture, "os": "linux"}
manifest["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
    entry(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    entry(tar, "index.json", compact({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [manifest]}))
    for digest in sorted(blobs):
        entry(tar, "blobs/sha256/" + digest.removeprefix("sha256:"), blobs[digest])
