//! Tests on a real kernel how flanneld chooses and follows the underlay interface. Each test runs in its own network
//! namespace. Without root privileges, the tests end at once.

#![allow(clippy::unwrap_used, clippy::panic)]

use backends::Underlay;
use flanneld::underlay::read::{self, Wish};
use flanneld::underlay::{Leased, Selector};
use std::process::Command;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use types::Dual;

/// Runs an async test on a thread with its own network namespace.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            eprintln!("skipped: no network namespace can be made: {error}");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` once per line, with the arguments on it.
fn ip(lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn wish(selectors: Vec<Selector>, store: Option<&str>) -> Wish {
    Wish {
        families: Dual::V4(()),
        selectors,
        public: None,
        store: store.map(|host| (host.to_owned(), 2379)),
        wait: Some(Duration::from_secs(20)),
        known: None,
        leased: Leased::default(),
    }
}

/// Arguments of `ip` that create two interfaces: the default route uses `nat`, and the store is behind `lan`.
const VAGRANT: &str = "link set lo up
    link add nat type veth peer nat-end
    link add lan mtu 1400 type veth peer lan-end
    link set nat-end up
    link set lan-end up
    link set nat up
    link set lan up
    addr add 10.0.2.15/24 dev nat
    addr add 192.168.56.11/24 dev lan
    addr add fd00:56::11/64 dev lan nodad
    route add default via 10.0.2.2 metric 100
    route add unreachable default metric 5";

#[test]
fn interface_is_chosen_on_a_real_kernel() {
    in_namespace(|| async {
        ip(VAGRANT);
        for (selectors, store, want) in [
            (vec![], None, "nat 10.0.2.15 1500"),
            (vec![Selector::Auto], Some("192.168.56.10"), "lan 192.168.56.11 1400"),
            (vec![Selector::Auto], Some("localhost"), "nat 10.0.2.15 1500"),
            (vec![Selector::Auto], Some("192.168.56.11"), "lan 192.168.56.11 1400"),
            (
                vec![Selector::CanReach("192.168.56.77".parse().unwrap())],
                None,
                "lan 192.168.56.11 1400",
            ),
            (
                vec![Selector::CanReach("fd00:56::77".parse().unwrap())],
                None,
                "lan 192.168.56.11 1400",
            ),
            (
                vec![Selector::Cidr("192.168.0.0/16".parse().unwrap())],
                None,
                "lan 192.168.56.11 1400",
            ),
            (vec![Selector::Name("lan".to_owned())], None, "lan 192.168.56.11 1400"),
        ] {
            let found = read::wait_for(&wish(selectors.clone(), store), |_| {}).await.unwrap();
            let underlay = &found.chosen.underlay;
            assert_eq!(
                format!("{} {} {}", underlay.name, underlay.addresses, underlay.mtu),
                want,
                "{selectors:?} {store:?}"
            );
        }
        let found = read::wait_for(&wish(vec![], Some("192.168.56.10")), |_| {}).await.unwrap();
        let hint = found.trap_hint().unwrap();
        assert!(hint.contains("--iface=lan"), "{hint}");
        assert!(found.advice().contains("--iface=lan") && !found.store_via_underlay());
        // The Vagrant trap: the peer has the same address as this host, so no interface leads to it.
        for (target, leads) in [
            ("10.0.2.15", false),
            ("10.0.2.77", true),
            ("192.168.56.77", false),
            ("fd00:56::77", false),
        ] {
            assert_eq!(found.leads_to(target.parse().unwrap()), leads, "{target}");
        }
        let both = Wish {
            families: Dual::Both((), ()),
            ..wish(vec![Selector::Name("lan".to_owned())], None)
        };
        let found = read::wait_for(&both, |_| {}).await.unwrap();
        assert_eq!(found.chosen.underlay.addresses.to_string(), "192.168.56.11 and fd00:56::11");
    });
}

#[test]
fn absent_interface_is_waited_for() {
    in_namespace(|| async {
        ip("link set lo up");
        let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = lines.clone();
        let wish = wish(vec![Selector::Name("lan".to_owned())], None);
        let bounded = Wish { wait: Some(Duration::from_millis(200)), ..wish.clone() };
        let error = read::wait_for(&bounded, |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("--iface-wait"), "{error}");
        let task = tokio::spawn(async move {
            read::wait_for(&wish, |why| heard.lock().unwrap().push(why.to_string())).await
        });
        let steps = [
            ("no such interface", "link add lan type veth peer lan-end\nlink set lan-end up"),
            ("is down", "link set lan up"),
            ("failed to find IPv4 address", "addr add 192.168.56.11/24 dev lan"),
        ];
        for (why, step) in steps {
            while !lines.lock().unwrap().last().is_some_and(|last| last.contains(why)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ip(step);
        }
        assert_eq!(task.await.unwrap().unwrap().chosen.underlay.name, "lan");
    });
}

#[test]
fn chosen_interface_is_followed() {
    in_namespace(|| async {
        ip(VAGRANT);
        let found = read::wait_for(&wish(vec![Selector::Name("lan".to_owned())], None), |_| {})
            .await
            .unwrap();
        let (sender, mut receiver) = watch::channel(found.chosen.underlay.clone());
        let stop = CancellationToken::new();
        let task = tokio::spawn(read::follow(
            found.chosen,
            true,
            sender,
            |_: Option<&types::Problem>| (),
            stop.clone(),
        ));
        let first = receiver.borrow().index;
        // The task must listen before the first event: its first read sees everything that happened until then.
        for (step, want) in [
            ("link set lan mtu 1300", "lan 192.168.56.11 1300"),
            ("addr add 192.168.56.99/24 dev lan", "lan 192.168.56.11 1300"),
            ("link set lan name uplink", "uplink 192.168.56.11 1300"),
            (
                "addr del 192.168.56.11/24 dev uplink\naddr add 192.168.56.99/24 dev uplink",
                "uplink 192.168.56.99 1300",
            ),
            ("link set uplink down", "uplink 192.168.56.99 1300"),
            ("addr flush dev uplink", "uplink 192.168.56.99 1300"),
            ("link del uplink", "uplink 192.168.56.99 1300"),
            (
                "link add uplink mtu 1450 type veth peer uplink-end\nlink set uplink up\naddr add 192.168.56.50/24 dev uplink",
                "uplink 192.168.56.50 1450",
            ),
        ] {
            for line in step.lines() {
                // The kernel may have removed the secondary address together with the primary one, so this may fail.
                let _ = Command::new("ip").args(line.split_whitespace()).output().unwrap();
            }
            let is = |underlay: &Underlay| {
                format!("{} {} {}", underlay.name, underlay.addresses, underlay.mtu) == want
            };
            wait::complete(step, receiver.wait_for(is)).await.unwrap().unwrap();
        }
        assert_ne!(receiver.borrow().index, first);
        // Networks without a gateway appear with addresses, or with routes only. Networks behind a gateway are not among them.
        ip("route add 10.98.0.0/24 via 192.168.56.1\nroute add 10.99.0.0/24 dev uplink");
        for net in ["192.168.56.0/24", "10.99.0.0/24"] {
            let is = |underlay: &Underlay| underlay.links.contains(&net.parse().unwrap());
            wait::complete(net, receiver.wait_for(is)).await.unwrap().unwrap();
        }
        assert!(
            !receiver.borrow().links.contains(&"10.98.0.0/24".parse().unwrap()),
            "{:?}",
            receiver.borrow().links
        );
        stop.cancel();
        task.await.unwrap();
    });
}
