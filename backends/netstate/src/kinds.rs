//! The kinds of kernel objects, each with a file for all that is particular to it. A new kind is a
//! file here, a variant of [`Key`] and of [`Value`], and a place in this file.

mod address;
pub(crate) mod kind;
mod link;
mod neighbor;
pub(crate) mod route;

use crate::object::{Key, Value};
use crate::report::survey::Origin;
use crate::report::text::Words;
use kind::Kind;

/// In order of dependency; those that the kernel lists by themselves.
pub(crate) const KINDS: [&dyn Kind; 5] = [
    &link::Links,
    &address::Addresses,
    &neighbor::FdbEntries,
    &neighbor::Neighbors,
    &route::Routes,
];

pub(crate) fn kind_of(key: &Key) -> &'static dyn Kind {
    match key {
        Key::Link(_) => &link::Links,
        Key::Address(..) => &address::Addresses,
        Key::Fdb(..) => &neighbor::FdbEntries,
        Key::Neighbor(..) => &neighbor::Neighbors,
        Key::WireguardPeer(..) | Key::AllowedIp(..) => &kind::OfInterfaces,
        Key::Route(..) => &route::Routes,
    }
}

/// An object of any origin, as `ip`, `bridge` or `wg` prints it.
#[must_use]
pub fn describe(key: &Key, value: &Value, origin: Origin, words: &Words<'_>) -> String {
    let state = match origin {
        Origin::Set => "permanent",
        Origin::ExternLearn => "extern_learn",
        Origin::Learned | Origin::Protocol(_) => "",
    };
    let text = match (key, value) {
        (Key::Link(name), Value::Link(spec)) => spec.text(*name, words),
        (Key::Address(name, net), Value::Address) => format!("{net} dev {name}"),
        (Key::Fdb(name, mac), Value::Fdb(ip)) => format!("{mac} dev {name} dst {ip} self {state}"),
        (Key::Neighbor(name, ip), Value::Neighbor(mac)) => {
            format!("{ip} dev {name} lladdr {mac} {}", state.to_uppercase())
        }
        (Key::WireguardPeer(name, key), Value::WireguardPeer(peer)) => peer.text(*name, key),
        (Key::AllowedIp(name, net), Value::AllowedIp(peer)) => {
            format!("{name} peer {peer} allowed-ips {net}")
        }
        (Key::Route(net, metric), Value::Route(route)) => route.text(net, *metric, words),
        _ => key.to_string(),
    };
    text.trim_end().to_owned()
}
