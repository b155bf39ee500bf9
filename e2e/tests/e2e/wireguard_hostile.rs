//! Tests that hostile leases of an attacker who can write to the store do not affect the existing nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::{
    Bed, Capture, Host, Lab, Mesh, PingOptions, ProbeOptions, Uplink, ping, succeeded, until,
    until_ok,
};

use crate::wireguard_keys::{Keys, bytes, lease, published, replace};

const CONF: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","Backend":{"Type":"wireguard","Implementation":"WHICH"}}"#;
/// Length of the Ethernet, IPv4 and UDP headers, in bytes.
const HEADERS: usize = 42;
const PORT: u16 = 51820;
/// Length of the first message of WireGuard's handshake, in bytes.
const HANDSHAKE: usize = 148;

/// Returns a different base64 text of a key: only an unused bit after the key's 32 bytes differs.
fn respelt(key: &str) -> Result<String> {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (rest, last) = key
        .strip_suffix('=')
        .and_then(|key| key.split_at_checked(42))
        .context("44 characters")?;
    let place = LETTERS.find(last).context("base64")?;
    let other = LETTERS.as_bytes()[place ^ 1] as char;
    Ok(format!("{rest}{other}="))
}

fn point(low: u8, high: u8) -> String {
    let mut point = [0; 32];
    (point[0], point[31]) = (low, high);
    STANDARD.encode(point)
}

/// A hostile lease, and the messages with which both nodes report the lease.
struct Lie {
    key: String,
    public_key: String,
    reported: [String; 2],
    /// The text that `flannelctl leases` prints about the lease.
    listed: &'static str,
    /// An address in the subnet of the hostile lease.
    wants: Ipv4Addr,
}

/// Public keys of low order: the shared secret with any of them is zero (RFC 7748, section 6.1).
fn weak_points() -> [String; 4] {
    [
        point(0, 0),
        point(1, 0),
        point(0, 0x80),
        STANDARD.encode([&[0xec][..], &[0xff; 30], &[0x7f]].concat()),
    ]
}

/// Returns the message with which the node `reader` refuses a lease of `subnet` with the key of the node `owner`.
fn key_in_use(subnet: &str, keys: &[String; 2], owner: usize, reader: usize) -> String {
    let key = &keys[owner];
    if owner == reader {
        format!("cannot use the value of {subnet}: {key} is this node's own")
    } else {
        format!(
            "cannot use the value of {subnet}: the node at 192.168.56.{} already uses {key}",
            101 + owner
        )
    }
}

fn lie(net: &str, public_key: String, reported: [String; 2], listed: &'static str) -> Result<Lie> {
    let net: ipnet::Ipv4Net = net.parse()?;
    let wants = net.hosts().nth(8).context("an address")?;
    Ok(Lie {
        key: net.to_string().replace('/', "-"),
        public_key,
        reported,
        listed,
        wants,
    })
}

fn lies(bed: &Bed) -> Result<Vec<Lie>> {
    let keys = [
        published(&bed.store, &bed.hosts[0])?,
        published(&bed.store, &bed.hosts[1])?,
    ];
    let mut lies = Vec::from(wrong_subnets(bed)?);
    lies.extend(wrong_keys()?);
    lies.extend(keys_in_use(&keys)?);
    Ok(lies)
}

/// Returns hostile leases of three subnets: half of the second node's subnet, a range that contains both nodes' subnets, and a subnet outside the network.
fn wrong_subnets(bed: &Bed) -> Result<[Lie; 3]> {
    let subnet = |number: usize| {
        bed.daemons[number]
            .subnet_env()?
            .subnet
            .map(|net| net.trunc())
            .context("a subnet")
    };
    let subnets = [subnet(0)?, subnet(1)?];
    let fresh = || Keys::new().public_text();
    let half = format!("{}/25", subnets[1].network());
    let wide = "10.5.0.0/19";
    Ok([
        lie(
            &half,
            fresh(),
            [
                format!("{half} overlaps the older lease {}", subnets[1]),
                format!("{half} overlaps this node's own subnet {}", subnets[1]),
            ],
            "overlaps the older",
        )?,
        lie(
            wide,
            fresh(),
            [0, 1].map(|own| format!("{wide} overlaps this node's own subnet {}", subnets[own])),
            "overlaps the older",
        )?,
        lie(
            "10.9.1.0/24",
            fresh(),
            [0, 1].map(|_| "10.9.1.0/24 is not a subnet of 10.5.0.0/16".to_owned()),
            "not a subnet of 10.5.0.0/16",
        )?,
    ])
}

/// Returns hostile leases with public keys of low order, and one lease whose key is too short.
fn wrong_keys() -> Result<Vec<Lie>> {
    let mut lies = Vec::new();
    for (number, key) in (101..).zip(weak_points()) {
        let text = format!(
            "cannot use the value of 10.5.{number}.0/24: the lease's PublicKey {key} is of small order, so WireGuard cannot use it"
        );
        lies.push(lie(
            &format!("10.5.{number}.0/24"),
            key,
            [text.clone(), text],
            "is of small order, so WireGuard cannot use it",
        )?);
    }
    let short =
        "cannot use the value of 10.5.110.0/24: the lease's PublicKey is not 32 bytes in base64";
    lies.push(lie(
        "10.5.110.0/24",
        STANDARD.encode([7; 31]),
        [0, 1].map(|_| short.to_owned()),
        "is not 32 bytes in base64",
    )?);
    Ok(lies)
}

/// Returns hostile leases with the nodes' keys: with a changed unused bit, with a line break inside, and unchanged.
fn keys_in_use(keys: &[String; 2]) -> Result<Vec<Lie>> {
    let (other_bits, with_end) = (
        respelt(&keys[1])?,
        format!("{}\n{}", &keys[0][..20], &keys[0][20..]),
    );
    ensure!(
        other_bits != keys[1] && bytes(&other_bits).is_err(),
        "it is spelt as it was"
    );
    let spelt = [
        ("10.5.120.0/24", other_bits, 1),
        ("10.5.121.0/24", with_end, 0),
        ("10.5.122.0/24", keys[0].clone(), 0),
    ];
    spelt
        .into_iter()
        .map(|(subnet, key, owner)| {
            let reported = [0, 1].map(|reader| key_in_use(subnet, keys, owner, reader));
            lie(subnet, key, reported, "already uses")
        })
        .collect()
}

/// Returns the lengths, in bytes, of the WireGuard datagrams that reached the attacker.
fn datagrams(frames: &[Vec<u8>]) -> Vec<usize> {
    let to_port = |frame: &&Vec<u8>| {
        frame.len() > HEADERS
            && frame[12..14] == [8, 0]
            && frame[23] == 17
            && frame[36..38] == PORT.to_be_bytes()
    };
    frames
        .iter()
        .filter(to_port)
        .map(|frame| frame.len() - HEADERS)
        .collect()
}

#[test]
fn hostile_leases_capture_no_traffic() -> Result<()> {
    from("userspace")
}

fn lease_file(bed: &Bed, key: &str) -> PathBuf {
    bed.leases.join("subnets").join(key)
}

/// Checks that each node refuses each hostile lease and reports the reason.
fn lies_are_refused(bed: &Bed, lies: &[Lie]) -> Result<()> {
    for (number, daemon) in bed.daemons.iter().enumerate() {
        until_ok("readyz names each", || {
            let (code, body) = daemon.get("/readyz")?;
            let missing: Vec<_> = lies
                .iter()
                .map(|lie| &lie.reported[number])
                .filter(|reported| !body.contains(*reported))
                .collect();
            ensure!(
                code == 200 && missing.is_empty(),
                "{missing:#?} are not in\n{body}"
            );
            Ok(())
        })?;
        let status: serde_json::Value = serde_json::from_str(&daemon.get("/status")?.1)?;
        ensure!(
            status["refused"]
                .as_array()
                .is_some_and(|list| list.len() == lies.len()),
            "{:#}",
            status["refused"]
        );
        ensure!(
            daemon.metric("flannel_peers")? == 1.0,
            "{} peers",
            daemon.metric("flannel_peers")?
        );
        for lie in lies {
            until(&lie.reported[number], || {
                daemon.log().contains(&lie.reported[number])
            })
            .with_context(|| daemon.log_tail(30))?;
        }
    }
    Ok(())
}

/// Checks that an operator sees each hostile lease in `flannelctl leases`, which reads the store without a daemon.
fn operator_sees_lies(bed: &Bed, lies: &[Lie]) -> Result<()> {
    let place = format!("--subnet-dir={}", bed.leases.display());
    let listed = succeeded(
        "flannelctl leases",
        &bed.hosts[0].flannelctl(&["leases", &place])?,
    )?;
    for lie in lies {
        let subnet = lie.key.replace('-', "/");
        let line = listed
            .lines()
            .find(|line| line.starts_with(&format!("{subnet} ")))
            .with_context(|| format!("{subnet} is not in\n{listed}"))?;
        ensure!(
            line.contains(lie.listed),
            "{:?} is not in {line}",
            lie.listed
        );
    }
    Ok(())
}

/// Checks that no pod gets a reply from an address in the subnet of a hostile lease.
fn no_hostile_lease_is_routed(bed: &Bed, lies: &[Lie]) -> Result<()> {
    let short = PingOptions::default().timeout(Duration::from_millis(100));
    for lie in lies {
        for pod in &bed.pods {
            ensure!(
                ping(pod.netns(), IpAddr::V4(lie.wants), &short)?.is_none(),
                "{} answers",
                lie.wants
            );
        }
    }
    Ok(())
}

/// Checks that both nodes start a handshake with the attacker's address if the lease is valid. A capture
/// would also show a handshake because of a hostile lease.
fn honest_lease_is_used(bed: &Bed, attacker: &Host) -> Result<()> {
    let address = attacker.v4()?;
    let socket = attacker
        .netns()
        .run(|| UdpSocket::bind((address, PORT)))??;
    socket.set_nonblocking(true)?;
    replace(
        &lease_file(bed, "10.5.200.0-24"),
        &lease(address, &Keys::new().public_text()),
    )?;
    for daemon in &bed.daemons {
        until("an honest lease is used", || {
            daemon
                .metric("flannel_peers")
                .is_ok_and(|peers| peers == 2.0)
        })?;
    }
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

/// Replaces the public key in the second node's own lease with an invalid key of low order. Waits until the node
/// has restored the lease's last valid value, which remains in effect meanwhile.
fn own_lease_is_restored(bed: &Bed, key: &str) -> Result<()> {
    let own = bed.daemons[1]
        .subnet_env()?
        .subnet
        .context("a subnet")?
        .trunc()
        .to_string()
        .replace('/', "-");
    replace(
        &lease_file(bed, &own),
        &lease(bed.hosts[1].v4()?, &point(0, 0)),
    )?;
    until_ok("it is put right", || {
        ensure!(
            published(&bed.store, &bed.hosts[1])? == key,
            "{}",
            bed.daemons[1].log_tail(5)
        );
        Ok(())
    })?;
    Ok(())
}

/// Checks with kernel or userspace WireGuard that the existing nodes lose no packets because of hostile leases.
pub(crate) fn from(implementation: &str) -> Result<()> {
    Lab::run(&format!("wireguard hostile {implementation}"), |lab| {
        let bed = Bed::start(
            lab,
            2,
            &CONF.replace("WHICH", implementation),
            |_, options| options,
        )?;
        let attacker = lab.host("attacker", &[Uplink::enp0s8(&bed.lan, 50)?])?;
        let capture = Capture::start(attacker.netns())?;
        let mesh = Mesh::start(&bed.pods, &ProbeOptions::default())?;
        mesh.wait_flowing()?;
        let (lies, key) = (lies(&bed)?, published(&bed.store, &bed.hosts[1])?);
        for lie in &lies {
            replace(
                &lease_file(&bed, &lie.key),
                &lease(attacker.v4()?, &lie.public_key),
            )?;
        }
        lies_are_refused(&bed, &lies)?;
        operator_sees_lies(&bed, &lies)?;
        no_hostile_lease_is_routed(&bed, &lies)?;
        let came = datagrams(&capture.finish()?);
        ensure!(
            came.is_empty(),
            "datagrams of {came:?} bytes came to the attacker"
        );
        honest_lease_is_used(&bed, &attacker)?;
        for lie in &lies {
            std::fs::remove_file(lease_file(&bed, &lie.key))?;
        }
        own_lease_is_restored(&bed, &key)?;
        for daemon in &bed.daemons {
            until("nothing is refused", || {
                daemon
                    .get("/readyz")
                    .is_ok_and(|page| page == (200, "flanneld is ready".to_owned()))
            })?;
        }
        bed.reach()?;
        mesh.require_clean()?;
        bed.require_no_errors()
    })
}
