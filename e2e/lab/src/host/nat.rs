//! A NAT box, like the NAT that VirtualBox or a home router puts in front of a host.

use std::ops::Deref;
use std::sync::Arc;

use anyhow::Result;

use crate::host::Host;
use crate::host::uplink::Uplink;
use crate::net::switch::Switch;
use crate::site::Site;

/// Masquerades outgoing connections and drops connections that begin outside.
const RULES: &str = r#"
table ip nat_box {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "outer" masquerade
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname "outer" ct state new drop
    }
}
"#;

/// Forwards packets from its interface `inner` to its interface `outer`, with the address of `outer` as source.
#[derive(Debug, Clone)]
pub struct NatBox {
    host: Host,
}

impl NatBox {
    pub(crate) fn build(
        site: &Arc<Site>,
        name: &str,
        inner: (&Switch, &str),
        outer: (&Switch, &str),
    ) -> Result<NatBox> {
        let uplinks = [
            Uplink::new(inner.0, "inner").address(inner.1)?,
            Uplink::new(outer.0, "outer").address(outer.1)?,
        ];
        let host = Host::build(site, name, &uplinks)?;
        host.netns().exec_with_input("nft", &["-f", "-"], RULES)?;
        Ok(NatBox { host })
    }
}

impl Deref for NatBox {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
