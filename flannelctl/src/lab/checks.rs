//! What the demonstration needs of this machine, and what to do when it is missing.

use anyhow::{Context, Result, bail};
use lab::{EtcdVersion, Lab, binaries};

use crate::lab::plan::{Backend, Plan, StoreKind};

/// Fails with the remedy when something is missing.
pub fn require(plan: &Plan) -> Result<()> {
    let lab = Lab::new("checks")?;
    let mut tools = vec![("ip", "iproute2"), ("bridge", "iproute2"), ("ping", "iputils-ping")];
    if plan.vagrant {
        tools.push(("nft", "nftables"));
    }
    for (tool, package) in tools {
        if !is_on_path(tool) {
            bail!("there is no `{tool}` here: `make setup` installs it, or `apt-get install {package}`");
        }
    }
    binaries::own("flanneld")?;
    if plan.store == StoreKind::Etcd {
        binaries::etcd(EtcdVersion::V36, "etcd")?;
    }
    let host = lab
        .host("probe", &[])
        .context("making a network namespace: does this machine (or container) allow it? It takes CAP_SYS_ADMIN and CAP_NET_ADMIN")?;
    let ip = |commands: &str| host.netns().ip(commands);
    ip("link add veth0 type veth peer name veth1").context("this kernel makes no veth pairs: `modprobe veth`, or a kernel with CONFIG_VETH")?;
    ip("link add bridge0 type bridge").context("this kernel makes no bridges: `modprobe bridge`, or a kernel with CONFIG_BRIDGE")?;
    if plan.backend == Backend::Vxlan {
        ip("link add vxlan0 type vxlan id 1 dstport 8472")
            .context("this kernel has no vxlan: `modprobe vxlan`, or a kernel with CONFIG_VXLAN; `--backend vxlan-userspace` does without")?;
    }
    if matches!(plan.backend, Backend::Udp | Backend::VxlanUserspace) {
        ip("tuntap add tun0 mode tun")
            .context("this kernel makes no TUN devices: `modprobe tun`, give the container /dev/net/tun, or take `--backend host-gw`")?;
    }
    Ok(())
}

fn is_on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}
