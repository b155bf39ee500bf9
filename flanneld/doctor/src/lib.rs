//! The doctor: what is wrong on this node, why, and what to type.
//!
//! [`look`] gathers facts about the host, the daemon adds its own, and [`table`] judges them: one table of pure checks, the same in the
//! daemon and in `flannelctl doctor`, with and without a daemon. A fact that could not be had leaves its checks unknown.

pub mod check;
pub mod checks;
pub mod command;
pub mod correct;
pub mod drops;
pub mod encapsulation;
pub mod fact;
pub mod facts;
pub mod finding;
pub mod firewalls;
pub mod ledger;
pub(crate) mod let_in;
pub mod look;
pub mod need;
pub mod passage;
pub mod persist;
pub mod pod_path;
mod policies;
pub mod shell;
pub mod surroundings;
pub mod table;
#[cfg(test)]
mod tests;

pub use check::Check;
pub use checks::mesh::is_about_peers;
pub use fact::Fact;
pub use facts::Facts;
pub use finding::{Finding, Report, Severity};
