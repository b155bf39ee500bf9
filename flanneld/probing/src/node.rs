//! State machine, without I/O, of a node that probes its peers and replies to their probes. Its inputs are datagrams
//! and the time; its outputs are datagrams and verdicts. The prober connects it to sockets, and the simulation
//! connects it to other nodes.

mod answers;
mod asks;
mod common_fault;
mod common_faults;
mod deadlines;
mod history;
mod losses;
mod machine;
mod message;
mod moment;
mod mtu_search;
mod mtu_searches;
mod outcome;
mod outstanding;
mod peer;
mod pods;
mod receive;
mod rounds;
mod session;
mod sessions;
mod show;
mod stranger;
mod strangers;
mod tokens;
mod turns;
mod viewer;
mod views;

pub use machine::Node;
pub use message::{CommonNotice, Datagram, LocalNode, Notice, Now, Send};
pub use viewer::Client;
