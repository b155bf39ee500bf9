//! Test packets and measurements of their delivery.

pub(crate) mod capture;
pub mod craft;
pub(crate) mod echo;
pub(crate) mod mesh;
pub(crate) mod ping;
pub(crate) mod probe;
pub(crate) mod report;
pub(crate) mod transfer;
