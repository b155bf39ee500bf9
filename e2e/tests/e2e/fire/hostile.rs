//! Hostile keys and values in a store, and the metric in which a node counts each entry.

use std::net::Ipv4Addr;

/// Metric in which a node counts an entry.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fate {
    /// In `flannel_leases_unreadable`.
    Unreadable,
    /// In `flannel_leases_refused`.
    Refused,
    /// In `flannel_leases_refused` if the node refuses the entry, and otherwise in neither metric. The entry looks like a peer.
    Peer,
}
use Fate::{Peer, Refused, Unreadable};

/// An entry: its key below `subnets/`, its value, and the metric that counts the entry.
pub(super) type Entry = (String, String, Fate);

/// A hostile value below a valid key.
enum Value {
    Text(&'static str),
    /// The lease value of a vxlan node, cut off after the given number of bytes.
    Cut(usize),
    /// The lease value of a vxlan node, with the first text replaced by the second.
    Replaced(&'static str, &'static str),
    /// The lease value of a vxlan node, with the first text before it and the second text after it.
    Between(&'static str, &'static str),
    /// A JSON object with a field of the given number of bytes.
    Big(usize),
    /// JSON arrays, nested to the given depth.
    Deep(usize),
    /// The lease value of a vxlan node with the given MAC.
    Mac(&'static str),
    /// The lease value of a vxlan node with the given `BackendData`.
    Data(&'static str),
    /// The lease value of a vxlan node with the given `PublicIP`.
    At(&'static str),
}
use Value::{At, Between, Big, Cut, Data, Deep, Mac, Replaced, Text};

const VALUES: [(Value, Fate); 50] = [
    (Text("[]"), Unreadable),
    (Text("42"), Unreadable),
    (Text("\"text\""), Unreadable),
    (Text("true"), Unreadable),
    (Text("{]"), Unreadable),
    (Text("{}}"), Unreadable),
    (Text("\0"), Unreadable),
    (Between("\0", ""), Unreadable),
    (Between("", "\0"), Unreadable),
    (Replaced("VNI", "V\0I"), Unreadable),
    (Text(r#"{"PublicIP":5}"#), Unreadable),
    (Text(r#"{"PublicIP":"x"}"#), Unreadable),
    (Text(r#"{"PublicIP":"fe80::1"}"#), Unreadable),
    (Text(r#"{"PublicIP":["192.168.56.240"]}"#), Unreadable),
    (Text(r#"{"PublicIP":{"a":1}}"#), Unreadable),
    (
        Text(r#"{"PublicIP":"192.168.56.240","BackendType":7}"#),
        Unreadable,
    ),
    (
        Text(r#"{"PublicIP":"192.168.56.240","BackendType":["vxlan"]}"#),
        Unreadable,
    ),
    (
        Text(r#"{"PublicIP":"192.168.56.240","PublicIPv6":"1.2.3.4"}"#),
        Unreadable,
    ),
    (Text(r#"{"PublicIP":"192.168.56.999"}"#), Unreadable),
    (Text(r#"{'PublicIP':'192.168.56.240'}"#), Unreadable),
    (Big(70_000), Unreadable),
    (Big(1_000_000), Unreadable),
    (Big(1_000_000), Unreadable),
    (Big(1_000_000), Unreadable),
    (Deep(400_000), Unreadable),
    (Mac(""), Refused),
    (Mac("zz"), Refused),
    (Mac("01:00:5e:00:00:01"), Refused),
    (Mac("00:00:00:00:00:00"), Refused),
    (Mac("ff:ff:ff:ff:ff:ff"), Refused),
    (Mac("02:00:00:00:00"), Refused),
    (Mac("02:00:00:00:00:00:01"), Refused),
    (Data("null"), Refused),
    (Data("7"), Refused),
    (Data("\"text\""), Refused),
    (Data("[]"), Refused),
    (Data("{}"), Refused),
    (Data(r#"{"VtepMAC":7}"#), Refused),
    // Of several equal fields, Go's decoder uses the last one, and it ignores case.
    (
        Replaced(
            r#"{"PublicIP""#,
            r#"{"PublicIP":"192.168.56.239","publicip":"192.168.56.238","PublicIP""#,
        ),
        Peer,
    ),
    (At("0.0.0.0"), Peer),
    (At("127.0.0.1"), Peer),
    (At("224.0.0.1"), Peer),
    (At("255.255.255.255"), Peer),
    (At("192.168.56.101"), Peer),
    (At("10.5.10.1"), Peer),
    (Text("null"), Peer),
    (Text("{}"), Peer),
    (
        Text(r#"{"PublicIP":"192.168.56.244","BackendType":"host-gw"}"#),
        Peer,
    ),
    (Deep(60), Peer),
    (Deep(20_000), Peer),
];

/// Hostile keys with valid values.
const KEYS: [(&str, Fate); 41] = [
    ("0.0.0.0-0", Unreadable),
    ("0.0.0.0/0", Unreadable),
    ("0.0.0.0", Unreadable),
    ("10.5.7.0-24.bak", Unreadable),
    ("10.5.7.1-24", Unreadable),
    ("10.5.7.0-33", Unreadable),
    ("10.5.7.0-32", Unreadable),
    ("010.005.007.000-24", Unreadable),
    ("10.5.7.0", Unreadable),
    ("-24", Unreadable),
    ("10.5.7.0-", Unreadable),
    ("10.5.7.0-24&", Unreadable),
    ("10.5.7.0-24&zz-64", Unreadable),
    ("10.5.7.0-24&fd00:5::-0", Unreadable),
    ("a/b", Unreadable),
    ("…", Unreadable),
    (" 10.5.7.0-24", Unreadable),
    ("10.5.7.0-+24", Unreadable),
    ("10.5.7.0-024", Unreadable),
    ("10.5-24", Unreadable),
    ("::-0", Unreadable),
    ("fd00:5::-64", Unreadable),
    ("0.0.0.0-0&::-0", Unreadable),
    ("10.5.7.0_24", Unreadable),
    ("../config", Unreadable),
    ("10.5.7.0-24/x", Unreadable),
    ("0.0.0.0-1", Refused),
    ("128.0.0.0-1", Refused),
    ("10.0.0.0-8", Refused),
    ("10.4.0.0-15", Refused),
    ("10.5.0.0-16", Refused),
    ("127.0.0.0-24", Refused),
    ("224.0.0.0-24", Refused),
    ("192.168.56.0-24", Refused),
    ("192.168.0.0-16", Refused),
    ("169.254.0.0-16", Refused),
    ("172.16.0.0-12", Refused),
    ("255.255.255.0-24", Refused),
    ("10.6.0.0-24", Refused),
    ("10.4.255.0-24", Refused),
    ("0.0.0.0-0&fd00:5:0:1::-64", Refused),
];

/// Returns the lease value that a vxlan node writes.
pub(super) fn value(public: &str, mac: &str) -> String {
    format!(
        r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    )
}

impl Value {
    /// Returns the hostile value as text. `number` makes the MAC in the value unique.
    fn text(&self, number: usize) -> String {
        let plain = value("192.168.56.240", "02:00:00:00:bb:01");
        match self {
            Text(text) => (*text).to_owned(),
            Cut(length) => plain[..*length].to_owned(),
            Replaced(from, to) => plain.replace("bb:01", "dd:01").replace(from, to),
            Between(before, after) => format!("{before}{plain}{after}"),
            Big(bytes) => format!(
                r#"{{"PublicIP":"192.168.56.240","x":"{}"}}"#,
                "y".repeat(*bytes)
            ),
            Deep(depth) => format!(
                r#"{{"PublicIP":"192.168.56.240","x":{}{}}}"#,
                "[".repeat(*depth),
                "]".repeat(*depth)
            ),
            Mac(mac) => value("192.168.56.243", mac),
            Data(data) => format!(
                r#"{{"PublicIP":"192.168.56.243","BackendType":"vxlan","BackendData":{data}}}"#
            ),
            At(address) => value(address, &format!("02:00:00:00:ee:{number:02x}")),
        }
    }
}

/// Returns more than two hundred hostile entries. `good` contains the third byte of each good node's subnet, and the node's MAC.
pub(super) fn entries(good: &[(u8, String)]) -> Vec<Entry> {
    let length = value("192.168.56.240", "02:00:00:00:bb:01").len();
    let cuts = (0..length)
        .step_by(3)
        .map(|length| (Cut(length), Unreadable));
    // Outside the pool, and disjoint from other entries: 10.5.128.0/17 in pieces of /25.
    let free = |number: usize| format!("10.5.{}.{}-25", 128 + number / 2, number % 2 * 128);
    let values = cuts
        .chain(VALUES)
        .enumerate()
        .map(|(number, (value, fate))| (free(number), value.text(number), fate));
    let mut entries: Vec<Entry> = values.collect();

    let (taken, mut number) = (entries.len(), 0);
    let mut of_its_own = || {
        number += 1;
        value("192.168.56.241", &format!("02:00:00:00:cc:{number:02x}"))
    };
    entries.extend(KEYS.map(|(key, fate)| (key.to_owned(), of_its_own(), fate)));
    entries.extend((0..40).map(|third| (format!("198.18.{third}.0-24"), of_its_own(), Refused)));
    for (position, (third, mac)) in good.iter().enumerate() {
        // Inside a good node's subnet, around it, and with its MAC.
        for (base, length) in [(0, 25), (128, 25), (0, 28), (64, 26), (0, 30), (254, 31)] {
            entries.push((
                format!("10.5.{third}.{base}-{length}"),
                of_its_own(),
                Refused,
            ));
        }
        for length in 17..=23 {
            let base = u32::from_be_bytes([10, 5, *third, 0]) & (u32::MAX << (32 - length));
            let key = format!("{}-{length}", Ipv4Addr::from(base));
            if entries.iter().all(|(known, ..)| *known != key) {
                entries.push((key, of_its_own(), Refused));
            }
        }
        entries.push((
            free(taken + position),
            value("192.168.56.242", mac),
            Refused,
        ));
    }
    entries
}
