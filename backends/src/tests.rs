//! What the tests of the backends share.

pub(crate) mod fixture;
