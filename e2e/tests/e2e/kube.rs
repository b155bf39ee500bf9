//! Kubernetes: the Node API as lease store on a real API server, and whole clusters of real nodes.

mod bed;
mod cluster;
mod credentials;
mod families;
mod flannel;
mod golden;
mod installed;
mod minute;
mod nodes;
mod outages;
mod proxy;
mod start;
mod udp;
mod upstream;
mod vagrant;
