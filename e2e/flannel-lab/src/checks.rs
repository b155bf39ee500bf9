//! Whether this machine meets the lab's requirements, and the remedy if not.

use anyhow::{Context, Result, bail};
use lab::{EtcdVersion, Lab, binaries};

use crate::plan::Plan;
use terminal::lab::{Backend, StoreKind};

/// The error contains the remedy.
pub(crate) fn check_lab_requirements(plan: &Plan) -> Result<()> {
    let lab = Lab::create("checks")?;
    let mut tools = vec![("ip", "iproute2"), ("bridge", "iproute2"), ("ping", "iputils-ping")];
    if plan.vagrant {
        tools.push(("nft", "nftables"));
    }
    for (tool, package) in tools {
        if !is_on_path(tool) {
            bail!("`{tool}` is not installed: run `make setup` or `apt-get install {package}`");
        }
    }
    binaries::flannel_binary("flanneld")?;
    if plan.store == StoreKind::Etcd {
        binaries::etcd_program("etcd", EtcdVersion::Distributed)?;
    }
    let host =
        lab.create_host("probe", &[]).context("cannot create a network namespace: run as root, or give the container CAP_SYS_ADMIN and CAP_NET_ADMIN")?;
    let ip = |commands: &str| host.netns().run_ip_batch(commands);
    ip("link add veth0 type veth peer name veth1").context(
        "cannot create veth pairs: run `modprobe veth`, or use a kernel with CONFIG_VETH",
    )?;
    ip("link add bridge0 type bridge").context(
        "cannot create bridges: run `modprobe bridge`, or use a kernel with CONFIG_BRIDGE",
    )?;
    if plan.backend == Backend::Vxlan {
        ip("link add vxlan0 type vxlan id 1 dstport 8472")
            .context("cannot create vxlan devices: run `modprobe vxlan`, use a kernel with CONFIG_VXLAN, or use `--backend vxlan-userspace`")?;
    }
    if plan.backend == Backend::Ipip {
        ip("link add ipip0 type ipip local 192.0.2.1")
            .context("cannot create IPIP devices: run `modprobe ipip`, use a kernel with CONFIG_NET_IPIP, or use `--backend vxlan`")?;
    }
    // Without WireGuard in the kernel, flanneld encrypts in userspace, behind a TUN device.
    let userspace =
        plan.backend == Backend::Wireguard && ip("link add wireguard0 type wireguard").is_err();
    if userspace || matches!(plan.backend, Backend::Udp | Backend::VxlanUserspace) {
        ip("tuntap add tun0 mode tun")
            .context("cannot create TUN devices: run `modprobe tun`, give the container /dev/net/tun, or use `--backend host-gw`")?;
    }
    Ok(())
}

fn is_on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}
