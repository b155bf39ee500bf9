//! Tests that `flannelctl doctor` names the cause first, and that the printed commands fix the cause when a user pastes them.

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

/// Ten times the duration of a round of the doctor.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
const SOON: Duration = Duration::from_secs(20);
const NETWORK: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
