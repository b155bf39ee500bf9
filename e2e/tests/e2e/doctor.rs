//! Tests that `flannelctl doctor` reports the cause of a fault first, and that the doctor's commands fix the fault when a user pastes them.

mod between;
mod firewalls;
pub(crate) mod healthy;
mod host;
pub(crate) mod node;
mod store;
mod trap;
pub(crate) mod verdicts;

pub(crate) use between::{
    add_switch_nft_rules, dropped_protocol_4_is_found_and_fixed, remove_switch_fault,
};
