//! What the tests of this crate and of others share.

pub mod fake;
