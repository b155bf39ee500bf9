//! What several modules of the daemon need for their errors.

use types::{Detail, Problem};

/// The daemon restarts the network.
pub(crate) fn report_restart(why: &Problem) -> Problem {
    let text = format!("restarting the network: {why}");
    Problem { parts: vec![why.clone()], ..Problem::new("restarting", text) }
}

pub(crate) fn joined(items: impl IntoIterator<Item: ToString>, by: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(by)
}

/// True for a missing or invalid network configuration.
pub fn is_about_config(problem: &Problem) -> bool {
    problem
        .details()
        .any(|detail| matches!(detail, Detail::ConfigMissing { .. } | Detail::ConfigInvalid { .. }))
}
