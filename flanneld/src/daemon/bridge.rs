//! Changes the pods' bridge after this node gets a new subnet.

use ipnet::IpNet;
use netstate::bridge::{StaleGateway, stale_gateways};
use netstate::kernel::Kernel;
use netstate::netlink::NetlinkKernel;
use netstate::object::{Key, Op, Value};
use tracing::{info, warn};
use types::Subnets;

/// Removes only the gateways of previous subnets, and the gateways' connected routes, from bridges. Returns the names
/// of the changed bridges.
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
                error = %error,
                "cannot look for bridges with an address of this node's previous subnet"
            );
            return released;
        }
    };
    for StaleGateway {
        bridge,
        address,
        other,
    } in stale
    {
        let remedy = format!("remove the gateway (ip address del {address} dev {bridge})");
        if let Some(other) = other {
            warn!(
                device = %bridge,
                address = %address,
                other = %other,
                remedy,
                "the bridge keeps the gateway of this node's previous subnet, because it also has an address that is not flannel's"
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
                    device = %bridge,
                    address = %address,
                    subnet = %present,
                    "removed the gateway of this node's previous subnet from the bridge"
                );
                released.push(bridge.to_string());
            }
            Some(error) => warn!(
                device = %bridge,
                address = %address,
                error = %error,
                remedy,
                "cannot remove the gateway of this node's previous subnet from the bridge"
            ),
        }
    }
    released
}
