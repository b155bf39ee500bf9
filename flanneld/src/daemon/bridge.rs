//! The bridge of pods after this node got another subnet.

use ipnet::IpNet;
use netstate::bridge::{StaleGateway, stale_gateways};
use netstate::kernel::Kernel;
use netstate::netlink::NetlinkKernel;
use netstate::object::{Key, Op, Value};
use tracing::{info, warn};
use types::Subnets;

/// Removes the gateways of previous subnets from bridges; their connected routes go with them. Nothing else of a bridge is changed. Returns the
/// names of the bridges.
pub(super) async fn release(previous: &[IpNet], present: &Subnets) -> Vec<String> {
    let mut released = Vec::new();
    let found = match NetlinkKernel::open() {
        Ok(mut kernel) => kernel
            .bridges()
            .await
            .map(|bridges| (stale_gateways(&bridges, previous, present), kernel)),
        Err(error) => Err(error),
    };
    let (stale, mut kernel) = match found {
        Ok(found) => found,
        Err(error) => {
            warn!(
                "cannot look for bridges with an address of this node's previous subnet: {error}"
            );
            return released;
        }
    };
    for StaleGateway {
        bridge,
        address,
        beside,
    } in stale
    {
        let remedy = format!("remove it (ip address del {address} dev {bridge})");
        if let Some(beside) = beside {
            warn!(
                "the bridge {bridge} keeps {address}, the gateway of this node's previous subnet, since it has {beside} too, which flanneld did not \
                 make: {remedy}"
            );
            continue;
        }
        match kernel
            .apply(&[Op::Delete(Key::Address(bridge, address), Value::Address)])
            .await
            .pop()
        {
            None => {
                info!(
                    "removed {address} from the bridge {bridge}: it was the gateway of this node's previous subnet, and its subnet is {present} now"
                );
                released.push(bridge.to_string());
            }
            Some(error) => warn!("{error}; {remedy}"),
        }
    }
    released
}
