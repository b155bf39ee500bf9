//! Kubernetes: the Node API as lease store on a real API server, and whole clusters of real nodes.

mod bed;
mod cluster;
mod families;
mod flannel;
mod golden;
mod nodes;
mod outages;
mod proxy;
mod start;
