//! Errors when a process claims a network or a host resource.

use super::sockets::Holder;
use ipnet::IpNet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use types::problem::PortPurpose;
use types::{Coded, Detail};

/// Error when this process cannot claim a network or a resource.
#[derive(Debug)]
pub enum InstanceError {
    /// Another process that serves the same network in this network namespace.
    Network {
        /// The network.
        network: String,
        /// The type of the backend; empty without a backend.
        backend: String,
        /// Process that serves the network.
        holder: Holder,
    },
    /// Another process that writes the same subnet.env.
    SubnetFile {
        /// The path of subnet.env.
        file: PathBuf,
        /// Process that holds the lock.
        holder: Holder,
    },
    /// Another process that holds a resource that only one daemon can hold.
    Taken {
        /// The contended resource.
        resource: Resource,
        /// Process that holds the resource, and its network.
        holder: Holder,
    },
    /// A lock or socket that this process cannot create.
    Host {
        /// Claim that failed.
        claim: Claim,
        /// The error of the system call.
        why: io::Error,
    },
}

/// A host resource that only one daemon can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The traffic rules for a network.
    Rules(IpNet),
    /// A tunnel endpoint that the kernel allows only once, by its description.
    Tunnel(String),
    /// A device, by its name.
    Device(String),
    /// A UDP port, by its number.
    Port(u16),
}

/// A socket or lock by which a process claims a network, a resource or a subnet.env.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The abstract socket of a network.
    Network {
        /// The network.
        network: String,
        /// The type of the backend; empty without a backend.
        backend: String,
    },
    /// The abstract socket of a resource.
    Resource(Resource),
    /// The abstract socket that reserves the number of a daemon's encapsulation port rules.
    Guard,
    /// The lock next to a subnet.env, by its path.
    Lock(PathBuf),
}

impl Resource {
    /// Returns the remedy: the configuration change after which both daemons can run.
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

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(network) => write!(f, "the rules for {network}"),
            Self::Tunnel(tunnel) => f.write_str(tunnel),
            Self::Device(device) => write!(f, "the device {device}"),
            Self::Port(port) => write!(f, "UDP port {port}"),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network { network, backend } => write!(
                f,
                "binding the abstract socket of {network} ({})",
                named(backend)
            ),
            Self::Resource(resource) => write!(f, "binding the abstract socket of {resource}"),
            Self::Guard => f.write_str("binding the abstract socket that reserves a number for the rules of the encapsulation port"),
            Self::Lock(file) => write!(f, "locking {}", file.display()),
        }
    }
}

/// Formats a backend type for messages.
fn named(backend: &str) -> &str {
    if backend.is_empty() { "no backend" } else { backend }
}

impl Coded for InstanceError {
    fn code(&self) -> &'static str {
        match self {
            Self::Network { .. } => "network-served",
            Self::SubnetFile { .. } => "subnet-file-held",
            Self::Taken { resource, .. } => match resource {
                Resource::Rules(_) => "rules-taken",
                Resource::Tunnel(_) => "tunnel-taken",
                Resource::Device(_) => "device-taken",
                Resource::Port(_) => "port-taken",
            },
            Self::Host { .. } => "instance-claim",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Self::Taken { resource: Resource::Port(number), .. } => {
                Detail::PortTaken { number: *number, udp: true, purpose: PortPurpose::Tunnel }
            }
            _ => Detail::None,
        }
    }
}

impl fmt::Display for InstanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network { network, backend, holder } => write!(
                f,
                "another flanneld already serves {network} ({}) on this host ({holder}): two daemons would undo each other's work; stop the other daemon first (systemctl status flanneld, ps -p PID; on Kubernetes, kubectl get daemonsets --all-namespaces -l app=flannel)",
                named(backend)
            ),
            Self::SubnetFile { file, holder } => {
                write!(
                    f,
                    "another flanneld already writes {} ({holder}); stop the other daemon, or give this daemon its own --subnet-file",
                    file.display()
                )
            }
            Self::Taken { resource, holder } => {
                write!(
                    f,
                    "another flanneld on this host already uses {resource} ({holder}); {}, or stop the other daemon",
                    resource.remedy()
                )
            }
            Self::Host { claim, why } => {
                write!(
                    f,
                    "cannot ensure that only one flanneld runs: {claim}: {why}; check the permissions of the folder, or choose another --subnet-file"
                )
            }
        }
    }
}

impl std::error::Error for InstanceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Host { why, .. } => Some(why),
            _ => None,
        }
    }
}
