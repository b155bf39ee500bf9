//! Errors when a process claims a network or a host resource.

use super::names::Name;
use super::sockets::owner;
use ipnet::IpNet;
use std::fmt;
use std::io;
use thiserror::Error;
use types::problem::PortPurpose;
use types::{Coded, Detail, Problem};

/// A host resource that only one daemon can hold, with the code of [`report_taken`].
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub(super) enum Resource {
    #[error("the rules for {0}")]
    #[code("rules-taken")]
    Rules(IpNet),
    /// A tunnel endpoint that the kernel allows only once, by its description.
    #[error("{0}")]
    #[code("tunnel-taken")]
    Tunnel(String),
    #[error("the device {0}")]
    #[code("device-taken")]
    Device(String),
    #[error("UDP port {0}")]
    #[code("port-taken")]
    #[detail(Detail::PortTaken { number: *_0, udp: true, purpose: PortPurpose::Tunnel })]
    Port(u16),
}

impl Resource {
    /// The configuration change after which both daemons can run.
    fn remedy(&self) -> &'static str {
        const VNI: &str = "set another VNI in the Backend of one network configuration";
        match self {
            Self::Rules(_) => "give one of the daemons another Network",
            Self::Tunnel(_) => VNI,
            // Names of numbered devices end with the VNI: `flannel.1`.
            Self::Device(name) if name.contains('.') => VNI,
            Self::Device(_) => "choose another Backend for one of the daemons",
            Self::Port(_) => {
                "set another Port (ListenPort with wireguard) in the Backend of one network configuration"
            }
        }
    }
}

pub(super) fn report_taken(resource: &Resource, holder: &Name) -> Problem {
    let text = format!(
        "another flanneld on this host already uses {resource} ({}); {}, or stop the other daemon",
        owner(holder),
        resource.remedy()
    );
    Problem { text, ..Problem::of(resource) }
}

/// This process cannot create a lock or a socket. `claim` is what it did, as a phrase.
pub(super) fn report_host(claim: impl fmt::Display, why: &io::Error) -> Problem {
    let text = format!(
        "cannot ensure that only one flanneld runs: {claim}: {why}; check the permissions of the folder, or choose another --subnet-file"
    );
    Problem::new("instance-claim", text)
}
