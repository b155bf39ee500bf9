//! The devices of backends that this node used before. A route through such a device may be more specific than the
//! new backend's routes. It then loses packets or carries them unencrypted.

use backends::profiles;
use ipnet::IpNet;
use netstate::names::LinkName;
use netstate::netlink::NetlinkKernel;
use run_dir::instance::running;
use tracing::{info, warn};
use types::Subnets;

/// flannel's devices with an address inside the current or former networks, except those that another running daemon
/// uses.
pub(super) async fn devices(networks: Subnets, former: Option<Subnets>) -> Vec<LinkName> {
    let ours: Vec<IpNet> = networks.nets().chain(former.iter().flat_map(Subnets::nets)).collect();
    if running::foreign_flanneld() {
        info!(
            "another implementation of flanneld runs on this host: leaving devices of earlier backends in place"
        );
        return Vec::new();
    }
    let found = match NetlinkKernel::open() {
        Ok(mut kernel) => kernel.devices_in(&ours, &profiles()),
        Err(error) => Err(error),
    };
    let mut devices = found.unwrap_or_else(|error| {
        warn!(error = %error, "cannot look for devices of earlier backends; leaving them in place");
        Vec::new()
    });
    let others = running::others(&networks.nets().collect()).devices;
    devices.retain(|name| !others.contains(name.as_str()));
    devices
}
