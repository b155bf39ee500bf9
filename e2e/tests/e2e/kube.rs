//! Tests with Kubernetes: the Node API of a real API server as the lease store, and whole clusters of real nodes.

mod all_doctors;
mod bed;
mod checks;
mod configuration;
mod conformance;
mod credentials;
mod doctor;
mod families;
mod flannel;
mod golden;
mod hostile;
mod installed;
mod kinds;
mod life;
mod nodes;
mod outages;
mod rights;
mod start;
mod streams;
mod udp;
mod upstream;
mod vagrant;
mod vm;
mod whose;
