//! The files and names that flannel's programs on one host share: `subnet.env`, its lock, and the sockets of running
//! daemons. A leaf crate: the CNI plugin and `flannelctl` use it without depending on the daemon.

pub mod instance;
pub mod regular;
pub mod subnet_env;
