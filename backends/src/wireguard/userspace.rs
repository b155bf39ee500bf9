//! The devices of the packet engine, where it takes the kernel's place.

use super::config::{Config, Mode};
use crate::backend::{Error, Setup};
use crate::userspace::wireguard::WireguardUserspace;
use netstate::kernel::Kernel;
use netstate::underlay::Underlay;
use packet_engine::engine::listen::Listen;
use subnet_lease::Subnets;
use types::Family;

/// A kernel with a device for each family of the lease, or one for both.
///
/// # Errors
/// This build has no WireGuard in user space.
pub(super) fn kernel<K: Kernel>(
    kernel: K,
    config: &Config,
    setup: &Setup,
    own: &Subnets,
    underlay: &Underlay,
) -> Result<WireguardUserspace<K>, Error> {
    let mut kernel = WireguardUserspace::new(kernel, setup.files.clone());
    let mut done = Vec::new();
    for family in own.families() {
        let name = config.device(family);
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        // The addresses of the families that this device has, from which it tells pods of errors.
        let has = |family| config.device(family) == name;
        let sources = (own.v4().filter(|_| has(Family::V4)).map(|net| net.network()), own.v6().filter(|_| has(Family::V6)).map(|net| net.network()));
        kernel.device(name, config.port(family), listen(config, family, underlay), setup.features, sources)?;
    }
    Ok(kernel)
}

/// A device listens on all addresses of the families that carry its datagrams, as the kernel's does: a peer may use any of them.
fn listen(config: &Config, family: Family, underlay: &Underlay) -> Listen {
    let (v4, v6) = match config.mode {
        Mode::Separate => (family.is_v4(), family.is_v6()),
        Mode::Ipv4 => (true, false),
        Mode::Ipv6 => (false, true),
        // A host may have IPv6 disabled altogether.
        Mode::Auto => (underlay.tunnel_source(Family::V4).is_some(), underlay.tunnel_source(Family::V6).is_some()),
    };
    Listen { v4: Listen::ANY.v4.filter(|_| v4), v6: Listen::ANY.v6.filter(|_| v6) }
}
