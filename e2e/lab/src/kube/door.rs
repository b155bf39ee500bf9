//! Another address of the API server: a port of its host that leads to it until it is closed.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use crate::net::netns::Netns;

/// A port that leads to the API server, as a load balancer's address does: the server's own certificate and its own answers.
#[derive(Debug)]
pub struct Door {
    netns: Netns,
    address: SocketAddr,
}

impl Door {
    pub(crate) fn open(netns: &Netns, address: IpAddr, port: u16, server: u16) -> Result<Door> {
        let door = Door {
            netns: netns.clone(),
            address: SocketAddr::new(address, port),
        };
        let rule = format!(
            "type nat hook prerouting priority dstnat; tcp dport {port} redirect to :{server}"
        );
        netns.feed(
            "nft",
            &["-f", "-"],
            &format!(
                "table inet {} {{ chain prerouting {{ {rule}; }}\n}}\n",
                door.table()
            ),
        )?;
        Ok(door)
    }

    /// Its address for other hosts: `--kube-api-url`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Closes it: new connections are refused. Those that are open end when the server does.
    ///
    /// # Errors
    /// When it is closed already.
    pub fn close(&self) -> Result<()> {
        self.netns
            .exec("nft", &["delete", "table", "inet", &self.table()])
            .map(drop)
    }

    fn table(&self) -> String {
        format!("door_{}", self.address.port())
    }
}
