//! The kernel's state in a namespace, as `ip -j` and `bridge -j` print it.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::net::netns::Netns;

/// An interface, from `ip -j -d link`.
#[derive(Debug, Clone, Deserialize)]
pub struct Link {
    /// Index within the namespace.
    pub ifindex: u32,
    /// Name within the namespace.
    pub ifname: String,
    /// MTU in bytes, or 0 if `ip` prints no MTU.
    #[serde(default)]
    pub mtu: u32,
    /// Hardware address, or empty if the interface has no hardware address.
    #[serde(default)]
    pub address: String,
    /// Operational state: `UP`, `DOWN` or `UNKNOWN`.
    #[serde(default)]
    pub operstate: String,
    /// `UP`, `LOWER_UP`, `BROADCAST`, …
    #[serde(default)]
    pub flags: Vec<String>,
    /// `info_kind` and `info_data`, such as a VXLAN's `id`, `local` and `port`.
    #[serde(default)]
    pub linkinfo: Value,
    /// All other fields of the JSON object.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Name of the interface.
    pub ifname: String,
    /// The address with its prefix length.
    pub net: String,
    /// Scope: `global`, `link` or `host`.
    pub scope: String,
}

/// A route, from `ip -j route`.
#[derive(Debug, Clone, Deserialize)]
pub struct Route {
    /// The destination, or `default`. A route to a single host has no prefix length.
    pub dst: String,
    /// Address of the next hop. The field is `None` for a directly connected destination.
    #[serde(default)]
    pub gateway: Option<String>,
    /// The interface.
    #[serde(default)]
    pub dev: Option<String>,
    /// The routing protocol that added the route, by name or number.
    #[serde(default)]
    pub protocol: String,
    /// Flags: `onlink`, `linkdown`, `dead`.
    #[serde(default)]
    pub flags: Vec<String>,
    /// All other fields of the JSON object: `scope`, `prefsrc`, `metric`, `type`, `mtu`, …
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A neighbour: an ARP or ND entry.
#[derive(Debug, Clone, Deserialize)]
pub struct Neighbour {
    /// IP address of the neighbour.
    pub dst: String,
    /// The interface.
    pub dev: String,
    /// The hardware address.
    #[serde(default)]
    pub lladdr: Option<String>,
    /// States: `PERMANENT`, `REACHABLE`, …
    #[serde(default)]
    pub state: Vec<String>,
    /// All other fields of the JSON object.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An entry of a forwarding database.
#[derive(Debug, Clone, Deserialize)]
pub struct Fdb {
    /// The hardware address.
    pub mac: String,
    /// The interface.
    pub ifname: String,
    /// Address of the remote VTEP, on a VXLAN device.
    #[serde(default)]
    pub dst: Option<String>,
    /// State of the entry: `permanent`, or empty for a learned entry.
    #[serde(default)]
    pub state: String,
    /// Flags: `self`, `master`, …
    #[serde(default)]
    pub flags: Vec<String>,
    /// All other fields of the JSON object.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Netns {
    /// Returns all interfaces of the namespace.
    ///
    /// # Errors
    /// Returns an error if `ip` fails or prints malformed output.
    pub fn links(&self) -> Result<Vec<Link>> {
        self.json("ip", &["-d", "-j", "link", "show"])
    }

    /// Returns the named interface, or `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if `ip` fails or prints malformed output.
    pub fn link(&self, name: &str) -> Result<Option<Link>> {
        Ok(self.links()?.into_iter().find(|link| link.ifname == name))
    }

    /// Returns the addresses of all interfaces.
    ///
    /// # Errors
    /// Returns an error if `ip` fails or prints malformed output.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        #[derive(Deserialize)]
        struct Interface {
            ifname: String,
            #[serde(default)]
            addr_info: Vec<Info>,
        }
        #[derive(Deserialize)]
        struct Info {
            local: String,
            prefixlen: u8,
            scope: String,
        }
        let interfaces: Vec<Interface> = self.json("ip", &["-j", "address", "show"])?;
        let of = |interface: Interface| {
            let ifname = interface.ifname;
            interface.addr_info.into_iter().map(move |info| Address {
                ifname: ifname.clone(),
                net: format!("{}/{}", info.local, info.prefixlen),
                scope: info.scope,
            })
        };
        Ok(interfaces.into_iter().flat_map(of).collect())
    }

    /// Returns the IPv4 routes of the main table.
    ///
    /// # Errors
    /// Returns an error if `ip` fails or prints malformed output.
    pub fn routes(&self) -> Result<Vec<Route>> {
        self.json("ip", &["-4", "-j", "route", "show"])
    }

    /// Returns the IPv6 routes of the main table.
    ///
    /// # Errors
    /// Returns an error if `ip` fails or prints malformed output.
    pub fn v6_routes(&self) -> Result<Vec<Route>> {
        self.json("ip", &["-6", "-j", "route", "show"])
    }

    /// Returns the neighbours of both address families on an interface. The list is empty if the interface does not exist.
    ///
    /// # Errors
    /// Returns an error if `ip` fails or prints malformed output.
    pub fn neighbours(&self, interface: &str) -> Result<Vec<Neighbour>> {
        // With `dev`, the output of `ip` lacks the interface.
        let all: Vec<Neighbour> = self.json("ip", &["-j", "neighbour", "show"])?;
        Ok(all.into_iter().filter(|neighbour| neighbour.dev == interface).collect())
    }

    /// Returns the forwarding database of an interface. The list is empty if the interface does not exist.
    ///
    /// # Errors
    /// Returns an error if `bridge` fails or prints malformed output.
    pub fn fdb(&self, interface: &str) -> Result<Vec<Fdb>> {
        let all: Vec<Fdb> = self.json("bridge", &["-j", "fdb", "show"])?;
        Ok(all.into_iter().filter(|entry| entry.ifname == interface).collect())
    }

    fn json<T: DeserializeOwned>(&self, program: &str, args: &[&str]) -> Result<Vec<T>> {
        let text = self.exec(program, args)?;
        // Some versions print nothing for an empty list.
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        // `ip -d -j` prints an empty object for each interface that it filters out.
        let list: Vec<Value> = serde_json::from_str(&text)
            .with_context(|| format!("the answer of {program} {}", args.join(" ")))?;
        let list = list
            .into_iter()
            .filter(|entry| entry.as_object().is_none_or(|fields| !fields.is_empty()));
        list.map(|entry| {
            serde_json::from_value(entry.clone()).with_context(|| format!("{program} says {entry}"))
        })
        .collect()
    }
}
