//! Kubernetes: the Node API as lease store on a real API server, and whole clusters of real nodes.

mod bed;
mod checks;
mod cluster;
mod credentials;
mod doctor;
mod families;
mod flannel;
mod golden;
mod hostile;
mod installed;
mod life;
mod minute;
mod nodes;
mod outages;
mod proxy;
mod start;
mod streams;
mod udp;
mod upstream;
mod vagrant;

pub(crate) use bed::turn;
