//! The files and names that flannel's programs on one host share: `subnet.env`, its lock, the daemon's status file, exit report and socket, and
//! the names of running daemons. `flannelctl` uses it without depending on the daemon.

pub mod api_socket;
pub mod exit_report;
pub mod instance;
pub mod process;
pub mod regular;
mod replace;
pub mod status_file;
pub mod subnet_env;
