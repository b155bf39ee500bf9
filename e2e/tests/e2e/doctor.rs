//! Tests that `flannelctl doctor` reports the cause of a fault first, and that the doctor's commands fix the fault when a user pastes them.

mod between;
mod commands;
mod devices;
mod fault;
mod firewalls;
mod healthy;
mod host;
pub(crate) mod node;
mod store;
mod trap;

pub(crate) use between::protocol_4_is_dropped;

const NETWORK: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
