//! Objects of any program in flannel's networks, on flannel's devices and on flannel's UDP port.

use crate::link::LinkSpec;
use crate::names::LinkName;
use crate::object::{Key, Value};

/// Objects in flannel's networks and on flannel's devices, including flannel's own objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// All interfaces, with their indices.
    pub links: Vec<(u32, LinkName, LinkSpec)>,
    /// Routes of the main table inside flannel's networks, and neighbours and FDB entries on flannel's
    /// devices. The list is in the kernel's order, because the kernel uses the first of several equal routes.
    pub objects: Vec<Seen>,
}

/// An object and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The key of the object.
    pub key: Key,
    /// The properties of the object, apart from the key.
    pub value: Value,
    /// The origin, as far as the kernel records it.
    pub origin: Origin,
}

/// The origin of an object, as far as the kernel records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A permanent entry of a program or an operator.
    Set,
    /// An entry that the kernel learned, or that another program added with an expiry.
    Learned,
    /// An entry of a program that learns addresses in place of the kernel (NTF_EXT_LEARNED).
    ExternLearn,
    /// An object that the program with this protocol number added (NDA_PROTOCOL, or the protocol of a route).
    Protocol(u8),
}
