//! Addresses of links.

use crate::kernel::{ExistingState, FailureKind};
use crate::names::LinkName;
use crate::netlink::NetlinkKernel;
use crate::netlink::watched::Watched;
use crate::object::{Key, Op, Value};
use crate::scope::Scope;
use ipnet::IpNet;
use netlink::address::Address;
use netlink::header::address_header;
use netlink::uapi::*;
use netlink::{KernelError, Message, Received, family_number};
use types::Problem;

pub(super) fn read_addresses(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
    found: &mut ExistingState,
) -> Result<(), KernelError> {
    for (name, index, family) in kernel.links_by_family(scope) {
        for Address { net, .. } in kernel.addresses_of(index, family)? {
            if is_ours(&net, scope) {
                found.ours.set(Key::Address(name, net), Value::Address);
            }
        }
    }
    Ok(())
}

/// Of the addresses of flannel's links. In a former network, only an address in the form that
/// flanneld writes is ours. An operator's address with a subnet mask is not.
fn is_ours(net: &IpNet, scope: &Scope) -> bool {
    let former =
        net.prefix_len() == net.max_prefix_len() && scope.covered(&IpNet::from(net.addr()));
    scope.covers_ip(&net.addr()) || former
}

pub(super) fn concerns_addresses(message: &Received<'_>, watched: &Watched<'_>) -> bool {
    let Some(Address { index, net, .. }) = Address::decode(message) else {
        return false;
    };
    let Some(name) = watched.name_of(index) else {
        return watched.watches(index);
    };
    let added = message.kind == RTM_NEWADDR;
    // After a failure, any address may mean that the kernel accepts addresses again.
    watched.known.is_none()
        || is_ours(&net, watched.scope)
            && !watched.is_known(&Key::Address(name, net), Some(&Value::Address), added)
}

pub(super) fn encode_request(op: &Op, index: u32, net: &IpNet) -> Message {
    let (kind, flags) = op.kind_and_flags(RTM_NEWADDR);
    let family = family_number(net);
    // No other host can have this address, and a tentative address cannot be used.
    let nodad = if net.addr().is_ipv6() && !op.is_deletion() { IFA_F_NODAD } else { 0 };
    let header = address_header(family, net.prefix_len(), nodad, index);
    Message::new(kind, flags, &header).ip(IFA_LOCAL, net.addr()).ip(IFA_ADDRESS, net.addr())
}

pub(super) fn explain_refusal(
    name: LinkName,
    net: &IpNet,
    errno: i32,
) -> Option<(FailureKind, Problem)> {
    (errno == libc::EACCES && net.addr().is_ipv6()).then(|| {
        let text = format!(
            "; IPv6 is disabled on {name}; run sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, and the same command for default"
        );
        (FailureKind::Unsupported, Problem::new("ipv6-disabled", text))
    })
}
