//! Hostile leases of an attacker who can write to the store do not affect the existing nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::{Capture, Host, PingOptions, Scene, Uplink, ping_address, require_success, until_ok};

use crate::wireguard::keys::{
    Keys, decode_base64_key, published_public_key, wireguard_lease_value,
};

const PORT: u16 = 51820;
/// Ethernet, IPv4 and UDP, in bytes.
const HEADERS: usize = 42;
/// The first message of WireGuard's handshake, in bytes.
const HANDSHAKE: usize = 148;

#[test]
fn hostile_leases_capture_no_traffic() -> Result<()> {
    require_hostile_leases_harmless("userspace")
}

/// A hostile lease: its subnet, its public key, and a word of what `flannelctl leases` says about it.
type Lie = (String, String, &'static str);

/// Another base64 text of the key: only an unused bit after its 32 bytes differs.
fn flip_unused_key_bit(key: &str) -> Result<String> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let place = LETTERS.iter().position(|letter| *letter == key.as_bytes()[42]);
    let other = LETTERS[place.context("base64")? ^ 1] as char;
    let respelt = format!("{}{other}=", &key[..42]);
    ensure!(decode_base64_key(&respelt).is_err(), "it is spelt as it was");
    Ok(respelt)
}

fn hostile_leases(s: &Scene<'_>) -> Result<Vec<Lie>> {
    let keys = [published_public_key(&s.store, &s[0])?, published_public_key(&s.store, &s[1])?];
    let fresh = || Keys::new().public_text();
    let mut lies = vec![
        // Half of the second node's subnet, a range that contains both nodes' subnets, and a subnet outside the network.
        (s[1].subnet()?.replace("/24", "/25"), fresh(), "overlaps"),
        ("10.5.0.0/19".to_owned(), fresh(), "overlaps"),
        ("10.9.1.0/24".to_owned(), fresh(), "not a subnet"),
        ("10.5.110.0/24".to_owned(), STANDARD.encode([7; 31]), "32 bytes"),
        // The nodes' keys: with a changed unused bit, with a line break inside, and unchanged.
        ("10.5.120.0/24".to_owned(), flip_unused_key_bit(&keys[1])?, "already uses"),
        (
            "10.5.121.0/24".to_owned(),
            format!("{}\n{}", &keys[0][..20], &keys[0][20..]),
            "already uses",
        ),
        ("10.5.122.0/24".to_owned(), keys[0].clone(), "already uses"),
    ];
    // Public keys of low order: the shared secret with any of them is zero (RFC 7748, section 6.1).
    let mut weak = [[0; 32]; 4];
    (weak[1][0], weak[2][31]) = (1, 0x80);
    weak[3] = [0xff; 32];
    (weak[3][0], weak[3][31]) = (0xec, 0x7f);
    lies.extend(
        (101..).zip(weak).map(|(number, key)| {
            (format!("10.5.{number}.0/24"), STANDARD.encode(key), "small order")
        }),
    );
    Ok(lies)
}

/// Each node refuses each hostile lease, and `flannelctl leases`, which reads the store without a daemon, names it.
fn lies_are_refused(s: &Scene<'_>, lies: &[Lie]) -> Result<()> {
    s.check_each_node(|node| {
        let refused = node.status("/refused")?;
        let subnets: BTreeSet<_> = refused
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["lease"].as_str())
            .collect();
        ensure!(
            subnets == lies.iter().map(|(subnet, ..)| subnet.as_str()).collect(),
            "{refused:#}"
        );
        node.wait_metric_value("flannel_peers", 1.0)?;
        node.require_ready()
    })?;
    let place = format!("--subnet-dir={}", s.lab.ensure_folder("leases")?.display());
    let listed = require_success("flannelctl leases", &s[0].flannelctl(&["leases", &place])?)?;
    for (subnet, _, word) in lies {
        let line = listed.lines().find(|line| line.starts_with(&format!("{subnet} ")));
        ensure!(line.is_some_and(|line| line.contains(word)), "{subnet} {word}:\n{listed}");
    }
    // No pod gets a reply from an address in the subnet of a hostile lease.
    for (subnet, ..) in lies {
        let wanted =
            IpAddr::V4(subnet.parse::<ipnet::Ipv4Net>()?.hosts().nth(8).context("an address")?);
        for pod in s.pods() {
            let options = PingOptions::default().timeout(Duration::from_millis(100));
            ensure!(ping_address(pod.netns(), wanted, &options)?.is_none(), "{wanted} answers");
        }
    }
    Ok(())
}

/// Both nodes start a handshake with the attacker's address if the lease is valid. A capture would also show one because of a hostile lease.
fn put_honest_lease_and_wait_handshakes(s: &Scene<'_>, attacker: &Host) -> Result<()> {
    let address = attacker.v4()?;
    let socket = attacker.netns().run(|| UdpSocket::bind((address, PORT)))??;
    socket.set_nonblocking(true)?;
    s.put("10.5.200.0-24", &wireguard_lease_value(address, &Keys::new().public_text()))?;
    s.check_each_node(|node| node.wait_metric_value("flannel_peers", 2.0))?;
    let (mut buffer, mut senders) = ([0; 2048], BTreeSet::new());
    until_ok("both begin a handshake with it", || {
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if length == HANDSHAKE {
                senders.insert(from.ip());
            }
        }
        ensure!(senders.len() == 2, "from {senders:?}");
        Ok(())
    })
}

/// The existing nodes lose no packets because of hostile leases, with kernel or userspace WireGuard.
pub(crate) fn require_hostile_leases_harmless(implementation: &str) -> Result<()> {
    let conf = format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","Backend":{{"Type":"wireguard","Implementation":"{implementation}"}}}}"#
    );
    Scene::with_title(&format!("wireguard hostile {implementation}")).net(&conf).run(|s| {
        let attacker = s.lab.create_host("attacker", &[Uplink::enp0s8(&s.lan, 50)?])?;
        let capture = Capture::start(attacker.netns())?;
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        let (lies, key) = (hostile_leases(s)?, published_public_key(&s.store, &s[1])?);
        for (subnet, public_key, _) in &lies {
            s.put(&subnet.replace('/', "-"), &wireguard_lease_value(attacker.v4()?, public_key))?;
        }
        s.wait_leases_applied()?;
        lies_are_refused(s, &lies)?;
        let to_port = |frame: &&Vec<u8>| {
            frame.len() > HEADERS && frame[12..14] == [8, 0] && frame[36..38] == PORT.to_be_bytes()
        };
        let came = capture.finish()?.iter().filter(to_port).count();
        ensure!(came == 0, "{came} datagrams came to the attacker");
        put_honest_lease_and_wait_handshakes(s, &attacker)?;
        for (subnet, ..) in &lies {
            s.store.delete(&subnet.replace('/', "-"))?;
        }
        // The second node restores its own lease after the key in it became one of low order.
        s.put(
            &s[1].subnet()?.replace('/', "-"),
            &wireguard_lease_value(s[1].v4()?, &STANDARD.encode([0; 32])),
        )?;
        until_ok("it is put right", || {
            let now = published_public_key(&s.store, &s[1])?;
            ensure!(now == key, "{now}");
            Ok(())
        })?;
        s.wait_leases_applied()?;
        s.check_each_node(|node| node.wait_status_value("/refused", serde_json::json!([])))?;
        s.wait_first_pods_connected()?;
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}
