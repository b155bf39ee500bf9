//! Finds the remote addresses of other programs' vxlan interfaces that use flannel's UDP port.

use super::decode::{SeenLink, link, neighbor};
use super::header::neighbor_header;
use super::socket::{Notices, Requests};
use super::uapi::*;
use super::wire::{Message, Received};
use crate::error::KernelError;
use crate::link::LinkKind;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Works in the network namespace of the thread that opened it.
pub struct Tunnels {
    requests: Requests,
    notices: Notices,
}

impl Tunnels {
    /// Opens the sockets in the network namespace of the calling thread.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self {
            notices: Notices::open(RTMGRP_LINK | RTMGRP_NEIGH)?,
            requests: Requests::open()?,
        })
    }

    /// The underlay addresses to which vxlan interfaces with the UDP port `port` send packets,
    /// according to permanent FDB entries. Skips interfaces in `own`.
    pub async fn destinations(
        &mut self,
        port: u16,
        own: &[String],
    ) -> Result<BTreeSet<IpAddr>, KernelError> {
        let request = || Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]);
        let links = self.requests.dump(
            "network interfaces",
            request,
            Vec::new,
            |list: &mut Vec<SeenLink>, message| list.extend(link(message)),
        );
        let uses = |seen: &SeenLink| matches!(&seen.spec.kind, LinkKind::Vxlan(vxlan) if vxlan.port == port);
        let mut found = BTreeSet::new();
        for seen in links
            .await?
            .iter()
            .filter(|seen| uses(seen) && !own.iter().any(|name| name == seen.name.as_str()))
        {
            let request =
                || Message::new(RTM_GETNEIGH, 0, &neighbor_header(AF_BRIDGE, seen.index, 0, 0));
            let entries = self.requests.dump(
                "FDB entries",
                request,
                BTreeSet::new,
                |set: &mut BTreeSet<IpAddr>, message| {
                    let entry = neighbor(message).filter(|entry| {
                        entry.family == AF_BRIDGE && entry.index == seen.index && entry.permanent()
                    });
                    set.extend(
                        entry
                            .and_then(|entry| entry.dst)
                            .filter(|ip| !ip.is_unspecified() && !ip.is_multicast()),
                    );
                },
            );
            found.extend(entries.await?);
        }
        Ok(found)
    }

    /// Waits until a vxlan interface or a permanent FDB entry has changed.
    pub async fn changed(&mut self) {
        let concerns = |message: &Received<'_>| match message.kind {
            RTM_NEWLINK | RTM_DELLINK => link(&Received { kind: RTM_NEWLINK, ..*message })
                .is_some_and(|seen| matches!(seen.spec.kind, LinkKind::Vxlan(_))),
            RTM_NEWNEIGH | RTM_DELNEIGH => neighbor(&Received { kind: RTM_NEWNEIGH, ..*message })
                .is_some_and(|entry| entry.family == AF_BRIDGE && entry.permanent()),
            _ => false,
        };
        self.notices.until(concerns).await;
    }
}
