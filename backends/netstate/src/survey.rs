//! What others have where our objects are: in our networks, on our devices, on our port.

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

/// An object, and what tells who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which one.
    pub key: Key,
    /// Its content.
    pub value: Value,
    /// How it came to be.
    pub made: Made,
}

/// How an object came to be. A route says it by its protocol number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// By a program or an operator, to stay.
    Set,
    /// By the kernel itself, which forgets it again, or by somebody who let it forget.
    Learned,
    /// By a program that takes the kernel's place in learning (NTF_EXT_LEARNED).
    Fed,
    /// By the program with this protocol number (NDA_PROTOCOL).
    By(u8),
}
