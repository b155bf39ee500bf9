//! Tests of the daemon on its own host: its listeners, files, secrets and checks.

pub(crate) mod checks;
pub(crate) mod files;
pub(crate) mod listeners;
pub(crate) mod local_attacks;
pub(crate) mod secrets;
