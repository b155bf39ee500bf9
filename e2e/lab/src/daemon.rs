//! The daemon under test, and the programs and files that it finds on its host.

pub(crate) mod file_store;
pub(crate) mod flannelctl;
pub(crate) mod flanneld;
pub(crate) mod programs;
