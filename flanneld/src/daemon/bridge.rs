//! Changes the pods' bridge after this node gets a new subnet.

use crate::health::Health;
use ipnet::IpNet;
use netstate::bridge::{StaleGateway, stale_gateways};
use netstate::kernel::Kernel;
use netstate::netlink::NetlinkKernel;
use netstate::object::{Key, Op, Value};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};
use types::Subnets;

/// Time during which a runtime may finish an ADD that read the former subnet.env: kubelet's limit of a call.
const IN_FLIGHT: Duration = Duration::from_secs(120);
/// Time between two looks at the bridges.
const LOOK: Duration = Duration::from_secs(1);

/// Removes the gateways of previous subnets whenever an ADD in flight puts them back, until none can be in flight. The bridge
/// plugin refuses every new pod while such a gateway exists.
pub(super) async fn keep_released(previous: Vec<IpNet>, present: Subnets, health: Health) {
    let mut last = Instant::now();
    while last.elapsed() < IN_FLIGHT {
        tokio::time::sleep(LOOK).await;
        let (released, all) = release(&previous, &present, &health).await;
        if !all {
            // The operator has been told.
            return;
        }
        if !released.is_empty() {
            last = Instant::now();
        }
    }
}

/// Removes only the gateways of previous subnets, and the gateways' connected routes, from bridges. Returns the names
/// of the changed bridges, and whether no gateway is left.
pub(super) async fn release(
    previous: &[IpNet],
    present: &Subnets,
    health: &Health,
) -> (Vec<String>, bool) {
    let mut released = Vec::new();
    let mut all = true;
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
            return (released, false);
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
            all = false;
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
                health.figures(|figures| figures.bridge_addresses_removed += 1);
                released.push(bridge.to_string());
            }
            Some(error) => {
                warn!(
                    device = %bridge,
                    address = %address,
                    error = %error,
                    remedy,
                    "cannot remove the gateway of this node's previous subnet from the bridge"
                );
                all = false;
            }
        }
    }
    (released, all)
}
