//! Links. [`links`](crate::netlink::links) creates and changes them, by several requests each.

use crate::host::ethtool;
use crate::kernel::{ExistingState, FailureKind};
use crate::names::LinkName;
use crate::netlink::NetlinkKernel;
use crate::netlink::watched::Watched;
use crate::object::link::{LinkKind, LinkSpec, SeenLink};
use crate::object::{Key, Value};
use crate::scope::Scope;
use netlink::link::Link;
use netlink::{KernelError, Received};
use types::problem::PortPurpose;
use types::{Detail, Problem};

/// Also reads the peers of WireGuard interfaces, which the kernel lists with the interface.
pub(super) fn read_links(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
    found: &mut ExistingState,
) -> Result<(), KernelError> {
    let links = kernel.links_by_name(&scope.links)?;
    // A link of another kind under our name is not ours, nor are the objects on it.
    let ours = links.values().filter(|link| link.spec.kind.is_flannels());
    kernel.links = ours.map(|link| (link.name, link.index)).collect();
    kernel.last_index.extend(kernel.links.iter().copied());
    let wireguards = links.values().filter(|link| matches!(link.spec.kind, LinkKind::Wireguard(_)));
    kernel.wireguards = wireguards.map(|link| (link.name, link.index)).collect();
    for (name, SeenLink { index, mut spec, .. }) in links {
        if kernel.fixed_ra.contains(&name) {
            spec.accept_ra = None;
        }
        if scope.checksum_offload && !kernel.fixed_checksum.contains(&name) {
            spec.checksum_offload = ethtool::tx_checksum(name).ok();
        }
        if let LinkKind::Wireguard(wireguard) = &mut spec.kind {
            *wireguard = kernel.wireguard(scope, name, index, found)?;
        }
        found.ours.set(Key::Link(name), Value::Link(Box::new(spec)));
    }
    Ok(())
}

pub(super) fn concerns_links(message: &Received<'_>, watched: &Watched<'_>) -> bool {
    Link::decode(message).is_some_and(|link| {
        watched.watches(link.index)
            || watched.scope.links.iter().any(|name| name.as_str() == link.name)
    })
}

pub(super) fn explain_refusal(
    name: LinkName,
    spec: &LinkSpec,
    errno: i32,
) -> Option<(FailureKind, Problem)> {
    let exists = |text| (FailureKind::Conflict, Problem::new("tunnel-exists", text));
    Some(match (errno, &spec.kind) {
        (libc::EOPNOTSUPP, kind) => {
            let module = kind.name();
            let text = format!(
                "; {name} needs the kernel module {module}; run modprobe {module} (some distributions package the module separately, as linux-modules-extra-$(uname -r) or kernel-modules-extra)"
            );
            let detail = Detail::ModuleMissing { name: module.to_owned() };
            (FailureKind::Unsupported, Problem::new("module-missing", text).with(detail))
        }
        // The kernel identifies tunnels by their addresses (net/ipv4/ip_tunnel.c, `ip_tunnel_find`).
        (libc::EEXIST, LinkKind::Ipip(_)) => exists(format!(
            "; an interface {name}, or another IPIP interface with the same addresses, exists; find the interface with `ip -d link show type ipip`, and delete it"
        )),
        (libc::EADDRINUSE, LinkKind::Wireguard(spec)) => {
            let port = spec.port;
            let text = format!(
                "; another WireGuard interface or program uses UDP port {port}, which {name} needs. Find the user of the port with `wg show all listen-port` and `ss -ulpn`, or set another ListenPort in the Backend, on all nodes"
            );
            taken_tunnel_port(port, text)
        }
        (libc::EADDRINUSE, LinkKind::Vxlan(spec)) => {
            let port = spec.port;
            let text = format!(
                "; another program uses UDP port {port}, which {name} needs. Find the program with `ss -ulpn sport = :{port}`, or set another Port in the Backend, on all nodes"
            );
            taken_tunnel_port(port, text)
        }
        // Another vxlan interface with the same VNI and UDP port, or another program that uses the port.
        (libc::EEXIST | libc::EADDRINUSE, _) => exists(format!(
            "; another vxlan interface or program uses the VNI and UDP port of {name}. Find the interface or program with `ip -d link show type vxlan` and `ss -ulpn`, or set another Port or VNI in the Backend"
        )),
        _ => return None,
    })
}

fn taken_tunnel_port(number: u16, text: String) -> (FailureKind, Problem) {
    let detail = Detail::PortTaken { number, udp: true, purpose: PortPurpose::Tunnel };
    (FailureKind::Conflict, Problem::new("tunnel-port-taken", text).with(detail))
}
