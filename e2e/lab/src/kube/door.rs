//! A second port of the API server, open until a test closes it.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use crate::net::netns::Netns;

/// Redirects connections to the API server, as a load balancer does: clients see the server's own certificate and responses.
#[derive(Debug)]
pub struct Door {
    netns: Netns,
    address: SocketAddr,
}

impl Door {
    pub(crate) fn open_port_redirect(
        netns: &Netns,
        address: IpAddr,
        port: u16,
        server: u16,
    ) -> Result<Door> {
        let door = Door { netns: netns.clone(), address: SocketAddr::new(address, port) };
        let rule = format!(
            "type nat hook prerouting priority dstnat; tcp dport {port} redirect to :{server}"
        );
        netns.exec_with_input(
            "nft",
            &["-f", "-"],
            &format!(
                "table inet {} {{ chain prerouting {{ {rule}; }}\n}}\n",
                door.nft_table_name()
            ),
        )?;
        Ok(door)
    }

    /// The value of `--kube-api-url` on other hosts.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The port then refuses new connections. Open ones remain until the server ends.
    pub fn refuse_new_connections(&self) -> Result<()> {
        self.netns.exec("nft", &["delete", "table", "inet", &self.nft_table_name()]).map(drop)
    }

    fn nft_table_name(&self) -> String {
        format!("door_{}", self.address.port())
    }
}
