//! Files and names that flannel's programs on one host share. The files are `subnet.env`, its lock, and the daemon's
//! status file, exit report and socket. The names of abstract sockets identify running daemons. `flannelctl` uses
//! this crate without depending on the daemon.

pub mod api_socket;
pub mod exit_report;
pub mod instance;
pub mod process;
pub mod replace;
pub mod status_file;
pub mod subnet_env;
