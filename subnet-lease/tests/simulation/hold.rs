//! Runs one holder on the model store step by step, with lost replies and manual changes of its key.

use super::node::OnUnderlay;
use super::store::{Store, no_answer};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::{Claim, HostEvidence, LeaseLostError};
use subnet_lease::protocol::acquire::acquire;
use subnet_lease::protocol::coroutine::{Coroutine, LogLine, Step};
use subnet_lease::protocol::hold::hold;
use subnet_lease::protocol::registry::{Notice, Request, Write};
use subnet_lease::protocol::tenure::Tenure;
use subnet_lease::{LeaseAttrs, NodeId, wire};
use types::Dual;

const OWN: Ipv4Addr = Ipv4Addr::new(192, 168, 56, 101);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(192, 168, 56, 222);

/// Of a transaction that writes.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    /// It was executed, but the reply got lost.
    Done,
    /// It got lost before its execution.
    Lost,
}

struct Bench {
    store: Store,
    coroutine: Coroutine<LeaseLostError>,
    key: String,
    now: Duration,
    seen: usize,
    log: Vec<LogLine>,
    fates: Vec<Fate>,
}

fn claim(instance: &str) -> Claim {
    Claim {
        node: NodeId {
            id: "one".into(),
            name: "n1".into(),
            instance: instance.into(),
            ..NodeId::default()
        },
        public: Dual::V4(OWN),
        host: HostEvidence {
            named: true,
            store_via_underlay: true,
            queries: Some(Arc::new(OnUnderlay)),
            ..HostEvidence::default()
        },
    }
}

fn attrs(public: Ipv4Addr) -> LeaseAttrs {
    LeaseAttrs { public_ip: Some(public), backend: "host-gw".into(), ..LeaseAttrs::default() }
}

fn acquired(store: &mut Store, instance: &str, now: Duration) -> Tenure {
    let (claim, config) = (claim(instance), super::world::config());
    let mut coroutine = Coroutine::new(move |io| acquire(io, claim, config, attrs(OWN)));
    for _ in 0..100 {
        match coroutine.step(now) {
            Step::Done(tenure) => return tenure.unwrap(),
            Step::Ask(request) => coroutine.answer(store.carry_out(&request, now)),
            Step::Wait(_) => panic!("nothing to wait for"),
        }
    }
    panic!("no lease");
}

impl Bench {
    fn new() -> Self {
        let mut store = Store { revision: 1, ..Store::default() };
        let now = Duration::from_secs(10);
        let tenure = acquired(&mut store, "first", now);
        let key = tenure.key.clone();
        let seen = store.events.len();
        let coroutine =
            Coroutine::new(move |io| hold(io, claim("first"), super::world::config(), tenure));
        let mut bench =
            Self { store, coroutine, key, now, seen, log: Vec::new(), fates: Vec::new() };
        bench.run(Duration::from_secs(1));
        bench
    }

    /// Requests take no time, except those without a reply.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            for event in
                self.store.events.iter().skip(self.seen).filter(|event| event.key == self.key)
            {
                self.coroutine.notify(event.notice.clone());
            }
            self.seen = self.store.events.len();
            let step = self.coroutine.step(self.now);
            self.log.extend(self.coroutine.take_log());
            match step {
                Step::Done(lost) => panic!("lost: {lost}"),
                Step::Ask(request) => {
                    let writes =
                        matches!(&request, Request::Txn { write, .. } if !write.is_empty());
                    let fate = if writes && !self.fates.is_empty() {
                        self.fates.remove(0)
                    } else {
                        Fate::Answered
                    };
                    let answer = if fate == Fate::Lost {
                        None
                    } else {
                        Some(self.store.carry_out(&request, self.now))
                    };
                    self.coroutine.answer(match (fate, answer) {
                        (Fate::Answered, Some(answer)) => answer,
                        _ => {
                            self.now += Duration::from_secs(5);
                            Err(no_answer())
                        }
                    });
                }
                Step::Wait(until) => {
                    let next = until.unwrap_or(end).min(end);
                    if self.seen < self.store.events.len() {
                        continue;
                    }
                    if next >= end {
                        self.now = self.now.max(end);
                        return;
                    }
                    self.now = self.now.max(next);
                }
            }
        }
        panic!("a busy loop");
    }

    /// Without an etcd lease, like `etcdctl put`.
    fn put(&mut self, value: &str) {
        self.store
            .write(&Write::Put { key: self.key.clone(), value: value.into(), lease: 0 }, self.now)
            .unwrap();
    }

    fn value(&self) -> String {
        String::from_utf8(self.store.keys[&self.key].value.to_vec()).unwrap()
    }

    fn lease(&self) -> i64 {
        self.store.keys[&self.key].lease
    }

    fn public(&self) -> Option<Ipv4Addr> {
        wire::parse_value(self.value().as_bytes()).unwrap().public_ip
    }

    fn warnings(&self, words: &str) -> usize {
        self.log.iter().filter(|line| line.warning && line.news.to_string().contains(words)).count()
    }
}

#[test]
fn new_address_is_published_at_once_although_answers_are_lost() {
    for fates in [
        vec![],
        vec![Fate::Lost],
        vec![Fate::Done],
        vec![Fate::Lost, Fate::Done],
        vec![Fate::Done, Fate::Lost, Fate::Lost],
    ] {
        let mut bench = Bench::new();
        for change in 0..10 {
            let new = Ipv4Addr::new(192, 168, 57, change);
            bench.fates.clone_from(&fates);
            let begun = bench.now;
            bench.coroutine.notify(Notice::Publish(Box::new(attrs(new))));
            // Each lost reply costs its deadline, and hardly any further time.
            let lost = u32::try_from(fates.iter().filter(|fate| **fate != Fate::Answered).count())
                .unwrap();
            while bench.coroutine.held().unpublished.is_some()
                || bench.public() != Some(new)
                || bench.now == begun
            {
                bench.run(Duration::from_millis(100));
                assert!(
                    bench.now - begun < Duration::from_secs(5) * lost + Duration::from_secs(3),
                    "change {change}: {:?}",
                    bench.value()
                );
            }
            assert_ne!(bench.lease(), 0);
        }
        assert_eq!(
            bench.log.iter().filter(|line| line.news.to_string().contains("instead of")).count(),
            10,
            "{:?}",
            bench.log
        );
        assert_eq!(bench.warnings(""), 0, "{:?}", bench.log);
    }
}

#[test]
fn unpublished_address_is_reported() {
    let mut bench = Bench::new();
    bench.fates = vec![Fate::Lost; 4];
    bench.coroutine.notify(Notice::Publish(Box::new(attrs(FOREIGN))));
    let begun = bench.now;
    bench.run(Duration::from_millis(1));
    let unpublished = bench.coroutine.held().unpublished.unwrap();
    assert_eq!(unpublished.since, begun);
    assert!(
        unpublished.what.to_string().contains("192.168.56.222")
            && unpublished.what.to_string().contains("192.168.56.101"),
        "{}",
        unpublished.what
    );
    assert!(bench.coroutine.held().trouble.is_some());
    bench.run(Duration::from_secs(30));
    assert_eq!(
        (bench.coroutine.held().unpublished, bench.coroutine.held().trouble, bench.public()),
        (None, None, Some(FOREIGN))
    );
}

#[test]
fn a_foreign_address_is_put_back_with_its_lease() {
    let mut bench = Bench::new();
    let (good, lease) = (bench.value(), bench.lease());
    bench.put(&good.replace("192.168.56.101", "192.168.56.222"));
    bench.run(Duration::from_secs(1));
    assert_eq!((bench.value(), bench.lease()), (good.clone(), lease));
    assert_eq!(
        bench.warnings(
            "192.168.56.222, which is not this node's address: flanneld restored the lease"
        ),
        1,
        "{:?}",
        bench.log
    );
    // An unreadable value without a lease is not a reservation either. The second write-back may take a moment.
    bench.put("{");
    bench.run(Duration::from_secs(2));
    assert_eq!((bench.value(), bench.lease()), (good.clone(), lease));
    assert_eq!(
        bench.warnings("unreadable value: flanneld restored the lease"),
        1,
        "{:?}",
        bench.log
    );
    assert_eq!(bench.warnings("deleted"), 0, "{:?}", bench.log);
}

#[test]
fn a_foreign_address_is_put_back_while_the_own_one_changes() {
    let mut bench = Bench::new();
    let (good, lease) = (bench.value(), bench.lease());
    let new = Ipv4Addr::new(192, 168, 57, 1);
    bench.fates = vec![Fate::Lost];
    bench.coroutine.notify(Notice::Publish(Box::new(attrs(new))));
    bench.put(&good.replace("192.168.56.101", "192.168.56.222"));
    bench.run(Duration::from_secs(10));
    assert_eq!((bench.public(), bench.lease()), (Some(new), lease), "{:?}", bench.log);
    // The address published until now is also ours. If an operator copies such a value meanwhile, it is a reservation, and the new address is published.
    let mut bench = Bench::new();
    let good = bench.value();
    bench.fates = vec![Fate::Lost];
    bench.coroutine.notify(Notice::Publish(Box::new(attrs(new))));
    bench.put(&good);
    bench.run(Duration::from_secs(10));
    assert_eq!((bench.public(), bench.lease()), (Some(new), 0), "{:?}", bench.log);
}

#[test]
fn a_lost_write_back_does_not_wait_a_minute() {
    for fate in [Fate::Lost, Fate::Done] {
        let mut bench = Bench::new();
        let (good, lease) = (bench.value(), bench.lease());
        bench.fates = vec![fate];
        bench.put("{");
        bench.run(Duration::from_secs(8));
        assert_eq!((bench.value(), bench.lease()), (good, lease));
    }
}

#[test]
fn repeated_edits_are_undone_with_growing_pauses() {
    let mut bench = Bench::new();
    let writes = bench.store.writes;
    for _ in 0..600 {
        bench.put("{");
        bench.run(Duration::from_secs(1));
    }
    let ours = bench.store.writes - writes - 600;
    assert!((5..25).contains(&ours), "{ours} write-backs in ten minutes");
}

#[test]
fn manual_reservation_is_logged_once() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        let value = bench.value();
        bench.put(&value);
        bench.run(Duration::from_secs(1));
        assert_eq!(bench.lease(), 0);
    }
    assert_eq!(
        bench.warnings("From now on, the lease is a reservation of this node"),
        1,
        "{:?}",
        bench.log
    );
    assert_eq!(bench.log.len(), 1, "{:?}", bench.log);
}

#[test]
fn deleted_key_is_restored_on_its_lease_and_logged() {
    let mut bench = Bench::new();
    let lease = bench.lease();
    let key = bench.key.clone();
    bench.store.delete(&key, bench.now);
    bench.run(Duration::from_secs(1));
    assert_eq!((bench.lease(), bench.store.leases.len()), (lease, 1));
    assert_eq!(
        bench.warnings("was deleted from the store: flanneld restored it"),
        1,
        "{:?}",
        bench.log
    );
}
