//! An interface of a host: its addresses, its gateways and its switch.

use std::net::IpAddr;

use anyhow::{Context, Result};
use ipnet::IpNet;

use crate::net::netns::Netns;
use crate::net::switch::{Port, Switch};

/// With the switch to which it is connected.
#[derive(Debug, Clone)]
pub struct Uplink {
    switch: Switch,
    pub(super) interface: String,
    pub(super) addresses: Vec<IpNet>,
    gateways: Vec<IpAddr>,
}

impl Uplink {
    /// An interface without addresses, with an MTU of 1500 bytes.
    pub fn new(switch: &Switch, interface: &str) -> Uplink {
        Uplink {
            switch: switch.clone(),
            interface: interface.to_owned(),
            addresses: Vec::new(),
            gateways: Vec::new(),
        }
    }

    /// The interface `enp0s8` of the host with this number: number 1 has 192.168.56.101/24 and fd00:56::101/64. Numbers above 154 give no valid IPv4
    /// address.
    pub fn enp0s8(switch: &Switch, number: u8) -> Result<Uplink> {
        let last = u16::from(number) + 100;
        Uplink::new(switch, "enp0s8")
            .address(&format!("192.168.56.{last}/24"))?
            .address(&format!("fd00:56::{last}/64"))
    }

    /// `address` includes the prefix length.
    pub fn address(mut self, address: &str) -> Result<Uplink> {
        self.addresses.push(address.parse().with_context(|| format!("address {address}"))?);
        Ok(self)
    }

    /// A default route for the gateway's address family.
    pub fn gateway(mut self, gateway: &str) -> Result<Uplink> {
        self.gateways.push(gateway.parse().with_context(|| format!("gateway {gateway}"))?);
        Ok(self)
    }

    pub(super) fn attach(&self, netns: &Netns) -> Result<Port> {
        let port = self.switch.plug_new_cable(netns, &self.interface)?;
        let mut batch = String::new();
        for address in &self.addresses {
            let nodad = if matches!(address, IpNet::V6(_)) { "nodad" } else { "" };
            batch.push_str(&format!("address add {address} dev {} {nodad}\n", self.interface));
        }
        for gateway in &self.gateways {
            batch.push_str(&format!("route add default via {gateway} dev {}\n", self.interface));
        }
        netns.run_ip_batch(&batch)?;
        Ok(port)
    }
}
