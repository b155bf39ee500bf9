//! The kernel's state in a namespace, as `ip -j` and `bridge -j` print it.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::net::netns::Netns;

/// From `ip -j -d link`.
#[derive(Debug, Clone, Deserialize)]
pub struct Link {
    pub ifindex: u32,
    pub ifname: String,
    /// In bytes; 0 if `ip` prints none.
    #[serde(default)]
    pub mtu: u32,
    /// Empty if the interface has no hardware address.
    #[serde(default)]
    pub address: String,
    /// `UP`, `DOWN` or `UNKNOWN`.
    #[serde(default)]
    pub operstate: String,
    /// `UP`, `LOWER_UP`, `BROADCAST`, …
    #[serde(default)]
    pub flags: Vec<String>,
    /// `info_kind` and `info_data`, such as a VXLAN's `id`, `local` and `port`.
    #[serde(default)]
    pub linkinfo: Value,
    /// All other fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub ifname: String,
    /// With its prefix length.
    pub net: String,
    /// `global`, `link` or `host`.
    pub scope: String,
}

/// From `ip -j route`.
#[derive(Debug, Clone, Deserialize)]
pub struct Route {
    /// `default`, or without a prefix length for a single host.
    pub dst: String,
    /// `None` for a directly connected destination.
    #[serde(default)]
    pub gateway: Option<String>,
    #[serde(default)]
    pub dev: Option<String>,
    /// By name or number.
    #[serde(default)]
    pub protocol: String,
    /// `onlink`, `linkdown`, `dead`.
    #[serde(default)]
    pub flags: Vec<String>,
    /// All other fields: `scope`, `prefsrc`, `metric`, `type`, `mtu`, …
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An ARP or ND entry.
#[derive(Debug, Clone, Deserialize)]
pub struct Neighbour {
    /// Its IP address.
    pub dst: String,
    pub dev: String,
    #[serde(default)]
    pub lladdr: Option<String>,
    /// `PERMANENT`, `REACHABLE`, …
    #[serde(default)]
    pub state: Vec<String>,
    /// All other fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An entry of a forwarding database.
#[derive(Debug, Clone, Deserialize)]
pub struct Fdb {
    pub mac: String,
    pub ifname: String,
    /// The remote VTEP, on a VXLAN device.
    #[serde(default)]
    pub dst: Option<String>,
    /// `permanent`, or empty for a learned entry.
    #[serde(default)]
    pub state: String,
    /// `self`, `master`, …
    #[serde(default)]
    pub flags: Vec<String>,
    /// All other fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Netns {
    pub fn links(&self) -> Result<Vec<Link>> {
        self.json("ip", &["-d", "-j", "link", "show"])
    }

    pub fn link(&self, name: &str) -> Result<Option<Link>> {
        Ok(self.links()?.into_iter().find(|link| link.ifname == name))
    }

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

    /// The IPv4 routes of the main table.
    pub fn v4_routes(&self) -> Result<Vec<Route>> {
        self.json("ip", &["-4", "-j", "route", "show"])
    }

    /// The IPv6 routes of the main table.
    pub fn v6_routes(&self) -> Result<Vec<Route>> {
        self.json("ip", &["-6", "-j", "route", "show"])
    }

    /// Both families are included. Empty if the interface does not exist.
    pub fn neighbours(&self, interface: &str) -> Result<Vec<Neighbour>> {
        // With `dev`, the output of `ip` lacks the interface.
        let all: Vec<Neighbour> = self.json("ip", &["-j", "neighbour", "show"])?;
        Ok(all.into_iter().filter(|neighbour| neighbour.dev == interface).collect())
    }

    /// Empty if the interface does not exist.
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
