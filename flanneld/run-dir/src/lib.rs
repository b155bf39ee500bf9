//! The files and names by which flannel's programs on one host know of each other: `subnet.env`, its lock, and the sockets of running
//! daemons. A leaf: the CNI plugin and `flannelctl` read them without the daemon.

pub mod instance;
pub mod regular;
pub mod subnet_env;
