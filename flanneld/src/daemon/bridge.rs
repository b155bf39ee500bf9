//! Changes the pods' bridge after this node gets a new subnet.

use ipnet::IpNet;
use netlink::{Client, KernelError};
use netstate::host::bridge::{StaleGateway, stale_gateways};
use netstate::host::read::read_interfaces;
use netstate::kernel::Kernel;
use netstate::netlink::NetlinkKernel;
use netstate::object::{Key, Op, Value};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use types::Subnets;

/// Time for which the gateways of a previous subnet have to stay away. The bridge plugin puts one back for a pod
/// whose start began before subnet.env changed; a runtime gives a pod a few minutes to start.
const AWAY: Duration = Duration::from_secs(300);

/// Removes the gateways of previous subnets again, until they have stayed away for [`AWAY`]. Calls `report` with the
/// names of the bridges after each removal.
pub(super) async fn keep_released(
    previous: Vec<IpNet>,
    present: Subnets,
    report: impl Fn(&[String]),
) {
    let mut gone = Instant::now();
    while gone.elapsed() < AWAY {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let released = release(&previous, &present, false).await;
        if !released.is_empty() {
            gone = Instant::now();
            report(&released);
        }
    }
}

/// Removes only the gateways of previous subnets, and their connected routes, from bridges. Returns the names of the
/// changed bridges. Logs what it cannot remove if this is the first time.
pub(super) async fn release(previous: &[IpNet], present: &Subnets, first: bool) -> Vec<String> {
    let mut released = Vec::new();
    let open = || {
        let interfaces = read_interfaces(&mut Client::open()?)?;
        Ok::<_, KernelError>((
            stale_gateways(&interfaces, previous, present),
            NetlinkKernel::open()?,
        ))
    };
    let (stale, mut kernel) = match open() {
        Ok(found) => found,
        Err(error) => {
            warn!(
                error = %error,
                "cannot look for bridges with an address of this node's previous subnet"
            );
            return released;
        }
    };
    for StaleGateway { bridge, address, other } in stale {
        let remedy = format!("remove the gateway (ip address del {address} dev {bridge})");
        if !first && other.is_some() {
            continue;
        }
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
        match kernel.apply(&[Op::Delete(Key::Address(bridge, address), Value::Address)]).await.pop()
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
            Some(error) if !first => debug!(device = %bridge, error = %error, "the gateway stays"),
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
