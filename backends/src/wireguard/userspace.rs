//! The devices of the packet engine, if it replaces the kernel's WireGuard.

use super::config::{Config, Mode};
use crate::backend::Setup;
use crate::userspace::UserspaceKernel;
use netstate::{KernelError, Underlay};
use packet_engine::EngineConfig;
use types::{Addresses, Family, Subnets};
use wireguard_userspace::FRAMING;

pub(super) fn open_kernel(
    config: &Config,
    setup: &Setup,
    own: &Subnets,
    underlay: &Underlay,
) -> Result<UserspaceKernel, KernelError> {
    let mut kernel = UserspaceKernel::open(&setup.files)?;
    for family in config.device_families(own) {
        let name = config.device(family);
        let engine = EngineConfig {
            device: name.to_string(),
            framing: FRAMING,
            port: config.port(family),
            spread: false,
            features: setup.features,
            // The addresses of the families that this device carries.
            sources: own.only(|of| config.device(of) == name).map(|own| own.network_addresses()),
        };
        kernel.wireguard(name, engine, listen_addresses(config, family, underlay));
    }
    Ok(kernel)
}

/// Like a WireGuard interface of the kernel, the engine listens on all local addresses of the outer
/// families. Peers may send to any of them.
fn listen_addresses(config: &Config, family: Family, underlay: &Underlay) -> Addresses {
    let listens = |of: Family| match config.mode {
        Mode::Separate => of == family,
        Mode::Ipv4 => of.is_v4(),
        Mode::Ipv6 => of.is_v6(),
        // IPv6 may be disabled on a host.
        Mode::Auto => underlay.tunnel_source(of).is_some(),
    };
    Addresses::UNSPECIFIED.only(listens).unwrap_or(Addresses::UNSPECIFIED)
}
