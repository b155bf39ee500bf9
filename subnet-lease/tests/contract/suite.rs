//! The cases. Each gets a store of its own.

use crate::bed::{Bed, PREFIX};
use futures_util::StreamExt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::{Claim, Error, Held, HostFacts, Lost, SubnetManager};
use subnet_lease::{Dual, Lease, LeaseAttrs, LeaseEvent, LeaseTable, NetworkConfig, NodeId, RawJson, Subnets, Term, wire};
use tokio::sync::watch;

const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;
const DEADLINE: Duration = Duration::from_secs(20);

fn claim(name: &str, last: u8) -> Claim {
    Claim {
        node: NodeId {
            id: format!("id-{name}"),
            name: name.to_owned(),
            instance: format!("{name}-{:x}", rand::random::<u64>()),
            ..NodeId::default()
        },
        public: Dual::V4(Ipv4Addr::new(192, 168, 56, last)),
        host: HostFacts { advice: "use --iface=enp0s8".to_owned(), ..HostFacts::default() },
    }
}

fn attrs(claim: &Claim) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: claim.public.v4().copied(),
        public_ipv6: claim.public.v6().copied(),
        backend: "vxlan".into(),
        data: Some(
            RawJson::parse(&format!(r#"{{"VNI":1,"VtepMAC":"0a:00:00:00:00:{:02x}"}}"#, claim.public.v4().map_or(1, |ip| ip.octets()[3]))).unwrap(),
        ),
        ..LeaseAttrs::default()
    }
}

async fn config(manager: &Arc<dyn SubnetManager>) -> NetworkConfig {
    manager.network_config().await.unwrap()
}

async fn acquire(manager: &Arc<dyn SubnetManager>, claim: &Claim) -> Result<Lease, Error> {
    let config = config(manager).await;
    let (state, _keep) = watch::channel(Held::default());
    tokio::time::timeout(DEADLINE, manager.acquire(claim, &config, &attrs(claim), &state)).await.expect("no lease in time")
}

/// A held lease: runs until it is dropped.
struct Holding {
    task: tokio::task::JoinHandle<Lost>,
    attrs: watch::Sender<LeaseAttrs>,
    held: watch::Receiver<Held>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn hold(manager: &Arc<dyn SubnetManager>, claim: &Claim) -> Holding {
    let config = config(manager).await;
    let (attrs_out, attrs_in) = watch::channel(attrs(claim));
    let (state, held) = watch::channel(Held::default());
    let (manager, claim) = (manager.clone(), claim.clone());
    let task = tokio::spawn(async move { manager.hold(&claim, &config, attrs_in, state).await });
    Holding { task, attrs: attrs_out, held }
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A table that follows a manager's watch.
struct Follower {
    table: Arc<std::sync::Mutex<(LeaseTable, usize)>>,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    fn of(manager: Arc<dyn SubnetManager>) -> Self {
        let table = Arc::new(std::sync::Mutex::new((LeaseTable::default(), 0)));
        let shared = table.clone();
        let task = tokio::spawn(async move {
            let mut events = manager.watch();
            while let Some(event) = events.next().await {
                let mut table = shared.lock().unwrap();
                table.1 += usize::from(matches!(event, LeaseEvent::Reset { .. }));
                table.0.apply(event);
            }
        });
        Self { table, task }
    }

    fn has(&self, key: &str) -> bool {
        self.table.lock().unwrap().0.get(&wire::parse_key(key).unwrap()).is_some()
    }

    fn len(&self) -> usize {
        self.table.lock().unwrap().0.len()
    }

    fn resets(&self) -> usize {
        self.table.lock().unwrap().1
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn key(lease: &Lease) -> String {
    wire::render_key(&lease.subnets)
}

fn subnets(text: &str) -> Subnets {
    wire::parse_key(text).unwrap()
}

pub async fn configuration_is_waited_for(bed: Bed) {
    let manager = bed.manager();
    let Err(Error::Unavailable(text)) = manager.network_config().await else { panic!("there is no configuration") };
    assert!(text.contains("config") && text.contains("Network"), "{text}");
    for bad in ["{", r#"{"Network":"10.5.0.0/33"}"#, "", "null"] {
        bed.configure(if bad.is_empty() { " " } else { bad });
        assert!(matches!(manager.network_config().await, Err(Error::Unavailable(_))), "{bad}");
    }
    bed.configure(CONFIG);
    assert_eq!(config(&manager).await.backend, "vxlan");
}

pub async fn a_new_node_gets_a_lease_that_go_can_read(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let follower = Follower::of(bed.manager());
    let lease = acquire(&manager, &one).await.unwrap();
    let value = bed.get(&key(&lease)).unwrap();
    let go = r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:65"},"NodeID":{"id":"id-one","name":"one","#;
    assert!(value.starts_with(go), "{value}");
    assert_eq!(bed.lease_of(&key(&lease)) != 0, lease.term == Term::Leased);
    eventually("the watch tells", || follower.has(&key(&lease))).await;
}

pub async fn a_restart_keeps_the_lease(bed: Bed) {
    bed.configure(CONFIG);
    let first = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let manager = bed.manager();
    let stored = manager.stored(&claim("one", 101), &config(&manager).await).await.unwrap().unwrap();
    assert_eq!(stored.data, first.attrs.data);
    let again = acquire(&manager, &claim("one", 101)).await.unwrap();
    assert_eq!((again.subnets, bed.keys().len()), (first.subnets, 1));
}

pub async fn nodes_get_distinct_subnets(bed: Bed) {
    bed.configure(CONFIG);
    let mut seen = Vec::new();
    for last in 1..=6 {
        seen.push(acquire(&bed.manager(), &claim(&format!("n{last}"), last)).await.unwrap().subnets);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6);
}

pub async fn a_moved_node_keeps_its_subnet(bed: Bed) {
    bed.configure(CONFIG);
    let first = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let mut moved = claim("one", 102);
    moved.host.previous = Some(first.subnets);
    let again = acquire(&bed.manager(), &moved).await.unwrap();
    assert_eq!(again.subnets, first.subnets);
    assert!(bed.get(&key(&again)).unwrap().contains("192.168.56.102"));
}

pub async fn one_address_two_nodes_is_refused(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 15));
    acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    let other = bed.manager();
    let Err(Error::Refused(text)) = acquire(&other, &claim("two", 15)).await else { panic!("must be refused") };
    for part in ["192.168.56.15", "one", "id-one", "two", "--iface=enp0s8", "10.0.2.15"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(matches!(other.stored(&claim("two", 15), &config(&other).await).await, Err(Error::Refused(_))));
    assert_eq!(bed.keys().len(), 1);
}

pub async fn a_clone_is_refused(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    let Err(Error::Refused(text)) = acquire(&bed.manager(), &claim("one", 102)).await else { panic!("must be refused") };
    assert!(text.contains("machine-id") && text.contains("--node-id") && text.contains("192.168.56.101"), "{text}");
}

pub async fn what_subnet_env_names_is_wished_for(bed: Bed) {
    bed.configure(CONFIG);
    let mut one = claim("one", 101);
    one.host.previous = Some(subnets("10.5.77.0-24"));
    assert_eq!(key(&acquire(&bed.manager(), &one).await.unwrap()), "10.5.77.0-24");
    let mut two = claim("two", 102);
    two.host.previous = Some(subnets("10.9.77.0-24"));
    assert!(key(&acquire(&bed.manager(), &two).await.unwrap()).starts_with("10.5."));
}

/// In a network that contains the nodes themselves a new lease holds none of them, nor their network; not even a wished-for one.
pub async fn no_lease_holds_a_node(bed: Bed) {
    bed.configure(r#"{"Network":"192.168.0.0/16","SubnetMin":"192.168.55.0","SubnetMax":"192.168.58.0"}"#);
    let value = |public: &str| format!(r#"{{"PublicIP":"{public}","PublicIPv6":null}}"#);
    bed.put("192.168.99.0-24", &value("192.168.55.9"));
    let manager = bed.manager();
    let mut first = claim("n1", 1);
    first.host.underlay = vec!["192.168.57.0/24".parse().unwrap()];
    first.host.previous = Some(Dual::V4("192.168.55.0/24".parse().unwrap()));
    // 55 has another node, 56 this one, 57 is the underlay's.
    assert_eq!(key(&acquire(&manager, &first).await.unwrap()), "192.168.58.0-24");
}

pub async fn a_full_pool_is_waited_for(bed: Bed) {
    bed.configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0"}"#);
    acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let second = acquire(&bed.manager(), &claim("two", 102)).await.unwrap();
    let manager = bed.manager();
    let config = config(&manager).await;
    let (state, held) = watch::channel(Held::default());
    let waiting = tokio::spawn(async move {
        let three = claim("three", 103);
        manager.acquire(&three, &config, &attrs(&three), &state).await
    });
    eventually("the reason is told", || held.borrow().trouble.as_ref().is_some_and(|text| text.contains("out of subnets"))).await;
    bed.delete(&key(&second));
    let third = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(third.subnets, second.subnets);
}

pub async fn a_go_lease_is_adopted_when_the_underlay_was_named(bed: Bed) {
    bed.configure(CONFIG);
    bed.put(
        "10.5.9.0-24",
        r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}}"#,
    );
    let Err(Error::Refused(text)) = acquire(&bed.manager(), &claim("one", 101)).await else { panic!("nothing says that it is ours") };
    assert!(text.contains("Go flannel"), "{text}");
    let mut named = claim("one", 101);
    named.host.named = true;
    let manager = bed.manager();
    let stored = manager.stored(&named, &config(&manager).await).await.unwrap().unwrap();
    assert!(stored.data.unwrap().as_str().contains("aa:bb:cc:dd:ee:ff"));
    assert_eq!(key(&acquire(&manager, &named).await.unwrap()), "10.5.9.0-24");
}

pub async fn unknown_fields_survive(bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.9.0-24", r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"Future":{"a":[1e999]},"Rack":"7 & 8"}"#);
    let mut named = claim("one", 101);
    named.host.named = true;
    let lease = acquire(&bed.manager(), &named).await.unwrap();
    let value = bed.get(&key(&lease)).unwrap();
    assert!(value.contains(r#""Future":{"a":[1e999]},"Rack":"7 \u0026 8","NodeID""#), "{value}");
}

pub async fn hostile_keys_change_nothing(bed: Bed) {
    bed.configure(CONFIG);
    let lease = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 1).await;
    let good = bed.get(&key(&lease)).unwrap();
    for bad in ["{", "null null", "[]", r#"{"PublicIP":7}"#, r#"{"PublicIP":null}"#, "\u{0}"] {
        bed.put(&key(&lease), bad);
    }
    for (at, name) in ["nonsense", "10.5.3.0", "10.5.3.1-24", "10.5.3.0-24.bak", "10.5.3.0-024"].iter().enumerate() {
        bed.put(name, if at % 2 == 0 { "{" } else { &good });
    }
    if let Bed::Dir(folder) = &bed {
        // Whoever opens a pipe for reading waits for a writer.
        let pipe = folder.path().join("subnets/10.5.201.0-24");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    bed.put("10.5.200.0-24", r#"{"PublicIP":"192.168.56.200","PublicIPv6":null}"#);
    eventually("the watch goes on", || follower.has("10.5.200.0-24")).await;
    assert!(follower.has(&key(&lease)), "an unreadable value is no removal");
    assert_eq!(follower.len(), 2);
    // Whoever starts now knows that there is something, and nothing more.
    let newcomer = bed.manager();
    let Some(LeaseEvent::Reset { leases, unreadable }) = newcomer.watch().next().await else { panic!("begins with a list") };
    // The pipe is a key that is there, too.
    assert_eq!((leases.len(), unreadable.len()), (1, if matches!(bed, Bed::Dir(_)) { 2 } else { 1 }));
}

/// A key of bytes that are no UTF-8 is nobody's lease, but told of: by the watch, by the list of who starts later, and until it is gone.
pub async fn keys_that_are_no_text_are_counted(bed: Bed) {
    bed.configure(CONFIG);
    let value = r#"{"PublicIP":"192.168.56.200","PublicIPv6":null}"#;
    bed.put("10.5.200.0-24", value);
    let manager = bed.manager();
    let follower = Follower::of(manager.clone());
    eventually("the list is in", || follower.len() == 1).await;
    let known = |manager: &Arc<dyn SubnetManager>| manager.counters().unreadable_keys().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    let odd = b"10.5.3.0-24\xff";
    bed.put_bytes(odd, true);
    eventually("the watch tells of it", || known(&manager) == ["10.5.3.0-24\\xff"]).await;
    // Who starts now finds it in the list; that it is the newest key does no harm.
    let late = bed.manager();
    let later = Follower::of(late.clone());
    eventually("the list tells of it", || known(&late) == ["10.5.3.0-24\\xff"]).await;
    bed.put_bytes(odd, false);
    eventually("it is gone", || known(&manager).is_empty() && known(&late).is_empty()).await;
    bed.put("10.5.201.0-24", value);
    eventually("the watches go on", || follower.len() == 2 && later.len() == 2).await;
    assert_eq!((follower.resets(), later.resets()), (1, 1));
}

pub async fn an_unreadable_key_of_ours_is_ours(bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.9.0-24", "{broken");
    let mut one = claim("one", 101);
    one.host.previous = Some(subnets("10.5.9.0-24"));
    assert_eq!(key(&acquire(&bed.manager(), &one).await.unwrap()), "10.5.9.0-24");
}

pub async fn attributes_are_republished(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let mut changed = attrs(&one);
    changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
    holding.attrs.send_replace(changed);
    eventually("the new address is stored", || bed.get(&key(&lease)).is_some_and(|value| value.contains("192.168.56.201"))).await;
    eventually("it is told", || {
        holding.held.borrow().lease.as_ref().is_some_and(|lease| lease.attrs.public_ip == Some(Ipv4Addr::new(192, 168, 56, 201)))
    })
    .await;
}

pub async fn a_deleted_key_comes_back(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    for _ in 0..3 {
        // Deleted only once the holder watches: it proves its key first.
        eventually("it is held", || holding.held.borrow().lease.is_some()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        bed.delete(&key(&lease));
        eventually("the key is back", || bed.get(&key(&lease)).is_some()).await;
    }
    assert!(!holding.task.is_finished());
}

pub async fn a_taken_key_is_lost(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let mut holding = hold(&manager, &one).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    bed.put(&key(&lease), r#"{"PublicIP":"192.168.56.222","PublicIPv6":null}"#);
    let lost = tokio::time::timeout(DEADLINE, &mut holding.task).await.unwrap().unwrap();
    assert!(matches!(&lost, Lost::Taken(text) if text.contains("192.168.56.222")), "{lost}");
    assert!(bed.get(&key(&lease)).unwrap().contains("192.168.56.222"), "the other's key is left alone");
}

pub async fn dual_stack_grows_and_shrinks(bed: Bed) {
    bed.configure(CONFIG);
    let first = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    bed.configure(DUAL);
    let mut dual = claim("one", 101);
    dual.public = Dual::Both(Ipv4Addr::new(192, 168, 56, 101), "fd00:56::101".parse().unwrap());
    let grown = acquire(&bed.manager(), &dual).await.unwrap();
    assert_eq!((grown.subnets.v4(), grown.subnets.v6().is_some()), (first.subnets.v4(), true));
    assert_eq!(bed.keys(), [key(&grown)]);
    bed.configure(CONFIG);
    let shrunk = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    assert_eq!(shrunk.subnets, first.subnets);
    assert_eq!(bed.keys(), [key(&first)]);
}

pub async fn v6_only_nodes_are_told_apart(bed: Bed) {
    bed.configure(r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}"#);
    let node = |name: &str, last: u16| Claim { public: Dual::V6(std::net::Ipv6Addr::new(0xfd00, 0x56, 0, 0, 0, 0, 0, last)), ..claim(name, 0) };
    let one = acquire(&bed.manager(), &node("one", 1)).await.unwrap();
    let two = acquire(&bed.manager(), &node("two", 2)).await.unwrap();
    assert_ne!(one.subnets, two.subnets);
    assert!(key(&one).starts_with("0.0.0.0-0&fd00:5:"), "{}", key(&one));
    assert!(bed.get(&key(&one)).unwrap().starts_with(r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00:56::1","#));
    assert_eq!(acquire(&bed.manager(), &node("one", 1)).await.unwrap().subnets, one.subnets);
}

pub async fn many_at_once(bed: Bed) {
    bed.configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.24.0"}"#);
    let tasks: Vec<_> = (1..=24u8)
        .map(|last| {
            let manager = bed.manager();
            tokio::spawn(async move { acquire(&manager, &claim(&format!("n{last}"), last)).await.unwrap().subnets })
        })
        .collect();
    let mut seen = Vec::new();
    for task in tasks {
        seen.push(task.await.unwrap());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 24);
    assert_eq!(bed.keys().len(), 24);
}

pub async fn reservations_stay(bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.9.0-24", r#"{"PublicIP":"192.168.56.101","PublicIPv6":null}"#);
    let mut named = claim("one", 101);
    named.host.named = true;
    for _ in 0..2 {
        let manager = bed.manager();
        let lease = acquire(&manager, &named).await.unwrap();
        assert_eq!((key(&lease).as_str(), lease.term), ("10.5.9.0-24", Term::Reserved));
        assert_eq!(bed.lease_of("10.5.9.0-24"), 0);
        assert!(bed.get("10.5.9.0-24").unwrap().contains(r#""lease":"#));
    }
    // Its holder is alive: another node with the address is refused.
    let manager = bed.manager();
    acquire(&manager, &named).await.unwrap();
    let _holding = hold(&manager, &named).await;
    let mut other = claim("two", 101);
    other.host.named = true;
    assert!(matches!(acquire(&bed.manager(), &other).await, Err(Error::Refused(_))));
}

pub async fn an_operator_reserves_by_hand(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_ne!(bed.lease_of(&key(&lease)), 0);
    bed.put(&key(&lease), &bed.get(&key(&lease)).unwrap());
    eventually("it is a reservation of ours", || {
        holding.held.borrow().lease.as_ref().is_some_and(|lease| lease.term == Term::Reserved)
            && bed.get(&key(&lease)).unwrap().contains(r#""lease":"#)
    })
    .await;
    assert_eq!(bed.lease_of(&key(&lease)), 0);
    assert!(!holding.task.is_finished());
}

pub async fn a_foreign_address_by_hand_is_put_back(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    eventually("it is held", || holding.held.borrow().lease.is_some()).await;
    let (good, hangs_on) = (bed.get(&key(&lease)).unwrap(), bed.lease_of(&key(&lease)));
    for bad in [good.replace("192.168.56.101", "192.168.56.222"), "{garbage".to_owned()] {
        bed.put(&key(&lease), &bad);
        eventually("it is as it was", || bed.get(&key(&lease)).unwrap() == good && bed.lease_of(&key(&lease)) == hangs_on).await;
    }
    assert!(!holding.task.is_finished());
}

pub async fn restarts_go_on_with_the_same_lease(mut bed: Bed) {
    bed.configure(CONFIG);
    let lease = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let hangs_on = bed.lease_of(&key(&lease));
    for _ in 0..5 {
        acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
        assert_eq!(bed.lease_of(&key(&lease)), hangs_on);
    }
    // One that somebody made with a short life would end between two renewals.
    let text = bed.etcd().ctl(&["lease", "grant", "300"]);
    let short = text.split_whitespace().nth(1).unwrap().to_owned();
    let path = format!("{PREFIX}/subnets/{}", key(&lease));
    let value = bed.get(&key(&lease)).unwrap();
    bed.etcd().ctl(&["put", &format!("--lease={short}"), &path, &value]);
    acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    assert_ne!(format!("{:x}", bed.lease_of(&key(&lease))), short);
    assert_ne!(bed.lease_of(&key(&lease)), hangs_on);
}

pub async fn a_revoked_lease_comes_back(mut bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let revoked = bed.lease_of(&key(&lease));
    bed.etcd().ctl(&["lease", "revoke", &format!("{revoked:x}")]);
    eventually("the key is back under another lease", || bed.get(&key(&lease)).is_some() && bed.lease_of(&key(&lease)) != revoked).await;
}

pub async fn the_watch_survives_compaction_and_restarts(mut bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.1.0-24", r#"{"PublicIP":"192.168.56.1","PublicIPv6":null}"#);
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 1).await;
    // A restart alone: resumed, not read anew.
    bed.etcd().kill();
    bed.etcd().start();
    bed.put("10.5.2.0-24", r#"{"PublicIP":"192.168.56.2","PublicIPv6":null}"#);
    eventually("it goes on", || follower.len() == 2).await;
    assert_eq!(follower.resets(), 1);
    // Compaction while it was away.
    let frozen = bed.etcd();
    frozen.kill();
    frozen.start();
    let json: serde_json::Value = serde_json::from_str(&frozen.ctl(&["get", "x", "-w", "json"])).unwrap();
    let revision = json["header"]["revision"].as_i64().unwrap();
    frozen.ctl(&["compact", &revision.to_string()]);
    bed.put("10.5.3.0-24", r#"{"PublicIP":"192.168.56.3","PublicIPv6":null}"#);
    bed.delete("10.5.1.0-24");
    eventually("it is correct", || follower.has("10.5.3.0-24") && !follower.has("10.5.1.0-24") && follower.len() == 2).await;
}

pub async fn the_watch_notices_a_restored_store(mut bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.1.0-24", r#"{"PublicIP":"192.168.56.1","PublicIPv6":null}"#);
    let snapshot = bed.etcd().snapshot();
    bed.put("10.5.2.0-24", r#"{"PublicIP":"192.168.56.2","PublicIPv6":null}"#);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 3).await;
    bed.etcd().restore(&snapshot);
    // As many writes as were lost: only their content tells the histories apart.
    for last in [7, 8] {
        bed.put(&format!("10.5.{last}.0-24"), &format!(r#"{{"PublicIP":"192.168.56.{last}","PublicIPv6":null}}"#));
    }
    eventually("our own key is put back", || bed.get(&key(&lease)).is_some()).await;
    eventually("the world is the restored one", || {
        follower.has("10.5.7.0-24") && follower.has("10.5.1.0-24") && !follower.has("10.5.2.0-24") && follower.has(&key(&lease))
    })
    .await;
    assert!(!holding.task.is_finished());
}

/// The key that was newest is there again, and newer than ever, before the watch is: what stands there now tells nothing.
pub async fn the_watch_notices_a_restored_store_that_is_ahead(mut bed: Bed) {
    let value = |last: u8| format!(r#"{{"PublicIP":"192.168.56.{last}","PublicIPv6":null}}"#);
    bed.configure(CONFIG);
    bed.put("10.5.1.0-24", &value(1));
    let snapshot = bed.etcd().snapshot();
    for last in [2, 3] {
        bed.put(&format!("10.5.{last}.0-24"), &value(last));
    }
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 3).await;
    // Away for a while: the watch waits longer between its tries than the writes take.
    bed.etcd().kill();
    tokio::time::sleep(Duration::from_secs(3)).await;
    bed.etcd().restore(&snapshot);
    for last in [7, 8, 3] {
        bed.put(&format!("10.5.{last}.0-24"), &value(last));
    }
    eventually("the world is the restored one", || follower.has("10.5.7.0-24") && follower.has("10.5.3.0-24") && !follower.has("10.5.2.0-24")).await;
}

pub async fn pages_shrink_to_fit_large_values(bed: Bed) {
    bed.configure(CONFIG);
    let big = "x".repeat(1_000_000);
    for last in 1..=70 {
        bed.put(&format!("10.5.{last}.0-24"), &big);
    }
    bed.put("10.5.100.0-24", r#"{"PublicIP":"192.168.56.100","PublicIPv6":null}"#);
    let follower = Follower::of(bed.manager());
    eventually("the one readable lease is seen", || follower.len() == 1).await;
    let lease = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    eventually("the watch goes on", || follower.has(&key(&lease))).await;
}

pub async fn tls_needs_a_ca_alone(bed: Bed) {
    use crate::etcd_server::EtcdServer;
    use subnet_lease::etcd::{EtcdManager, EtcdOptions};
    let Bed::Etcd(plain) = &bed else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authority = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let cert = params.self_signed(&key).unwrap();
        (cert.pem(), rcgen::Issuer::new(params, key))
    };
    let (ca, issuer) = authority("ca");
    let leaf = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let cert = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(path(&format!("{name}.pem")), cert.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    };
    std::fs::write(path("ca.pem"), &ca).unwrap();
    leaf("server");
    leaf("client");
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    for mutual in [false, true] {
        let mut args = vec!["--cert-file".to_owned(), text("server.pem"), "--key-file".to_owned(), text("server.key")];
        if mutual {
            args.extend(["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), text("ca.pem")]);
        }
        let mut server = EtcdServer::new(plain.version).with(&args, true);
        server.start();
        let options =
            EtcdOptions { endpoints: vec![server.endpoint()], prefix: PREFIX.to_owned(), ca: Some(path("ca.pem")), ..EtcdOptions::default() };
        let alone: Arc<dyn SubnetManager> = Arc::new(EtcdManager::new(options.clone()));
        let Err(Error::Unavailable(text_alone)) = alone.network_config().await else { panic!("nothing is configured") };
        assert_eq!(text_alone.contains("etcdctl put"), !mutual, "{text_alone}");
        let with = EtcdOptions { identity: Some((path("client.pem"), path("client.key"))), ..options.clone() };
        let manager: Arc<dyn SubnetManager> = Arc::new(EtcdManager::new(with));
        let reached = async |manager: &Arc<dyn SubnetManager>| matches!(manager.network_config().await, Err(Error::Unavailable(text)) if text.contains("etcdctl put"));
        assert!(reached(&manager).await);
        // Another CA's bundle: refused by name, and accepted again once the files are right.
        let (stranger, _) = authority("stranger");
        std::fs::write(path("ca.pem"), &stranger).unwrap();
        std::fs::File::open(path("ca.pem")).unwrap().set_modified(std::time::SystemTime::now() + Duration::from_secs(2)).unwrap();
        let Err(Error::Unavailable(why)) = manager.network_config().await else { panic!() };
        assert!(why.contains("certificate"), "{why}");
        std::fs::write(path("ca.pem"), format!("{stranger}{ca}")).unwrap();
        std::fs::File::open(path("ca.pem")).unwrap().set_modified(std::time::SystemTime::now() + Duration::from_secs(4)).unwrap();
        assert!(reached(&manager).await);
        std::fs::write(path("ca.pem"), &ca).unwrap();
    }
}

pub async fn passwords(mut bed: Bed) {
    use subnet_lease::etcd::{EtcdManager, EtcdOptions};
    bed.configure(CONFIG);
    let server = bed.etcd();
    server.kill();
    // Tokens that expire within the test.
    let mut server = crate::etcd_server::EtcdServer::new(server.version).with(&["--auth-token-ttl=3".to_owned()], false);
    server.start();
    server.ctl(&["put", &format!("{PREFIX}/config"), CONFIG]);
    for args in [
        &["user", "add", "root:rootpw"][..],
        &["role", "add", "flannel"],
        &["role", "grant-permission", "flannel", "read", &format!("{PREFIX}/config")],
        &["role", "grant-permission", "flannel", "readwrite", "--prefix=true", &format!("{PREFIX}/subnets")],
        &["user", "add", "flannel:secret"],
        &["user", "grant-role", "flannel", "flannel"],
        &["user", "add", "nobody:nothing"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        server.ctl(args);
    }
    let as_user = |name: &str, password: &str| -> Arc<dyn SubnetManager> {
        Arc::new(EtcdManager::new(EtcdOptions {
            endpoints: vec![server.endpoint()],
            prefix: PREFIX.to_owned(),
            user: Some((name.to_owned(), password.to_owned())),
            ..EtcdOptions::default()
        }))
    };
    let Err(Error::Refused(text)) = as_user("flannel", "wrong").network_config().await else { panic!("a wrong password is final") };
    assert!(text.contains("flannel") && !text.contains("wrong pass"), "{text}");
    let Err(Error::Unavailable(text)) = as_user("nobody", "nothing").network_config().await else { panic!("no permission") };
    assert!(text.contains("permission denied") && text.contains("nobody") && text.contains("/config"), "{text}");
    let (manager, one) = (as_user("flannel", "secret"), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    // Longer than a token lives.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let mut changed = attrs(&one);
    changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
    holding.attrs.send_replace(changed);
    let get =
        || server.try_ctl(&["--user=root:rootpw", "get", "--print-value-only", &format!("{PREFIX}/subnets/{}", key(&lease))]).unwrap_or_default();
    eventually("a new token was fetched", || get().contains("192.168.56.201")).await;
}

pub async fn a_dead_endpoint_is_passed_over(bed: Bed) {
    use subnet_lease::etcd::EtcdManager;
    bed.configure(CONFIG);
    let Bed::Etcd(server) = &bed else { return };
    let mut options = bed.options(server);
    options.endpoints.insert(0, "http://127.0.0.1:1".to_owned());
    let manager: Arc<dyn SubnetManager> = Arc::new(EtcdManager::new(options));
    acquire(&manager, &claim("one", 101)).await.unwrap();
}

/// Two clusters in one list of endpoints: while the right one is away, nobody moves to the other, and nothing is written there.
pub async fn a_foreign_cluster_is_no_refuge(mut bed: Bed) {
    use crate::etcd_server::EtcdServer;
    use subnet_lease::etcd::EtcdManager;
    bed.configure(CONFIG);
    let mut foreign = EtcdServer::new(bed.etcd().version);
    foreign.start();
    foreign.ctl(&["put", &format!("{PREFIX}/config"), CONFIG]);
    let revision = |server: &EtcdServer| server.ctl(&["get", "nothing", "-w", "json"]);
    let untouched = revision(&foreign);
    let Bed::Etcd(server) = &bed else { return };
    let mut options = bed.options(server);
    options.endpoints.push(foreign.endpoint());
    let mut nodes = Vec::new();
    for last in [101, 102] {
        let (manager, node): (Arc<dyn SubnetManager>, _) = (Arc::new(EtcdManager::new(options.clone())), claim(&format!("n{last}"), last));
        let lease = acquire(&manager, &node).await.unwrap();
        let holding = hold(&manager, &node).await;
        let follower = Follower::of(manager.clone());
        nodes.push((manager, lease, holding, follower));
    }
    eventually("both are seen by both", || nodes.iter().all(|(.., follower)| follower.len() == 2)).await;
    bed.etcd().kill();
    for (_, _, holding, _) in &nodes {
        let mut changed = holding.attrs.borrow().clone();
        changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
        holding.attrs.send_replace(changed);
        eventually("why it is not used is told", || {
            holding.held.borrow().trouble.as_ref().is_some_and(|why| why.contains("another etcd cluster") && why.contains("--etcd-endpoints"))
        })
        .await;
    }
    // Far longer than it took: the tries after the first ones are the ones that were counted.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(nodes.iter().all(|(_, _, holding, follower)| follower.len() == 2 && follower.resets() == 1 && !holding.task.is_finished()));
    assert_eq!(revision(&foreign), untouched, "something was written into the foreign cluster");
    assert_eq!(foreign.ctl(&["lease", "list"]).trim(), "found 0 leases");
    bed.etcd().start();
    for (_, lease, ..) in &nodes {
        eventually("the right one is used again", || bed.get(&key(lease)).is_some_and(|value| value.contains("192.168.56.201"))).await;
    }
    assert_eq!(revision(&foreign), untouched);
}

/// etcd was set up anew behind every endpoint: that cluster is the right one now.
pub async fn a_cluster_set_up_anew_is_accepted(mut bed: Bed) {
    use crate::etcd_server::EtcdServer;
    use subnet_lease::etcd::EtcdManager;
    bed.configure(CONFIG);
    let Bed::Etcd(server) = &bed else { return };
    let mut options = bed.options(server);
    options.endpoints.push(format!("http://localhost:{}", server.port));
    let (manager, one): (Arc<dyn SubnetManager>, _) = (Arc::new(EtcdManager::new(options)), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    let port = bed.etcd().port;
    let mut anew = EtcdServer::new(bed.etcd().version);
    bed.etcd().kill();
    anew.port = port;
    anew.start();
    anew.ctl(&["put", &format!("{PREFIX}/config"), CONFIG]);
    eventually("our key is there", || anew.ctl(&["get", "--prefix", "--keys-only", &format!("{PREFIX}/subnets/")]).contains(&key(&lease))).await;
}

/// A user is configured before etcd wants one, and stays so when it no longer does.
pub async fn authentication_comes_and_goes(mut bed: Bed) {
    use subnet_lease::etcd::{EtcdManager, EtcdOptions};
    bed.configure(CONFIG);
    let server = bed.etcd();
    for args in [
        &["user", "add", "root:rootpw"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "flannel"],
        &["role", "grant-permission", "flannel", "read", &format!("{PREFIX}/config")],
        &["role", "grant-permission", "flannel", "readwrite", "--prefix=true", &format!("{PREFIX}/subnets")],
        &["user", "add", "flannel:secret"],
        &["user", "grant-role", "flannel", "flannel"],
    ] {
        server.ctl(args);
    }
    let server = &*server;
    let manager: Arc<dyn SubnetManager> = Arc::new(EtcdManager::new(EtcdOptions {
        endpoints: vec![server.endpoint()],
        prefix: PREFIX.to_owned(),
        user: Some(("flannel".to_owned(), "secret".to_owned())),
        ..EtcdOptions::default()
    }));
    let one = claim("one", 101);
    // Without authentication: nobody is asked for a name.
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(manager.clone());
    eventually("the list is in", || follower.len() == 1).await;
    let mut round = 0;
    let root = |args: &[&str]| {
        let with: Vec<&str> = ["--user=root:rootpw"].into_iter().chain(args.iter().copied()).collect();
        server.try_ctl(&with).or_else(|_| server.try_ctl(args)).unwrap()
    };
    let mut works = async |when: &str| {
        round += 1;
        let mut changed = attrs(&one);
        changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 200 + round));
        let address = changed.public_ip.unwrap().to_string();
        holding.attrs.send_replace(changed);
        let own = format!("{PREFIX}/subnets/{}", key(&lease));
        eventually(&format!("{when}: it writes"), || root(&["get", "--print-value-only", &own]).contains(&address)).await;
        root(&["put", &format!("{PREFIX}/subnets/10.5.{}.0-24", 200 + round), r#"{"PublicIP":"192.168.56.9","PublicIPv6":null}"#]);
        eventually(&format!("{when}: it sees"), || follower.has(&format!("10.5.{}.0-24", 200 + round))).await;
        let fresh = manager.network_config().await;
        assert!(fresh.is_ok(), "{when}: {fresh:?}");
    };
    works("before").await;
    for _ in 0..2 {
        server.ctl(&["auth", "enable"]);
        works("enabled").await;
        server.ctl(&["--user=root:rootpw", "auth", "disable"]);
        works("disabled").await;
    }
    assert!(!holding.task.is_finished());
}

/// A folder of certificates: two authorities, and what the first one signs.
struct Pki {
    folder: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut issuers = ["ca", "stranger"].map(|name| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            std::fs::write(folder.path().join(format!("{name}.pem")), params.self_signed(&key).unwrap().pem()).unwrap();
            Some(rcgen::Issuer::new(params, key))
        });
        let stranger = Self { folder, issuer: issuers[1].take().unwrap() };
        stranger.sign("foreign", "127.0.0.1", 2999);
        Self { issuer: issuers[0].take().unwrap(), ..stranger }
    }

    fn sign(&self, name: &str, address: &str, until: i32) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![address.to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(until, 2, 3));
        std::fs::write(self.path(&format!("{name}.pem")), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// What TLS does not like reads: which side refuses which certificate, why and until when; and it is one reason at every try.
pub async fn tls_says_which_side_refuses_what(bed: Bed) {
    use crate::etcd_server::EtcdServer;
    use subnet_lease::etcd::{EtcdManager, EtcdOptions};
    use subnet_lease::reason::Told;
    let Bed::Etcd(plain) = &bed else { return };
    let pki = Pki::new();
    for (name, address, until) in [
        ("server", "127.0.0.1", 2999),
        ("old-server", "127.0.0.1", 2021),
        ("elsewhere", "10.9.9.9", 2999),
        ("node", "node", 2999),
        ("old-node", "node", 2021),
    ] {
        pki.sign(name, address, until);
    }
    let serve = |name: &str, mutual: bool| {
        let mut args = vec!["--cert-file".to_owned(), pki.text(&format!("{name}.pem")), "--key-file".to_owned(), pki.text(&format!("{name}.key"))];
        if mutual {
            args.extend(["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), pki.text("ca.pem")]);
        }
        let mut server = EtcdServer::new(plain.version).with(&args, true);
        server.start();
        server
    };
    let servers = [serve("server", false), serve("server", true), serve("old-server", false), serve("elsewhere", false), serve("foreign", false)];
    let https: Vec<String> = servers.iter().map(EtcdServer::endpoint).collect();
    let to_plain = plain.endpoint().replace("http://", "https://");
    let to_tls = https[0].replace("https://", "http://");
    for (endpoint, ca, identity, parts) in [
        (&https[2], "ca.pem", None, &["this node refuses etcd's certificate", "CN=old-server, issued by CN=ca", "until 2021-02-03", "expired"][..]),
        (&https[3], "ca.pem", None, &["this node refuses etcd's certificate", "made out to", "10.9.9.9", "--etcd-endpoints"]),
        (&https[4], "ca.pem", None, &["this node refuses etcd's certificate", "issued by CN=stranger", "ca.pem did not sign it", "--etcd-cafile"]),
        (&https[1], "ca.pem", None, &["etcd wants a client certificate", "--etcd-certfile"]),
        (
            &https[1],
            "ca.pem",
            Some("old-node"),
            &["etcd refuses this node's certificate", "old-node.pem", "CN=old-node", "until 2021-02-03", "expired"],
        ),
        (
            &https[1],
            "ca.pem",
            Some("foreign"),
            &["etcd refuses this node's certificate", "foreign.pem", "issued by CN=stranger", "--trusted-ca-file"],
        ),
        (&https[0], "node.key", None, &["node.key holds no certificate", "--etcd-cafile"]),
        (&to_plain, "ca.pem", None, &["etcd does not speak TLS there", "http://"]),
        (&to_tls, "ca.pem", None, &["etcd speaks TLS there", "https://", "--etcd-cafile"]),
        (&https[1], "ca.pem", Some("node"), &["etcdctl put"]),
    ] {
        let manager = EtcdManager::new(EtcdOptions {
            endpoints: vec![endpoint.clone()],
            prefix: PREFIX.to_owned(),
            ca: Some(pki.path(ca)),
            identity: identity.map(|name| (pki.path(&format!("{name}.pem")), pki.path(&format!("{name}.key")))),
            ..EtcdOptions::default()
        });
        let mut told = Told::default();
        for turn in 0..12 {
            let Err(Error::Unavailable(why)) = manager.network_config().await else { panic!("{parts:?}: nothing is configured there") };
            for part in parts {
                assert!(why.contains(part), "{part:?} is missing: {why}");
            }
            assert_eq!(told.news(Some(&why)), turn == 0, "another reason at try {turn}: {why}");
            assert!(
                !["AlertDescription", "BadCertificate", "UnknownIssuer", "Kind::", "transport error"].iter().any(|debug| why.contains(debug)),
                "{why}"
            );
        }
    }
}

pub async fn a_directory_that_is_away_changes_nothing(bed: Bed) {
    let Bed::Dir(folder) = &bed else { return };
    let (root, aside) = (folder.path().join("leases"), folder.path().join("aside"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("config"), CONFIG).unwrap();
    let manager: Arc<dyn SubnetManager> = Arc::new(subnet_lease::dir::DirManager::new(root.clone()));
    let one = claim("one", 101);
    let lease = acquire(&manager, &one).await.unwrap();
    let own = root.join("subnets").join(key(&lease));
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(manager.clone());
    eventually("the list is in", || follower.len() == 1).await;
    for round in 0..2 {
        std::fs::rename(&root, &aside).unwrap();
        if round == 1 {
            // What a backup might bring.
            std::fs::create_dir(&root).unwrap();
            std::fs::write(root.join("config"), CONFIG).unwrap();
        }
        eventually("it is told", || manager.counters().why_away().is_some()).await;
        if round == 0 {
            // Written once it is back.
            let mut changed = attrs(&one);
            changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
            holding.attrs.send_replace(changed);
            eventually("the holder knows", || holding.held.borrow().trouble.as_ref().is_some_and(|why| why.contains("directory of leases"))).await;
        }
        assert_eq!(follower.len(), 1, "what is not seen is not gone");
        assert!(!root.join("subnets").exists(), "written into what stands in its place");
        if round == 1 {
            std::fs::remove_dir_all(&root).unwrap();
        }
        std::fs::rename(&aside, &root).unwrap();
        eventually("it goes on", || {
            manager.counters().why_away().is_none() && std::fs::read_to_string(&own).is_ok_and(|text| text.contains("192.168.56.201"))
        })
        .await;
    }
    assert!(!holding.task.is_finished());
    assert_eq!((follower.len(), follower.resets()), (1, 1));
}

pub async fn a_link_is_no_lease(bed: Bed) {
    let Bed::Dir(folder) = &bed else { return };
    bed.configure(CONFIG);
    bed.put("10.5.7.0-24", r#"{"PublicIP":"192.168.56.107","PublicIPv6":null}"#);
    let manager = bed.manager();
    let (follower, one) = (Follower::of(manager.clone()), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    eventually("the list is in", || follower.len() == 2).await;
    let leases = folder.path().join("subnets");
    for name in ["10.5.7.0-24".to_owned(), key(&lease)] {
        std::os::unix::fs::symlink("/etc/passwd", leases.join(".link")).unwrap();
        std::fs::rename(leases.join(".link"), leases.join(name)).unwrap();
    }
    eventually("it is told", || manager.counters().unreadable_keys().iter().any(|(key, why)| key == "10.5.7.0-24" && why.contains("symbolic link")))
        .await;
    eventually("our own is put back", || leases.join(key(&lease)).symlink_metadata().is_ok_and(|meta| meta.is_file())).await;
    assert_eq!(follower.len(), 2, "unreadable is never absent");
    std::fs::remove_file(leases.join("10.5.7.0-24")).unwrap();
    bed.put("10.5.7.0-24", r#"{"PublicIP":"192.168.56.107","PublicIPv6":null}"#);
    eventually("it can be read again", || manager.counters().unreadable_keys().is_empty()).await;
}

/// Left by a daemon that was killed while it wrote.
pub async fn what_a_killed_daemon_left_is_cleared(bed: Bed) {
    let Bed::Dir(folder) = &bed else { return };
    bed.configure(CONFIG);
    let manager = bed.manager();
    let lease = acquire(&manager, &claim("one", 101)).await.unwrap();
    let left = folder.path().join("subnets").join(format!(".{}.0123456789abcdef", key(&lease)));
    std::fs::write(&left, "{").unwrap();
    acquire(&manager, &claim("one", 101)).await.unwrap();
    assert!(left.exists(), "cleared once, at the start");
    acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    assert!(!left.exists());
}
