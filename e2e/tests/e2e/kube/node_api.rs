//! Tests with the Node API of a real API server as the lease store.

pub(crate) mod configuration;
pub(crate) mod credentials;
pub(crate) mod families;
pub(crate) mod golden;
pub(crate) mod hostile;
pub(crate) mod interface_owner;
pub(crate) mod nodes;
pub(crate) mod outages;
pub(crate) mod peer_kinds;
pub(crate) mod start;
