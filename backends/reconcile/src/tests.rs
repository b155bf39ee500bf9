//! Tests of the loop with the fake kernel and a paused clock.

mod encrypting;

use super::questions::KernelAudit;
use super::*;
use ipnet::IpNet;
use netlink::kernel_refusal;
use netstate::blackhole;
use netstate::tests::fake::FakeKernel;
use netstate::{LinkKind, LinkName, RouteKind, RouteSpec, Scope, Value};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use subnet_lease::{Kinds, Lease, LeaseAttrs, Peer, Term};
use tokio_util::sync::CancellationToken;
use types::Addresses;
use types::Errno;
use types::Subnets;

/// One route for each lease, like host-gw.
struct Routes {
    scope: Scope,
    device: Option<LinkName>,
}

fn routes() -> Routes {
    let scope = Scope {
        links: Vec::new(),
        networks: Subnets::V4("10.244.0.0/16".parse().unwrap()),
        own: subnets(1),
        former: None,
        protocol: 241,
        checksum_offload: false,
    };
    Routes { scope, device: None }
}

fn subnets(n: u8) -> Subnets {
    Subnets::V4(format!("10.244.{n}.0/24").parse().unwrap())
}

fn key(n: u8) -> Key {
    Key::Route(IpNet::V4(format!("10.244.{n}.0/24").parse().unwrap()), 0)
}

fn table(peers: impl IntoIterator<Item = (u8, u8)>) -> LeaseTable {
    let lease = |(n, ip)| Lease {
        subnets: subnets(n),
        attrs: LeaseAttrs { public_ip: Some([192, 168, 56, ip].into()), ..LeaseAttrs::default() },
        term: Term::Leased,
        since: i64::from(n),
    };
    LeaseTable::of(peers.into_iter().map(lease), BTreeSet::new())
}

impl Plan for Routes {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Any
    }

    fn base(&self, _facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        if let Some(name) = self.device {
            state.set(Key::Link(name), Value::Link(Box::new(tunnel())));
        }
        state
    }

    fn of_peer(&self, peer: &Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
        let dev = LinkName::parse("eth0").unwrap();
        let route = RouteSpec {
            via: Some(peer.public_ip),
            dev,
            onlink: false,
            kind: RouteKind::Unicast,
            scope: 0,
            protocol: 241,
        };
        vec![(Key::Route(peer.subnet, 0), Value::Route(route))]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(facts.underlay.mtu)
    }
}

fn underlay() -> Underlay {
    let addresses = Addresses::V4([192, 168, 56, 1].into());
    Underlay {
        index: 2,
        name: "eth0".into(),
        mtu: 1500,
        addresses,
        public: addresses,
        local: Vec::new(),
        links: Vec::new(),
    }
}

fn tunnel() -> netstate::object::link::LinkSpec {
    let kind = LinkKind::Tun { held: true };
    netstate::object::link::LinkSpec {
        kind,
        mac: None,
        mtu: 1450,
        up: true,
        accept_ra: None,
        checksum_offload: None,
    }
}

/// The earlier backend's device goes in the first pass that creates the replacement, and stays if
/// the kernel cannot create it.
#[test]
fn an_earlier_backends_device_stays_until_there_is_another() {
    paused(async {
        let name = |text| LinkName::parse(text).unwrap();
        let (old, new) = (name("flannel.1"), name("flannel.ipip"));
        for refused in [true, false] {
            let kernel = FakeKernel::default();
            kernel.world().state.set(Key::Link(old), Value::Link(Box::new(tunnel())));
            if refused {
                kernel.world().foreign.insert(Key::Link(new));
            }
            let mut plan = Routes { device: Some(new), ..routes() };
            plan.scope.links = vec![new, old];
            let joined = Reconciler::join(
                Arc::new(plan),
                Box::new(kernel.clone()),
                &underlay(),
                &table([(2, 2)]),
                Options::default(),
            )
            .await;
            assert_eq!(joined.is_err(), refused);
            let found: Vec<bool> =
                [old, new].map(|name| kernel.world().state.link(name).is_some()).into();
            assert_eq!(found, [refused, !refused]);
        }
    });
}

/// The clock is paused, so waiting takes no time.
struct Running {
    kernel: FakeKernel,
    leases: watch::Sender<Arc<LeaseTable>>,
    underlay: watch::Sender<Underlay>,
    out: watch::Receiver<Announced>,
    progress: Arc<Progress>,
    audit: KernelAudit,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn start(kernel: &FakeKernel, leases: LeaseTable) -> Running {
    start_with(kernel, routes(), leases, false).await
}

async fn start_with(
    kernel: &FakeKernel,
    plan: Routes,
    leases: LeaseTable,
    blackhole: bool,
) -> Running {
    let options = Options { audit: None, blackhole };
    let reconciler =
        Reconciler::join(Arc::new(plan), Box::new(kernel.clone()), &underlay(), &leases, options)
            .await
            .unwrap();
    let (progress, audit) = (reconciler.progress(), reconciler.kernel_audit());
    let (leases, leases_seen) = watch::channel(Arc::new(leases));
    let (underlay, underlay_seen) = watch::channel(underlay());
    let (announcements, out) = watch::channel(announced(1500));
    let stop = CancellationToken::new();
    let inputs = Inputs { leases: leases_seen, underlay: underlay_seen, stop: stop.clone() };
    Running {
        kernel: kernel.clone(),
        leases,
        underlay,
        out,
        progress,
        audit,
        stop,
        task: tokio::spawn(reconciler.run(inputs, announcements)),
    }
}

fn announced(mtu: u32) -> Announced {
    Announced { backend: "x".into(), data: None, v6_data: None, mtu }
}

async fn ran(leases: LeaseTable) -> FakeKernel {
    let kernel = FakeKernel::default();
    start(&kernel, leases).await.end().await;
    kernel
}

/// The kernel is empty.
async fn started(peers: impl IntoIterator<Item = (u8, u8)>) -> Running {
    let running = start(&FakeKernel::default(), table(peers)).await;
    running.wait().await;
    running
}

impl Running {
    async fn wait(&self) {
        sleep(Duration::from_secs(30)).await;
    }

    async fn lease(&self, leases: LeaseTable) {
        self.leases.send_replace(Arc::new(leases));
        self.wait().await;
    }

    /// Another program deletes the route to the subnet of peer `n`.
    fn lose(&self, n: u8) {
        self.kernel.modify(|world| drop(world.state.0.remove(&key(n))));
    }

    fn passes(&self) -> u64 {
        self.progress.snapshot().passes
    }

    #[track_caller]
    fn is_done(&self) {
        let facts = Facts {
            underlay: underlay(),
            on_link: BTreeSet::new(),
            accepted_macs: BTreeMap::new(),
        };
        let want = Desired::whole(&routes(), &self.leases.borrow(), &facts).state;
        assert_eq!(self.kernel.world().state, want);
        assert!(self.progress.snapshot().in_sync);
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn paused<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

proptest! {

    #[test]
    fn the_loop_converges_after_any_finite_faults(
        first in proptest::collection::btree_map(2u8..12, 2u8..20, 0..8),
        second in proptest::collection::btree_map(2u8..12, 2u8..20, 0..8),
        faults in proptest::collection::vec(any::<bool>(), 0..40),
        vandal in proptest::collection::vec(2u8..12, 0..4),
    ) {
        paused(async move {
            let kernel = FakeKernel::default();
            let running = start(&kernel, table(first)).await;
            kernel.world().faults = faults.into();
            running.leases.send_replace(Arc::new(table(second.clone())));
            for n in vandal {
                running.lose(n);
                sleep(Duration::from_millis(30)).await;
            }
            // A first pass may delay deletions for a minute.
            sleep(Duration::from_secs(300)).await;
            running.is_done();
            let (passes, writes) = (running.passes(), kernel.world().writes);
            sleep(Duration::from_secs(3600)).await;
            assert_eq!((running.passes(), kernel.world().writes), (passes, writes));
            running.end().await;
            // A warm start writes nothing.
            kernel.world().faults.clear();
            start(&kernel, table(second)).await.end().await;
            assert_eq!(kernel.world().writes, writes);
        });
    }
}

/// What happens between two runs of the daemon or during a run.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The flag is the option for blackhole routes.
    Restart(bool),
    /// Deletes our blackhole route.
    Delete,
    /// Adds Go flannel's blackhole route.
    Go,
    /// So many calls to the fake kernel fail.
    Fail(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<bool>().prop_map(Event::Restart),
        Just(Event::Delete),
        Just(Event::Go),
        (1u8..4).prop_map(Event::Fail)
    ]
}

proptest! {

    #[test]
    fn the_blackhole_exists_exactly_with_the_flag(peers in proptest::collection::btree_map(2u8..12, 2u8..20, 0..4), events in proptest::collection::vec(event(), 0..8)) {
        paused(async move {
            let kernel = FakeKernel::default();
            let (ours, gos) = (Key::Route(subnets(1).nets().next().unwrap(), blackhole::METRIC), key(1));
            let dead = |protocol| RouteSpec { via: None, dev: LinkName::default(), onlink: false, kind: RouteKind::Blackhole, scope: 0, protocol };
            // An operator's route to another destination.
            kernel.world().leftovers.insert(key(50), dead(3));
            let (mut flag, mut left) = (false, false);
            let mut running = start(&kernel, table(peers.clone())).await;
            for event in events {
                match event {
                    Event::Restart(with) => {
                        flag = with;
                        running.end().await;
                        kernel.world().faults.clear();
                        running = start_with(&kernel, routes(), table(peers.clone()), with).await;
                    }
                    Event::Delete => kernel.modify(|world| drop(world.state.0.remove(&ours))),
                    Event::Go => {
                        left = true;
                        kernel.modify(|world| { world.leftovers.insert(gos, dead(3)); });
                    }
                    Event::Fail(times) => kernel.modify(|world| world.faults.extend(vec![true; usize::from(times)])),
                }
                running.wait().await;
                left &= !flag;
                let world = kernel.world();
                prop_assert_eq!(world.state.0.get(&ours).cloned(), flag.then(|| Value::Route(dead(241))));
                prop_assert_eq!(world.leftovers.contains_key(&gos), left, "replaced with the flag, left alone without it");
                prop_assert!(world.leftovers.contains_key(&key(50)));
                prop_assert_eq!(world.state.0.len(), peers.len() + usize::from(flag));
            }
            running.end().await;
            Ok(())
        })?;
    }
}

/// A blackhole route of Go flannel for a podCIDR of another length lies inside the present subnets.
#[test]
fn blackhole_of_a_former_subnet_swallows_no_pods() {
    paused(async {
        let kernel = FakeKernel::default();
        let stays = ["10.244.1.7/32", "10.244.2.0/25"];
        for net in ["10.244.1.0/25", "10.244.1.192/26"].into_iter().chain(stays) {
            let dead = RouteSpec {
                via: None,
                dev: LinkName::default(),
                onlink: false,
                kind: RouteKind::Blackhole,
                scope: 0,
                protocol: 3,
            };
            let key = Key::Route(net.parse().unwrap(), 0);
            kernel.world().leftovers.insert(key, dead);
        }
        let running = start_with(&kernel, routes(), table([(2, 2)]), true).await;
        running.wait().await;
        let left: Vec<_> = kernel.world().leftovers.keys().copied().collect();
        assert_eq!(left, stays.map(|net| Key::Route(net.parse().unwrap(), 0)));
        running.end().await;
    });
}

#[test]
fn repairs_are_counted_apart_from_changes() {
    paused(async {
        let running = started([(2, 2), (3, 3)]).await;
        let counts = || {
            let now = running.progress.snapshot();
            [now.writes, now.repairs]
        };
        running.lease(table([(2, 2), (3, 3), (4, 4)])).await;
        assert_eq!(counts(), [3, 0]);
        running.lose(3);
        running.wait().await;
        assert_eq!(counts(), [4, 1]);
        running.end().await;
    });
}

/// The loop begins with a pass, because inputs may have changed. Its reading is younger than the
/// notifications of what the start wrote.
#[test]
fn start_reads_the_kernel_twice() {
    paused(async {
        let kernel = FakeKernel::default();
        let plan = Routes { device: LinkName::parse("flannel.1"), ..routes() };
        let running = start_with(&kernel, plan, table([(2, 2), (3, 3)]), false).await;
        running.wait().await;
        assert_eq!((running.passes(), kernel.world().reads), (2, 2));
        running.lose(2);
        running.wait().await;
        assert_eq!(running.passes(), 3);
        running.end().await;
    });
}

#[test]
fn lease_changes_need_no_read_of_the_kernel() {
    paused(async {
        let running = started([(2, 2), (3, 3)]).await;
        let reads = || running.kernel.world().reads;
        let (read, passes) = (reads(), running.passes());
        for n in 4..40 {
            running.lease(table((3..n).map(|peer| (peer, n)))).await;
            running.is_done();
        }
        assert_eq!((reads(), running.passes() - passes), (read, 36));
        // Changes by others are noticed, before or after a change of leases.
        running.lose(5);
        running.lease(table((2..30).map(|peer| (peer, 7)))).await;
        running.is_done();
        assert!(reads() > read);
        // After a failed operation the kernel is read again.
        let read = reads();
        running.kernel.world().faults = vec![true].into();
        running.lease(table((2..40).map(|peer| (peer, 7)))).await;
        running.is_done();
        assert!(reads() > read);
        running.end().await;
    });
}

#[test]
fn failed_pass_after_a_change_of_leases_keeps_the_facts() {
    paused(async {
        let running = started([(2, 2)]).await;
        // Two leases of one subnet need a full pass, which cannot read the kernel.
        let dual = Subnets::Both("10.244.3.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap());
        let leases = [subnets(3), dual].map(|subnets| Lease {
            subnets,
            attrs: LeaseAttrs {
                public_ip: Some([192, 168, 56, 3].into()),
                ..LeaseAttrs::default()
            },
            term: Term::Leased,
            since: 3,
        });
        running.kernel.world().faults = vec![true].into();
        running.leases.send_replace(Arc::new(LeaseTable::of(leases, BTreeSet::new())));
        let seen = running.audit.look().await;
        assert!(running.kernel.world().faults.is_empty() && seen.is_ok(), "{seen:?}");
        running.end().await;
    });
}

#[test]
fn objects_of_an_unreadable_lease_are_removed_with_its_key() {
    paused(async {
        let kernel = ran(table([(2, 2), (3, 3)])).await;
        // A loop that starts now knows only the key of the unreadable lease.
        let blank = |peers: &[(u8, u8)]| {
            let readable = table(peers.iter().copied());
            LeaseTable::of(
                readable.shared_leases().cloned().collect::<Vec<_>>(),
                [subnets(3)].into(),
            )
        };
        let running = start(&kernel, blank(&[(2, 2)])).await;
        running.wait().await;
        running.lease(blank(&[(2, 2), (4, 4)])).await;
        assert!(kernel.world().state.0.contains_key(&key(3)));
        running.lease(table([(2, 2), (4, 4)])).await;
        running.is_done();
        running.end().await;
    });
}

#[test]
fn a_burst_of_changes_takes_few_passes() {
    paused(async {
        let running = started([]).await;
        let before = running.passes();
        for n in 0..5000u32 {
            let ip = u8::try_from(n % 200).unwrap() + 2;
            running.leases.send_replace(Arc::new(table((2..60).map(|peer| (peer, ip)))));
            tokio::task::yield_now().await;
        }
        running.wait().await;
        assert!(running.passes() - before <= 4);
        running.is_done();
        running.end().await;
    });
}

#[test]
fn a_conflict_does_not_affect_other_peers_and_ends_with_its_cause() {
    paused(async {
        let kernel = FakeKernel::default();
        kernel.world().foreign.insert(key(3));
        let running = start(&kernel, table([(2, 2), (3, 3), (4, 4)])).await;
        running.wait().await;
        assert_eq!(kernel.world().state.0.len(), 2);
        let now = running.progress.snapshot();
        assert!(
            now.in_sync && now.trouble.is_none(),
            "one peer does not hold the node back: {}",
            now.trouble_text()
        );
        let named: Vec<_> = now
            .failed_peers
            .iter()
            .map(|failed| (failed.peer.subnet.to_string(), failed.why.why.clone()))
            .collect();
        assert_eq!(named, [("10.244.3.0/24".to_owned(), kernel_refusal(Errno(libc::EEXIST)))]);
        // The longest pause between attempts is five seconds.
        kernel.world().foreign.clear();
        sleep(Duration::from_secs(7)).await;
        running.is_done();
        assert_eq!(running.progress.snapshot().failed_peers, []);
        // Repairs after changes by another program are still counted. Retries of the failed peer are not.
        kernel.world().foreign.insert(key(3));
        running.lose(3);
        running.wait().await;
        let repairs = running.progress.snapshot().repairs;
        running.lose(2);
        running.wait().await;
        let now = running.progress.snapshot();
        let repaired: Vec<_> =
            now.repaired.lately(Instant::now()).into_iter().map(|(key, _)| key).collect();
        assert_eq!((now.repairs, repaired), (repairs + 1, vec![key(2)]));
        kernel.world().foreign.clear();
        sleep(Duration::from_secs(7)).await;
        // If all of several peers fail, the cause is on this host.
        running.lease(table([])).await;
        kernel.world().foreign = [key(3), key(4)].into();
        running.lease(table([(3, 3), (4, 4)])).await;
        has_trouble_with("10.244.3.0/24", &running);
        running.end().await;
    });
}

/// The cause is on this host, not at one peer.
fn has_trouble_with(subnet: &str, running: &Running) {
    let now = running.progress.snapshot();
    assert!(
        !now.in_sync && now.trouble_text().contains(subnet) && now.failed_peers.is_empty(),
        "{now:?}"
    );
}

#[test]
fn a_local_cause_holds_the_node_back_even_for_one_peer() {
    paused(async {
        let running = started([(2, 2), (3, 3)]).await;
        running.kernel.world().faults = vec![true; 1000].into();
        let leases = table([(2, 2), (3, 3), (4, 4)]);
        running.leases.send_replace(Arc::new(leases));
        sleep(Duration::from_millis(10)).await;
        has_trouble_with("10.244.4.0/24", &running);
        running.kernel.world().faults.clear();
        running.wait().await;
        running.is_done();
        running.end().await;
    });
}

#[test]
fn a_first_pass_delays_many_deletions_for_a_minute() {
    paused(async {
        let kernel = ran(table((2..22).map(|n| (n, n)))).await;
        let running = start(&kernel, table((2..12).map(|n| (n, 100)))).await;
        sleep(Duration::from_secs(55)).await;
        let state = kernel.world().state.clone();
        assert_eq!(state.0.len(), 20, "nothing is deleted yet");
        sleep(Duration::from_secs(6)).await;
        running.is_done();
        let updated = kernel.world().state.0[&key(5)].clone();
        assert_eq!(state.0[&key(5)], updated, "existing routes are updated at once");
        // Later deletions are not delayed: the feed has its own hold-down.
        running.leases.send_replace(Arc::new(table([])));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(kernel.world().state.0.len(), 0);
        running.end().await;
    });
}

#[test]
fn a_first_pass_stops_waiting_once_few_deletions_remain() {
    paused(async {
        let kernel = ran(table((2..22).map(|n| (n, n)))).await;
        let running = start(&kernel, table([])).await;
        sleep(Duration::from_secs(5)).await;
        // Two of twenty deletions are not delayed.
        running.leases.send_replace(Arc::new(table((2..20).map(|n| (n, n)))));
        sleep(Duration::from_secs(1)).await;
        running.is_done();
        running.end().await;
    });
}

#[test]
fn the_underlays_mtu_is_announced() {
    paused(async {
        let mut running = started([]).await;
        running.underlay.send_modify(|underlay| underlay.mtu = 9000);
        running.out.changed().await.unwrap();
        assert_eq!(running.out.borrow().mtu, 9000);
        running.end().await;
    });
}

#[test]
fn a_conflict_is_not_a_hot_loop() {
    paused(async {
        let running = started([(2, 2)]).await;
        let before = running.passes();
        for _ in 0..1000 {
            running.lose(2);
            sleep(Duration::from_millis(10)).await;
        }
        let passes = running.passes() - before;
        assert!(passes < 80, "{passes}");
        running.wait().await;
        running.is_done();
        running.end().await;
    });
}

#[test]
fn an_unreadable_kernel_fails_the_start() {
    paused(async {
        let kernel = FakeKernel::default();
        kernel.world().faults = vec![true; 100].into();
        let result = Reconciler::join(
            Arc::new(routes()),
            Box::new(kernel.clone()),
            &underlay(),
            &table([]),
            Options::default(),
        )
        .await;
        let error = result.err().unwrap();
        assert_eq!(error.why, kernel_refusal(Errno(libc::EIO)), "{error}");
    });
}

#[test]
fn kernel_audit_reports_the_current_state() {
    paused(async {
        let running = start(&FakeKernel::default(), table([(2, 2), (3, 3)])).await;
        let (kernel, audit) = (running.kernel.clone(), running.audit.clone());
        let seen = audit.look().await.unwrap();
        assert_eq!((&seen.want, seen.holders.len(), seen.owners[&key(3)]), (&seen.have, 2, 1));
        running.wait().await;
        // This change has no notification, so only a read finds it. An audit repairs nothing.
        kernel.world().state.0.remove(&key(2));
        let writes = kernel.world().writes;
        for _ in 0..2 {
            let seen = audit.look().await.unwrap();
            assert_eq!(
                (seen.want.0.len(), seen.have.0.len(), kernel.world().writes),
                (2, 1, writes)
            );
        }
        // New leases are applied before an audit is answered.
        let leases = table([(2, 2), (3, 3), (4, 4)]);
        running.leases.send_replace(Arc::new(leases));
        let seen = audit.look().await.unwrap();
        assert!(seen.want.0.len() == 3 && seen.have.0.contains_key(&key(4)));
        // If a read fails, the audit fails. The next audit reads the kernel again.
        kernel.world().faults = [true].into();
        assert!(audit.look().await.is_err());
        assert!(audit.look().await.is_ok());
        // An abandoned audit reads nothing.
        let reads = kernel.world().reads;
        drop(tokio::time::timeout(Duration::ZERO, audit.look()).await);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(kernel.world().reads, reads);
        running.end().await;
        assert!(audit.look().await.is_err());
    });
}

/// Another program continually changes the kernel state, so that the loop is never idle.
#[test]
fn kernel_audit_is_answered_during_a_conflict() {
    paused(async {
        let running = started([(2, 2)]).await;
        for _ in 0..20 {
            let vandalism = async {
                loop {
                    running.lose(2);
                    sleep(Duration::from_millis(3)).await;
                }
            };
            tokio::select! {
                seen = running.audit.look() => drop(seen.unwrap()),
                () = vandalism => {}
                () = sleep(Duration::from_secs(2)) => panic!("no answer"),
            }
        }
        running.end().await;
    });
}
