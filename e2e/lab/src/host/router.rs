//! A router between switches.

use std::ops::Deref;
use std::sync::Arc;

use anyhow::Result;

use crate::host::Host;
use crate::host::uplink::Uplink;
use crate::net::switch::Switch;
use crate::site::Site;

/// Only forwards packets. Its interfaces are `eth0`, `eth1`, … in the order of the switches.
#[derive(Debug, Clone)]
pub struct Router {
    host: Host,
}

impl Router {
    pub(crate) fn build(site: &Arc<Site>, name: &str, legs: &[(&Switch, &str)]) -> Result<Router> {
        let mut uplinks = Vec::new();
        for (number, (switch, address)) in legs.iter().enumerate() {
            uplinks.push(Uplink::new(switch, &format!("eth{number}")).address(address)?);
        }
        Ok(Router { host: Host::build(site, name, &uplinks)? })
    }
}

impl Deref for Router {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
