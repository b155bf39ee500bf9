//! Selection of the interface that carries packets between nodes. The selection depends only on the requirements
//! ([`Request`]) and on facts about this host; the module [`read`] reads the facts from the kernel.

mod arp;
mod better;
mod candidate;
mod choice;
mod facts;
mod follow;
mod found;
mod hint;
mod problem;
pub mod read;
mod request;
mod select;
#[cfg(test)]
mod tests;
mod trouble;
mod whose;

pub use better::{Against, Better, NoBetter, SilentInterface};
pub use choice::{Chosen, Rule};
pub use facts::{HostFacts, Leased, Unreachable};
pub use follow::followed;
pub use found::Found;
pub use hint::{interfaces_text, store_via_underlay, trap_hint};
pub use netstate::host::{Address, Interface, Route, RouteAnswer, RouteError};
pub use options::{Pattern, Selector};
pub use problem::{Apart, Choosable, Host, Peer, ReadError, SelectError, Unfit, Useless};
pub use request::{Families, KnownAddresses, NoName, Request, StoreAt};
pub use select::select;
pub use trouble::UnderlayTrouble;
pub use whose::{Doubt, doubt, needs_servers};
