//! Errors when a process claims a network or a host resource.

use super::sockets::Holder;
use ipnet::IpNet;
use std::io;
use std::path::PathBuf;
use thiserror::Error;
use types::problem::PortPurpose;
use types::{Coded, Detail};

/// Why this process cannot claim a network or a resource.
#[derive(Debug, Error, Coded)]
pub enum InstanceError {
    /// Another process serves the same network in this network namespace. `backend` is empty without a backend.
    #[error(
        "another flanneld already serves {network} ({}) on this host ({holder}): two daemons would undo each other's work; stop the other daemon first (systemctl status flanneld, ps -p PID; on Kubernetes, kubectl get daemonsets --all-namespaces -l app=flannel)",
        named(.backend)
    )]
    #[code("network-served")]
    Network { network: String, backend: String, holder: Holder },
    /// Another process writes the same subnet.env.
    #[error(
        "another flanneld already writes {} ({holder}); stop the other daemon, or give this daemon its own --subnet-file",
        .file.display()
    )]
    #[code("subnet-file-held")]
    SubnetFile { file: PathBuf, holder: Holder },
    #[error(
        "another flanneld on this host already uses {resource} ({holder}); {}, or stop the other daemon",
        .resource.remedy()
    )]
    #[code(of = resource)]
    Taken { resource: Resource, holder: Holder },
    /// This process cannot create a lock or a socket. `claim` is what it did, as a phrase.
    #[error(
        "cannot ensure that only one flanneld runs: {claim}: {why}; check the permissions of the folder, or choose another --subnet-file"
    )]
    #[code("instance-claim")]
    Host {
        claim: String,
        #[source]
        why: io::Error,
    },
}

/// A host resource that only one daemon can hold, with the code of [`InstanceError::Taken`].
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum Resource {
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

/// For messages.
pub(super) fn named(backend: &str) -> &str {
    if backend.is_empty() { "no backend" } else { backend }
}
