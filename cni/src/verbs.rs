//! Executes the verbs of the CNI specification, except VERSION.

mod add;
mod check;
mod del;
mod gc;
mod shared;
mod status;

pub use shared::Context;

use crate::call::{Call, Verb};
use crate::error::CniError;
use crate::{netns, version};

/// Returns the text for standard output. An error of the delegate keeps its code.
pub fn run(call: &Call, context: Context<'_>) -> Result<Vec<u8>, CniError> {
    let version = call.conf.cni_version.as_str();
    match call.verb {
        Verb::Add | Verb::Del => {
            version::supported(version)?;
            if !call.netns_override {
                netns::foreign(&call.netns)?;
            }
        }
        Verb::Check => version::allows(version, "CHECK", "0.4.0")?,
        Verb::Gc => version::allows(version, "GC", "1.1.0")?,
        Verb::Status => version::allows(version, "STATUS", "1.1.0")?,
    }
    match call.verb {
        Verb::Add => add::add(call, context),
        Verb::Del => del::del(call, context).map(|()| Vec::new()),
        Verb::Check => check::check(call, context).map(|()| Vec::new()),
        Verb::Gc => gc::gc(call, context).map(|()| Vec::new()),
        Verb::Status => status::status(&call.conf).map(|()| Vec::new()),
    }
}
