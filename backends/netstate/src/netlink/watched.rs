//! What decides whether a notification of the kernel concerns flannel's objects, the underlay or the results of on-link queries.

use crate::names::LinkName;
use crate::object::{KernelState, Key, Value};
use crate::scope::Scope;
use std::collections::BTreeSet;
use std::net::IpAddr;

pub(crate) struct Watched<'a> {
    pub links: &'a [(LinkName, u32)],
    pub underlay: (u32, LinkName),
    pub asking: bool,
    /// Lookups found them on-link.
    pub on_link: &'a BTreeSet<IpAddr>,
    pub scope: &'a Scope,
    /// Flannel's objects in the kernel; `None` if the reconciler does not know them.
    pub known: Option<&'a KernelState>,
}

impl Watched<'_> {
    /// True for flannel's links and the underlay.
    pub(crate) fn watches(&self, index: u32) -> bool {
        index == self.underlay.0 || self.name_of(index).is_some()
    }

    /// `None` if the link is not flannel's.
    pub(crate) fn name_of(&self, index: u32) -> Option<LinkName> {
        self.links.iter().find(|(_, ours)| *ours == index).map(|(name, _)| *name)
    }

    pub(crate) fn has(&self, key: &Key) -> bool {
        self.known.is_some_and(|known| known.0.contains_key(key))
    }

    /// The reconciler knows that the object has this value, or that it does not exist.
    pub(crate) fn is_known(&self, key: &Key, value: Option<&Value>, added: bool) -> bool {
        self.known.is_some_and(|known| {
            if added {
                value.is_some() && known.0.get(key) == value
            } else {
                !known.0.contains_key(key)
            }
        })
    }
}
