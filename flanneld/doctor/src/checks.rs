//! The checks of the doctor, with one file for each group of checks.

pub mod daemon;
pub(crate) mod daemon_set;
pub mod devices;
pub mod drops;
pub mod firewall;
pub mod interface;
mod interface_remedy;
pub mod kernel;
pub mod kubernetes;
pub mod leases;
pub mod limits;
pub mod mesh;
pub mod network;
pub mod pod_path;
pub mod pod_probes;
pub mod pods;
mod rights;
pub mod store;
pub mod sysctls;
pub(crate) mod tunnel_loop;
pub mod underlay;
pub mod wireguard;
