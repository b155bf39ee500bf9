//! The devices of the packet engine, if it replaces the kernel's WireGuard.

use super::config::{Config, Mode};
use crate::backend::Setup;
use crate::userspace::UserspaceKernel;
use netstate::kernel::Kernel;
use netstate::underlay::Underlay;
use types::{Addresses, Family, Subnets};

/// There is a device for each family of the lease, or one for both.
pub(super) fn kernel<K: Kernel>(
    kernel: K,
    config: &Config,
    setup: &Setup,
    own: &Subnets,
    underlay: &Underlay,
) -> UserspaceKernel<K> {
    let mut kernel = UserspaceKernel::new(kernel, setup.files.clone());
    let mut done = Vec::new();
    for family in own.families() {
        let name = config.device(family);
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        // The addresses of the families that this device carries. It sends ICMP errors to pods from them.
        let sources =
            own.only(|family| config.device(family) == name).map(|own| own.network_addresses());
        kernel.wireguard(
            name,
            config.port(family),
            listen(config, family, underlay),
            setup.features,
            sources,
        );
    }
    kernel
}

/// Like a WireGuard interface of the kernel, the engine listens on all local addresses of the outer
/// families. Peers may send to any of them.
fn listen(config: &Config, family: Family, underlay: &Underlay) -> Addresses {
    let listens = |of: Family| match config.mode {
        Mode::Separate => of == family,
        Mode::Ipv4 => of.is_v4(),
        Mode::Ipv6 => of.is_v6(),
        // IPv6 may be disabled on a host.
        Mode::Auto => underlay.tunnel_source(of).is_some(),
    };
    Addresses::UNSPECIFIED.only(listens).unwrap_or(Addresses::UNSPECIFIED)
}
