//! [`Kernel`](crate::kernel::Kernel) with netlink.

mod apply;
mod generic;
pub(crate) mod links;
mod read;
pub(crate) mod watched;
pub(crate) mod wireguard;

use crate::host::read::{INTERFACE_GROUPS, ROUTE_GROUPS};
use crate::kernel::KernelError;
use crate::names::{LinkName, Mac};
use crate::object::link::vxlan;
use netlink::uapi::*;
use netlink::{Client, RequestError, Subscription};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Works in the network namespace of the thread that opened it.
pub struct NetlinkKernel {
    pub(crate) client: Client,
    /// The connection for WireGuard, opened on first use.
    generic: Option<generic::Generic>,
    subscription: Subscription,
    /// Flannel's links, as of the last read.
    pub(crate) links: Vec<(LinkName, u32)>,
    /// The WireGuard interfaces among `links`.
    pub(crate) wireguards: Vec<(LinkName, u32)>,
    /// The last known indices. A renamed link keeps its index.
    pub(crate) last_index: BTreeMap<LinkName, u32>,
    /// As of the last call of [`Kernel::facts`](crate::kernel::Kernel::facts).
    pub(crate) underlay: (u32, LinkName),
    /// The plan needs on-link queries, so any changed route of the main table can change the
    /// desired state.
    asking: bool,
    /// The result of the last successful lookup; used again if a lookup fails.
    on_link: BTreeSet<IpAddr>,
    /// Links on which the kernel refuses writes to accept_ra. flanneld does not compare it again,
    /// because otherwise the kernel would never be in sync.
    pub(crate) fixed_ra: BTreeSet<LinkName>,
    /// Links on which the kernel refuses changes of the checksum offload. flanneld does not compare
    /// it again.
    pub(crate) fixed_checksum: BTreeSet<LinkName>,
}

impl NetlinkKernel {
    /// Opens the sockets in the network namespace of the calling thread.
    pub fn open() -> Result<Self, KernelError> {
        const GROUPS: i32 = INTERFACE_GROUPS | ROUTE_GROUPS | RTMGRP_NEIGH;
        let mut subscription = Subscription::open(NETLINK_ROUTE, GROUPS);
        subscription.try_open()?;
        Ok(Self {
            subscription,
            client: Client::open()?,
            generic: None,
            links: Vec::new(),
            wireguards: Vec::new(),
            last_index: BTreeMap::new(),
            underlay: (0, LinkName::default()),
            asking: false,
            on_link: BTreeSet::new(),
            fixed_ra: BTreeSet::new(),
            fixed_checksum: BTreeSet::new(),
        })
    }

    /// The request has no VNI, so the kernel always refuses it, either for the missing VNI or for
    /// the unknown kind.
    pub fn supports_vxlan(&mut self) -> Result<bool, KernelError> {
        match self.client.request(vxlan::without_identifier()) {
            Err(RequestError::Refused { errno, .. }) => Ok(errno != libc::EOPNOTSUPP),
            Ok(()) => Ok(true),
            Err(error) => Err(KernelError::new("check for vxlan support", error.into())),
        }
    }

    /// The request makes the kernel load the WireGuard module. A refusal is an error, because it
    /// does not show whether the kernel supports WireGuard.
    pub fn supports_wireguard(&mut self) -> Result<bool, KernelError> {
        self.generic = generic::Generic::find()?;
        Ok(self.generic.is_some())
    }

    /// Works for vxlan and TUN interfaces; `None` if there is none.
    pub fn mac_of(&mut self, name: LinkName) -> Result<Option<Mac>, KernelError> {
        Ok(self.links_by_name(&[name])?.remove(&name).and_then(|link| link.spec.mac))
    }
}
