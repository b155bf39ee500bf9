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

use std::time::Duration;

/// Ten times the duration of one run of the doctor's checks.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
const SOON: Duration = Duration::from_secs(20);
const NETWORK: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
