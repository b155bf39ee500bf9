//! Properties of a backend that the daemon reads once, before the backend joins the network.

use backends::{Backend, Overlay};
use std::collections::BTreeMap;
use types::{Encapsulation, Profile};

/// What the daemon still needs after the backend has joined the network.
pub(super) struct Tunnel {
    pub profile: &'static Profile,
    pub encapsulation: Encapsulation,
    /// The encapsulation that traffic rules must protect from forged packets, if any.
    pub guarded: Encapsulation,
    pub devices: Vec<String>,
    /// Of the tunnels on this host.
    pub ports: Vec<u16>,
    /// By device, for backends whose devices have one port each.
    pub listens: BTreeMap<String, u16>,
    pub overlay: Option<Overlay>,
}

impl Tunnel {
    pub(super) fn of(backend: &dyn Backend) -> Self {
        let takes = backend.takes(false);
        Self {
            profile: backend.profile(),
            encapsulation: backend.encapsulation(),
            guarded: backend.guarded(),
            listens: takes.devices.iter().cloned().zip(takes.ports.iter().copied()).collect(),
            devices: takes.devices,
            ports: takes.ports,
            overlay: backend.overlay(),
        }
    }
}
