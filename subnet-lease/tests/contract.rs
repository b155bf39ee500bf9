//! One test suite for all stores: the Nodes of Kubernetes, those of the fake API server, a directory, etcd 3.4 and etcd 3.7. Each case runs on every
//! store with the properties that it needs.
//!
//! `cargo test -p subnet-lease --test contract etcd_3_7::` runs the cases of one store. To run one case, pass its name as an argument.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

#[path = "contract/acquire.rs"]
mod acquire;
#[path = "contract/answers.rs"]
mod answers;
#[path = "contract/api_server.rs"]
mod api_server;
#[path = "contract/bed.rs"]
mod bed;
#[path = "contract/case.rs"]
mod case;
#[path = "contract/cluster.rs"]
mod cluster;
#[path = "contract/directory.rs"]
mod directory;
#[path = "contract/etcd_access.rs"]
mod etcd_access;
#[path = "contract/etcd_cluster.rs"]
mod etcd_cluster;
#[path = "contract/etcd_server.rs"]
mod etcd_server;
#[path = "contract/hold.rs"]
mod hold;
#[path = "contract/kubernetes.rs"]
mod kubernetes;
#[path = "contract/node.rs"]
mod node;
#[path = "contract/refuse.rs"]
mod refuse;
#[path = "contract/watch.rs"]
mod watch;

use case::Case;
use libtest_mimic::{Arguments, Trial};

/// Number of cases that run at the same time. Cases mostly wait.
const AT_ONCE: usize = 16;

/// By topic, the one with the longest duration first.
const TOPICS: [&[Case]; 9] = [
    etcd_access::CASES,
    etcd_cluster::CASES,
    kubernetes::CASES,
    watch::CASES,
    directory::CASES,
    hold::CASES,
    acquire::CASES,
    refuse::CASES,
    answers::CASES,
];

fn trials() -> Vec<Trial> {
    let pairs = TOPICS
        .into_iter()
        .flatten()
        .flat_map(|case| bed::KINDS.iter().map(move |kind| (kind, case)));
    let runs = pairs.filter(|(kind, case)| case.needs.iter().all(|need| kind.has.contains(need)));
    let trial = |(kind, case): (&'static bed::Kind, &'static Case)| {
        Trial::test(format!("{}::{}", kind.name, case.name), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on((case.run)(kind.bed(case.name, case.needs)));
            Ok(())
        })
    };
    runs.map(trial).collect()
}

fn main() {
    let mut args = Arguments::from_args();
    args.test_threads = args.test_threads.or(Some(AT_ONCE));
    let conclusion = libtest_mimic::run(&args, trials());
    bed::stop();
    conclusion.exit();
}
