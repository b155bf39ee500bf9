//! Objects of any program in our networks, on our devices and on our UDP port.

use crate::link::LinkSpec;
use crate::names::LinkName;
use crate::object::{Key, Value};

/// Objects in our networks and on our devices, including our own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// All interfaces, with their indices.
    pub links: Vec<(u32, LinkName, LinkSpec)>,
    /// Routes of the main table inside our networks, and neighbours and FDB entries on our devices. They are in the kernel's order: of several equal routes,
    /// the kernel uses the first.
    pub objects: Vec<Seen>,
}

/// An object and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The key of the object.
    pub key: Key,
    /// The content of the object.
    pub value: Value,
    /// The origin, as far as the kernel records it.
    pub origin: Origin,
}

/// The origin of an object, as far as the kernel records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A permanent entry of a program or an operator.
    Set,
    /// Learned by the kernel, or added by another program as an entry that expires.
    Learned,
    /// An entry of a program that learns in place of the kernel (NTF_EXT_LEARNED).
    ExternLearn,
    /// Added by the program with this protocol number (NDA_PROTOCOL or the route's).
    Protocol(u8),
}
