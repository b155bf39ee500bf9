//! The devices of backends that this node used before. A route through such a device may be more specific than the
//! new backend's routes. It then loses packets or carries them unencrypted.

use backends::profiles;
use ipnet::IpNet;
use netlink::Client;
use netstate::cleanup::is_flannels;
use netstate::host::is_single;
use netstate::host::read::read_interfaces;
use netstate::names::LinkName;
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
    let found = Client::open().and_then(|mut client| read_interfaces(&mut client));
    let mut interfaces = found.unwrap_or_else(|error| {
        warn!(error = %error, "cannot look for devices of earlier backends; leaving them in place");
        Vec::new()
    });
    let others = running::others(&networks.nets().collect()).devices;
    // An address with a shorter prefix length is an operator's.
    let is_ours =
        |net: IpNet| is_single(&net) && ours.iter().any(|network| network.contains(&net.addr()));
    interfaces.retain(|interface| {
        is_flannels(&profiles(), &interface.name, &interface.kind)
            && interface.nets().any(is_ours)
            && !others.contains(&interface.name)
    });
    interfaces.iter().filter_map(|interface| LinkName::parse(&interface.name)).collect()
}
