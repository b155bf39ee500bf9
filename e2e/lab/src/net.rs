//! Network namespaces, their contents, and the switches that connect them.

pub(crate) mod http;
pub(crate) mod multicast;
pub(crate) mod netns;
pub mod observe;
pub(crate) mod switch;
