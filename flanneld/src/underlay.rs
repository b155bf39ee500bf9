//! Selection of the interface that carries packets between nodes. It depends only on the requirements ([`Request`])
//! and on facts about this host, which the module [`read`] reads from the kernel.

mod arp;
mod candidate;
mod check;
mod choice;
mod error;
mod facts;
mod follow;
mod found;
mod hint;
pub mod read;
mod request;
mod select;
#[cfg(test)]
mod tests;
mod whose;

pub use choice::{Chosen, Rule};
pub use error::{ReadError, SHARED};
pub use facts::{HostFacts, Leased};
pub use follow::followed;
pub use found::Found;
pub use hint::{interfaces_text, store_via_underlay, trap_hint};
pub use netstate::host::{Address, Interface, Route, RouteError};
pub use options::{Pattern, Selector};
pub use request::{Families, KnownAddresses, Request, StoreAt};
pub use select::select;
pub use whose::{AddressConcern, doubt, needs_servers};
