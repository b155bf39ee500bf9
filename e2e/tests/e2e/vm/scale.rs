//! A release build in the virtual machine for a long time, as part of `make soak`.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::{FlanneldOptions, Lab, Netns, Store, until_ok};

const PEERS: u32 = 10_000;
/// For an idle daemon with `PEERS` peers, in bytes. A debug build needs more.
const MEMORY: u64 = 40 << 20;
const ROUNDS: usize = 3;

/// Key and value in the store. Any 32 bytes form a valid public key, except the few of small order.
fn lease_key_and_value(number: u32) -> (String, String) {
    let subnet = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 65, 0, 0)) + (number << 8));
    let public = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number);
    let mut key = [9; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    let data = format!(r#"{{"PublicKey":"{}","Port":51820}}"#, STANDARD.encode(key));
    (
        format!("{subnet}-24"),
        format!(
            r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"wireguard","BackendData":{data}}}"#
        ),
    )
}

/// Waits until the kernel has the route through `flannel-wg`, which the daemon adds last, after the peers and their allowed IPs. The result is the
/// duration.
fn measure_time_to_wireguard_route(netns: &Netns, began: Instant) -> Result<Duration> {
    netns.run(|| {
        until_ok("there is a route through flannel-wg", || {
            let routes = std::fs::read_to_string("/proc/thread-self/net/route")?;
            ensure!(routes.lines().any(|line| line.starts_with("flannel-wg\t")), "{routes}");
            Ok(began.elapsed())
        })
    })?
}

#[test]
#[ignore = "needs a kernel with WireGuard, and a release build: make soak"]
fn ten_thousand_wireguard_peers_are_set_in_twice_the_time_of_wg() -> Result<()> {
    Lab::run("vm: wireguard scale", |lab| {
        let lan = lab.create_switch("lan")?;
        let hosts = lab.create_hosts(&lan, 2)?;
        let (netns, aside) = (hosts[0].netns(), hosts[1].netns());
        let leases = lab.ensure_folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(r#"{"Network":"10.64.0.0/10","SubnetLen":24,"SubnetMin":"10.127.0.0","Backend":{"Type":"wireguard"}}"#)?;
        std::fs::create_dir_all(leases.join("subnets"))?;
        for (name, value) in (0..PEERS).map(lease_key_and_value) {
            std::fs::write(leases.join("subnets").join(name), value)?;
        }
        // Probes are disabled, because their cost has a goal of its own.
        let daemon = hosts[0].start_flanneld_and_wait_ready(
            &FlanneldOptions::new(&store).iface("enp0s8").arg("--probe-port=0"),
        )?;
        let count = || -> Result<u32> {
            Ok(netns.sh("wg show flannel-wg allowed-ips | grep -c /24")?.trim().parse()?)
        };
        ensure!(count()? == PEERS, "{} peers", count()?);
        // Memory is higher while the daemon reads peers, which is a twentieth of the time.
        let memory = until_ok("memory at rest", || {
            let memory = daemon.memory()?;
            ensure!(memory <= MEMORY, "{} KiB of memory", memory >> 10);
            Ok(memory)
        })?;
        println!("{PEERS} peers: {} KiB of memory", memory >> 10);
        netns.sh("wg showconf flannel-wg | grep -v ListenPort > /run/peers.conf")?;
        // `wg` and the daemon take turns, each from no device to all peers. Both use a private key, because with it the kernel computes a shared secret
        // for each peer. The daemon is stopped while `wg` runs. Devices are moved to another namespace instead of being deleted: a deletion takes minutes,
        // because the kernel waits for each peer.
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            netns.sh(&format!(
                "kill -STOP {}; ip link set flannel-wg netns {} name old{round}",
                daemon.pid(),
                aside.name()
            ))?;
            let began = Instant::now();
            aside.sh(&format!("ip link add new{round} type wireguard; wg addconf new{round} /run/peers.conf; ip link set new{round} up"))?;
            theirs.push(began.elapsed());
            let began = Instant::now();
            netns.sh(&format!("kill -CONT {}", daemon.pid()))?;
            ours.push(measure_time_to_wireguard_route(netns, began)?);
            ensure!(count()? == PEERS, "{} peers", count()?);
        }
        ours.sort();
        theirs.sort();
        println!("filled in {ours:.1?}, by wg addconf in {theirs:.1?}");
        ensure!(
            ours[ROUNDS / 2] <= theirs[ROUNDS / 2] * 2,
            "filled in {ours:?}, by wg addconf in {theirs:?}"
        );
        let errors = daemon.errors();
        ensure!(errors.is_empty(), "{errors:#?}");
        Ok(())
    })
}
