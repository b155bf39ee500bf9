//! The doctor, which reports the problems of a node, their causes, and the commands that fix them.
//!
//! [`look`] gathers facts about the host, the daemon adds its own facts, and the checks in [`table`] judge them. The daemon and `flannelctl doctor`
//! use the same checks, which have no side effects and need no running daemon. If a fact is unavailable, the results of the checks that need it are
//! unknown.

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
