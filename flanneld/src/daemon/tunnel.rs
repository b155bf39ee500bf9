//! What the daemon asks a backend before it joins, once.

use backends::{Backend, Overlay, Renewal};
use std::collections::BTreeMap;
use types::{Encapsulation, Profile};

/// A backend's properties that outlive the join.
pub(super) struct Tunnel {
    pub profile: &'static Profile,
    pub encapsulation: Encapsulation,
    /// The encapsulation, if packets in it could be forged.
    pub guarded: Encapsulation,
    pub devices: Vec<String>,
    /// The UDP ports on this host.
    pub ports: Vec<u16>,
    /// The ports of its devices, if each has one.
    pub listens: BTreeMap<String, u16>,
    pub overlay: Option<Overlay>,
    pub renewal: Option<Renewal>,
}

impl Tunnel {
    pub(super) fn of(backend: &dyn Backend) -> Self {
        let takes = backend.takes(false);
        Self {
            profile: backend.profile(),
            encapsulation: backend.encapsulation(),
            guarded: backend.guarded(),
            listens: takes
                .devices
                .iter()
                .cloned()
                .zip(takes.ports.iter().copied())
                .collect(),
            devices: takes.devices,
            ports: takes.ports,
            overlay: backend.overlay(),
            renewal: backend.renewal(),
        }
    }
}
