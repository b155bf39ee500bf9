//! The CNI plugin `flannel`, which container runtimes run for each pod. It reads `subnet.env`, builds the
//! configuration of another plugin, the delegate (`bridge` by default), and runs it.
//!
//! [`call`] reads and validates the runtime's input, and [`verbs`] execute the call. They use [`subnet_env`],
//! [`netconf`] (builds the delegate's configuration), [`attachment_store`] (keeps it until DEL) and
//! [`delegate`] (runs the delegate).

pub mod attachment;
pub mod attachment_store;
pub mod call;
pub mod conf;
pub mod delegate;
pub mod error;
pub mod netconf;
pub mod netns;
pub mod status;
pub mod subnet_env;
pub mod verbs;
pub mod version;

mod program;
mod route;

pub use program::program;
