//! What to build, as pure data.

use backends::{alloc, host_gw, ipip, udp, vxlan, wireguard};
use clap::ValueEnum;
use types::Family;

/// How packets travel between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In VXLAN, by the kernel.
    Vxlan,
    /// In VXLAN, by flanneld itself behind a TUN device.
    VxlanUserspace,
    /// In plain UDP datagrams, by flanneld itself behind a TUN device.
    Udp,
    /// Encrypted by WireGuard: by the kernel's, or else by flanneld itself.
    Wireguard,
    /// In IPv4, by the kernel (IPIP).
    Ipip,
    /// By routes between hosts on one switch.
    HostGw,
    /// Leases only: packets do not travel.
    Alloc,
}

/// Where leases are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Files in a directory.
    Dir,
    /// etcd, on a host of its own.
    Etcd,
}

/// The whole network.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How packets travel between hosts.
    pub backend: Backend,
    /// How many hosts.
    pub hosts: u8,
    /// Where leases are kept.
    pub store: StoreKind,
    /// The families in which pods have addresses.
    pub families: &'static [Family],
    /// Whether the hosts are set up as Vagrant does.
    pub vagrant: bool,
}

impl Plan {
    /// The backend's name in the network's configuration.
    pub fn backend_type(&self) -> &'static str {
        match self.backend {
            Backend::Vxlan | Backend::VxlanUserspace => vxlan::KIND,
            Backend::Udp => udp::KIND,
            Backend::Wireguard => wireguard::KIND,
            Backend::Ipip => ipip::KIND,
            Backend::HostGw => host_gw::KIND,
            Backend::Alloc => alloc::KIND,
        }
    }

    /// The text of net-conf.json.
    pub fn net_conf(&self) -> String {
        let v6 = if self.families.contains(&Family::V6) {
            r#""EnableIPv6":true,"IPv6Network":"fd00:5::/56","#
        } else {
            ""
        };
        let mode = if self.backend == Backend::VxlanUserspace {
            r#","Mode":"userspace""#
        } else {
            ""
        };
        format!(
            r#"{{"Network":"10.5.0.0/16",{v6}"Backend":{{"Type":"{}"{mode}}}}}"#,
            self.backend_type()
        )
    }

    /// A summary on one line.
    pub fn title(&self) -> String {
        let store = match self.store {
            StoreKind::Dir => "leases in a directory",
            StoreKind::Etcd => "leases in etcd",
        };
        let families = self
            .families
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" and ");
        let hosts = if self.vagrant {
            "Vagrant hosts"
        } else {
            "hosts"
        };
        let mode = if self.backend == Backend::VxlanUserspace {
            " in userspace"
        } else {
            ""
        };
        format!(
            "{} {hosts}, {}{mode}, {store}, {families}",
            self.hosts,
            self.backend_type()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_is_a_configuration_that_the_daemon_accepts() {
        for backend in Backend::value_variants().iter().copied() {
            for families in [&[Family::V4][..], &Family::ALL] {
                let plan = Plan {
                    backend,
                    hosts: 3,
                    store: StoreKind::Dir,
                    families,
                    vagrant: false,
                };
                subnet_lease::NetworkConfig::parse(&plan.net_conf()).unwrap();
            }
        }
    }
}
