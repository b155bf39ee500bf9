//! A case of the contract, and the stores on which it runs.

use crate::bed::{Bed, Need};
use std::pin::Pin;

pub(crate) struct Case {
    pub name: &'static str,
    /// Properties that a store must have to run the case.
    pub needs: &'static [Need],
    pub run: fn(Bed) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Each test function of the table has the store properties that it needs.
macro_rules! cases {
    ($($case:ident: [$($need:ident),*]),* $(,)?) => {
        pub(crate) const CASES: &[crate::case::Case] = &[
            $(crate::case::Case { name: stringify!($case), needs: &[$(crate::bed::Need::$need),*], run: |bed| Box::pin($case(bed)) }),*
        ];
    };
}
pub(crate) use cases;
