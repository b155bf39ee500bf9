//! Resources that only one daemon on a host can hold: its network, subnet.env, devices, ports and the slot of its traffic rules.

use backends::{Backend, Takes};
use netstate::netlink::NetlinkKernel;
use run_dir::instance::taken::{self, RuleSlot, Taken, Wants};
use run_dir::instance::{self, Instance};
use std::path::Path;
use subnet_lease::NetworkConfig;
use types::Problem;

#[derive(Default)]
pub(super) struct Rights {
    _instance: Option<Instance>,
    _taken: Option<Taken>,
    pub slot: Option<RuleSlot>,
    pub devices: Vec<String>,
}

/// All of the resources, or none. The error names the other process if it holds one of them.
pub(super) async fn claim(
    config: &NetworkConfig,
    wants: &Wants,
    subnet_file: &Path,
) -> Result<Rights, Problem> {
    let instance = instance::claim(&config.networks.to_string(), &config.backend, subnet_file)?;
    let taken = taken::take(&config.networks, wants)?;
    let slot = taken::take_slot(subnet_file)?;
    Ok(Rights {
        _instance: Some(instance),
        _taken: Some(taken),
        slot: Some(slot),
        devices: wants.devices.clone(),
    })
}

/// The resources that the network needs exclusively.
pub(super) async fn wants(backend: &dyn Backend) -> Wants {
    let Takes { devices, tunnels, ports, shares_ports } = match NetlinkKernel::open() {
        // The kernel is queried only if the resources depend on its support for vxlan.
        Ok(mut kernel) if backend.takes(true) != backend.takes(false) => {
            backend.takes(kernel.supports_vxlan().unwrap_or(true))
        }
        _ => backend.takes(true),
    };
    Wants { devices, tunnels, ports, shares_ports }
}
