//! A switch: a bridge in its own namespace, and the cables to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use crate::net::netns::Netns;
use wait::until;

const BRIDGE: &str = "br0";

/// A clone is the same switch.
#[derive(Debug, Clone)]
pub struct Switch {
    netns: Netns,
    ports: Arc<AtomicU32>,
}

impl Switch {
    pub(crate) fn build(netns: Netns) -> Result<Switch> {
        // Multicast snooping would drop neighbour solicitations to groups without a member report.
        netns.run_ip_batch(&format!(
            "link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0\nlink set {BRIDGE} up"
        ))?;
        // A switch does not filter packets. Where the kernel supports filters for bridges, they only cost time.
        for family in ["iptables", "ip6tables", "arptables"] {
            let _ = netns.sysctl(&format!("net/bridge/bridge-nf-call-{family}"), "0");
        }
        Ok(Switch { netns, ports: Arc::new(AtomicU32::new(0)) })
    }

    /// It contains the bridge `br0`.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// `interface` is the name of the cable's end in the namespace.
    pub(crate) fn plug_new_cable(&self, netns: &Netns, interface: &str) -> Result<Port> {
        let port = format!("p{}", self.ports.fetch_add(1, Ordering::Relaxed));
        let to = netns.name();
        self.netns.run_ip_batch(&format!(
            "link add {port} mtu 1500 type veth peer name {interface} mtu 1500 netns {to}\n\
             link set {port} master {BRIDGE}\n\
             link set {port} up"
        ))?;
        netns.run_ip_batch(&format!("link set {interface} up"))?;
        wait_connected(&self.netns, &port, netns, interface)?;
        Ok(Port { switch: self.clone(), name: port, interface: interface.to_owned() })
    }
}

/// The switch's end of a cable.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    switch: Switch,
    name: String,
    pub(crate) interface: String,
}

impl Port {
    /// Without forwarding, the port drops all packets. The far end of the cable does not detect it.
    pub(crate) fn set_forwarding(&self, forwarding: bool) -> Result<()> {
        let master = if forwarding { format!("master {BRIDGE}") } else { "nomaster".to_owned() };
        self.switch.netns.run_ip_batch(&format!("link set {} {master}", self.name)).map(drop)
    }

    /// Unplugs or replugs the cable: the far end loses or regains its carrier.
    pub(crate) fn set_carrier(&self, carrier: bool) -> Result<()> {
        let state = if carrier { "up" } else { "down" };
        self.switch.netns.run_ip_batch(&format!("link set {} {state}", self.name)).map(drop)
    }

    /// Also removes the interface at its far end.
    pub(crate) fn remove_cable(&self) -> Result<()> {
        self.switch.netns.run_ip_batch(&format!("link del {}", self.name)).map(drop)
    }
}

/// Waits until the bridge forwards packets on the port and the interface at the far end is up. The kernel notices the carrier of a new cable up to a
/// second late.
pub(crate) fn wait_connected(
    bridge: &Netns,
    port: &str,
    netns: &Netns,
    interface: &str,
) -> Result<()> {
    let has_state = |netns: &Netns, program, device, state| {
        netns.exec(program, &["link", "show", "dev", device]).is_ok_and(|text| text.contains(state))
    };
    let is_connected = || {
        has_state(bridge, "bridge", port, "state forwarding")
            && has_state(netns, "ip", interface, "state UP")
    };
    until("a new cable carries", is_connected).map(drop)
}
