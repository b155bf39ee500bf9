//! A pod: a namespace with a cable to the bridge `cni0` of its host and addresses from the host's subnet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, bail};
use ipnet::{Ipv4Net, Ipv6Net};

use crate::host::Host;
use crate::host::subnet_env::SubnetEnv;
use crate::net::netns::Netns;
use crate::net::switch::wait_connected;

const BRIDGE: &str = "cni0";

/// A clone is the same pod.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    host: Host,
    netns: Netns,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    mtu: u32,
}

impl Host {
    /// Builds a pod in the host's subnet, behind the bridge `cni0`, as the CNI plugins do.
    pub fn create_pod(&self, name: &str, subnet: &SubnetEnv) -> Result<Pod> {
        let number = self.take_pod_number();
        let netns = self.site().create_netns(&format!("{}-{name}", self.name()))?;
        Pod::build(self, name, netns, subnet, number)
    }
}

impl Pod {
    fn build(
        host: &Host,
        name: &str,
        netns: Netns,
        subnet: &SubnetEnv,
        number: u32,
    ) -> Result<Pod> {
        if subnet.subnet.is_none() && subnet.v6_subnet.is_none() {
            bail!("a pod needs a subnet: {subnet:?}");
        }
        if number == 1 {
            create_pod_bridge(host, subnet)?;
        } else {
            add_missing_bridge_addresses(host, subnet)?;
        }
        let v4 = subnet.subnet.map(|gateway| pod_v4_address(gateway, number)).transpose()?;
        let v6 = subnet.v6_subnet.map(|gateway| pod_v6_address(gateway, number)).transpose()?;
        let (pod, port, mtu) = (netns.name(), format!("veth{number}"), subnet.mtu);
        host.netns().run_ip_batch(&format!(
            "link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pod}\n\
             link set {port} master {BRIDGE}\n\
             link set {port} up"
        ))?;
        let mut batch = "link set eth0 up\n".to_owned();
        if let (Some(address), Some(gateway)) = (v4, subnet.subnet) {
            batch.push_str(&format!(
                "address add {address}/{} dev eth0\nroute add default via {}\n",
                gateway.prefix_len(),
                gateway.addr()
            ));
        }
        if let (Some(address), Some(gateway)) = (v6, subnet.v6_subnet) {
            batch.push_str(&format!(
                "address add {address}/{} dev eth0 nodad\nroute add default via {}\n",
                gateway.prefix_len(),
                gateway.addr()
            ));
        }
        netns.run_ip_batch(&batch)?;
        wait_connected(host.netns(), &port, &netns, "eth0")?;
        Ok(Pod { name: format!("{}/{name}", host.name()), host: host.clone(), netns, v4, v6, mtu })
    }

    /// `<host>/<pod>`, for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// In bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    pub fn v4(&self) -> Result<Ipv4Addr> {
        self.v4.with_context(|| format!("pod {} has no v4 address", self.name))
    }

    pub fn v6(&self) -> Result<Ipv6Addr> {
        self.v6.with_context(|| format!("pod {} has no v6 address", self.name))
    }

    /// IPv4 before IPv6.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6)).collect()
    }

    /// IPv4 or, without it, IPv6.
    pub fn address(&self) -> Result<IpAddr> {
        self.addresses()
            .first()
            .copied()
            .with_context(|| format!("pod {} has no address", self.name))
    }
}

fn create_pod_bridge(host: &Host, subnet: &SubnetEnv) -> Result<()> {
    let mut batch = format!(
        "link add {BRIDGE} mtu {} type bridge forward_delay 0 mcast_snooping 0\n",
        subnet.mtu
    );
    if let Some(address) = subnet.subnet {
        batch.push_str(&format!("address add {address} dev {BRIDGE}\n"));
    }
    if let Some(address) = subnet.v6_subnet {
        batch.push_str(&format!("address add {address} dev {BRIDGE} nodad\n"));
    }
    batch.push_str(&format!("link set {BRIDGE} up\n"));
    host.netns().run_ip_batch(&batch).map(drop)
}

/// Adds the addresses that the bridge lacks, as the bridge plugin does when the host receives another subnet.
fn add_missing_bridge_addresses(host: &Host, subnet: &SubnetEnv) -> Result<()> {
    let present = host.netns().exec("ip", &["-oneline", "address", "show", "dev", BRIDGE])?;
    let wanted = [
        subnet.subnet.map(|net| net.to_string()),
        subnet.v6_subnet.map(|net| format!("{net} nodad")),
    ];
    let missing = |wanted: &&String| {
        !wanted.split(' ').next().is_some_and(|net| present.contains(&format!(" {net} ")))
    };
    let batch: String = wanted
        .iter()
        .flatten()
        .filter(missing)
        .map(|address| format!("address add {address} dev {BRIDGE}\n"))
        .collect();
    host.netns().run_ip_batch(&batch).map(drop)
}

fn pod_v4_address(gateway: Ipv4Net, number: u32) -> Result<Ipv4Addr> {
    let address = Ipv4Addr::from(u32::from(gateway.addr()).saturating_add(number));
    if !gateway.contains(&address) || address == gateway.broadcast() {
        bail!("subnet {gateway} has no room for {number} pods");
    }
    Ok(address)
}

fn pod_v6_address(gateway: Ipv6Net, number: u32) -> Result<Ipv6Addr> {
    let address = Ipv6Addr::from(u128::from(gateway.addr()).saturating_add(u128::from(number)));
    if !gateway.contains(&address) {
        bail!("subnet {gateway} has no room for {number} pods");
    }
    Ok(address)
}
