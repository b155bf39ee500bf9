//! A case of the contract, and on which stores it runs.

use crate::bed::{Bed, Need};
use std::pin::Pin;

/// What is done with a store.
pub(crate) struct Case {
    pub name: &'static str,
    /// It runs on every store that has all of these.
    pub needs: &'static [Need],
    pub run: fn(Bed) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A table of cases: the function, and what it needs.
macro_rules! cases {
    ($($case:ident: [$($need:ident),*]),* $(,)?) => {
        pub(crate) const CASES: &[crate::case::Case] = &[
            $(crate::case::Case { name: stringify!($case), needs: &[$(crate::bed::Need::$need),*], run: |bed| Box::pin($case(bed)) }),*
        ];
    };
}
pub(crate) use cases;
