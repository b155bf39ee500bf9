//! Tests of WireGuard: keys, secrets, hostile leases, and that nothing leaves in the clear.

pub(crate) mod cleartext;
pub(crate) mod hostile;
pub(crate) mod keys;
pub(crate) mod refuse_insecure;
pub(crate) mod required_backend;
pub(crate) mod secrets;
