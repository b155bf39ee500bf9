//! The CNI plugin `flannel`, which container runtimes execute for each pod. It reads `subnet.env`, builds the configuration of
//! another plugin (`bridge` by default) and executes it.
//!
//! A call runs top down: [`call`] reads and validates what the runtime passes, [`verbs`] carry it out with [`subnet_env`],
//! [`netconf`] (what the delegate gets), [`attachment_store`] (what is remembered until DEL) and [`delegate`] (how it is executed).

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
