//! The network to build, as pure data.

use terminal::lab::{Backend, StoreKind};
use types::Family;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub backend: Backend,
    pub hosts: u8,
    pub store: StoreKind,
    pub families: &'static [Family],
    /// The hosts have the interfaces of Vagrant hosts.
    pub vagrant: bool,
}

impl Plan {
    /// Its name in the network configuration.
    pub(crate) fn backend_type(&self) -> &'static str {
        match self.backend {
            Backend::Vxlan | Backend::VxlanUserspace => "vxlan",
            Backend::Udp => "udp",
            Backend::Wireguard => "wireguard",
            Backend::Ipip => "ipip",
            Backend::HostGw => "host-gw",
            Backend::Alloc => "alloc",
        }
    }

    /// The text of net-conf.json.
    pub(crate) fn net_conf(&self) -> String {
        let v6 = if self.families.contains(&Family::V6) {
            r#""EnableIPv6":true,"IPv6Network":"fd00:5::/56","#
        } else {
            ""
        };
        let mode =
            if self.backend == Backend::VxlanUserspace { r#","Mode":"userspace""# } else { "" };
        format!(
            r#"{{"Network":"10.5.0.0/16",{v6}"Backend":{{"Type":"{}"{mode}}}}}"#,
            self.backend_type()
        )
    }

    /// A summary in one line.
    pub(crate) fn title(&self) -> String {
        let store = match self.store {
            StoreKind::Dir => "leases in a directory",
            StoreKind::Etcd => "leases in etcd",
        };
        let families =
            self.families.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let hosts = if self.vagrant { "Vagrant hosts" } else { "hosts" };
        let mode = if self.backend == Backend::VxlanUserspace { " in userspace" } else { "" };
        format!("{} {hosts}, {}{mode}, {store}, {families}", self.hosts, self.backend_type())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn plan_is_a_valid_network_configuration() {
        for backend in Backend::value_variants().iter().copied() {
            for families in [&[Family::V4][..], &Family::ALL] {
                let plan =
                    Plan { backend, hosts: 3, store: StoreKind::Dir, families, vagrant: false };
                subnet_lease::NetworkConfig::parse(&plan.net_conf()).unwrap();
                assert!(backends::registry::profile(plan.backend_type()).is_some(), "{backend:?}");
            }
        }
    }
}
