//! Objects of others in our networks, on our devices and on our UDP port.

use crate::link::LinkSpec;
use crate::names::LinkName;
use crate::object::{Key, Value};

/// Objects in our networks and on our devices, ours among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// All interfaces, with their indices.
    pub links: Vec<(u32, LinkName, LinkSpec)>,
    /// Routes of the main table inside our networks, and neighbours and FDB entries on our devices: in the order of the kernel, which takes the
    /// first of several routes that are equal.
    pub objects: Vec<Seen>,
}

/// An object, and the evidence of who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The key of the object.
    pub key: Key,
    /// The content of the object.
    pub value: Value,
    /// How it came to be.
    pub made: Made,
}

/// How an object came to be. A route says it by its protocol number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Made by a program or an operator as a permanent entry.
    Set,
    /// Learned by the kernel, or made by others as an entry that expires.
    Learned,
    /// Made by a program that learns in place of the kernel (NTF_EXT_LEARNED).
    Fed,
    /// Made by the program with this protocol number (NDA_PROTOCOL).
    By(u8),
}
