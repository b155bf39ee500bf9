//! Tests on hosts in network namespaces. All tests are in one program, so that the tests wait in parallel and Cargo links only once.
//!
//! One suite: `cargo test -p e2e -- rules::`. One test: `cargo test -p e2e -- rules::repair::a_name`, or a part of its name.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows it in tests, but does not know their helpers"
)]

mod admission;
mod bad_peers;
mod canary;
mod checks;
mod cleanup;
mod cni;
mod datapath;
mod datapath_cables;
mod datapath_hostile;
mod datapath_nested;
mod datapath_restart;
mod datapath_wireguard;
mod directory;
mod doctor;
mod doors;
mod etcd;
mod files;
mod fire;
mod flannelctl;
mod go_like;
mod golden;
mod healing;
mod in_the_clear;
mod install;
mod kube;
mod lab;
mod lab_killed;
mod lease;
mod left_behind;
mod listeners;
mod mesh;
mod mesh_hostile;
mod mesh_hundred;
mod mesh_mixed;
mod monitoring;
mod operator;
mod packet_path;
mod page;
mod ping_only;
mod pod_probes;
mod probe;
mod quiet;
mod refuse_insecure;
mod required_backend;
mod routes;
mod rules;
mod traffic;
mod two_networks;
mod underlay;
mod vagrant;
mod verdicts;
mod vm;
mod vm_scale;
mod wireguard_hostile;
mod wireguard_keys;
mod wireguard_secrets;
