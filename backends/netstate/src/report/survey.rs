//! Objects of any program in flannel's networks, on flannel's devices and on flannel's UDP port.

use crate::object::link::SeenLink;
use crate::object::{Key, Value};
use netlink::neighbor::Neighbor;
use netlink::uapi::NTF_EXT_LEARNED;

/// Includes flannel's own objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// All interfaces.
    pub links: Vec<SeenLink>,
    /// Routes of the main table inside flannel's networks, and neighbours and FDB entries on
    /// flannel's devices. In the kernel's order, because it uses the first of several equal routes.
    pub objects: Vec<Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub key: Key,
    pub value: Value,
    pub origin: Origin,
}

/// As far as the kernel records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A permanent entry of a program or an operator.
    Set,
    /// Learned by the kernel, or added by another program with an expiry.
    Learned,
    /// NTF_EXT_LEARNED: an entry of a program that learns addresses in place of the kernel.
    ExternLearn,
    /// NDA_PROTOCOL, or the protocol of a route: the program that added the object.
    Protocol(u8),
}

impl Origin {
    pub(crate) fn of(entry: &Neighbor) -> Self {
        let is_extern = entry.flags & NTF_EXT_LEARNED != 0;
        match (entry.protocol, is_extern, entry.is_permanent()) {
            (Some(protocol), ..) if protocol != 0 => Origin::Protocol(protocol),
            (_, true, _) => Origin::ExternLearn,
            (_, false, true) => Origin::Set,
            (_, false, false) => Origin::Learned,
        }
    }
}
