//! Keys and values in the exact text that Go flannel reads and writes.
//!
//! Only this module contains the special rules of the wire format. An absent PublicIP is `0.0.0.0`, and an absent PublicIPv6 is `null`. Leases of
//! `udp` and `alloc` have no BackendType. `&` separates the IPv4 subnet and the IPv6 subnet of a dual-stack key, and `0.0.0.0-0&` precedes an
//! IPv6-only key. Go's JSON encoder escapes `&`, `<` and `>`. NodeID is an additional member: Go flannel ignores members that it does not know.
//!
//! ```
//! use subnet_lease::wire::{parse_key, parse_value, render_key, render_value};
//!
//! let subnets = parse_key("10.5.34.0-24&fd00:12:13::-56").unwrap();
//! assert_eq!(subnets.to_string(), "10.5.34.0/24 and fd00:12:13::/56");
//! assert_eq!(render_key(&subnets), "10.5.34.0-24&fd00:12:13::-56");
//!
//! let value = r#"{"PublicIP":"192.0.2.2","PublicIPv6":null,"BackendType":"host-gw"}"#;
//! let attrs = parse_value(value.as_bytes())?;
//! assert_eq!((attrs.backend.as_str(), attrs.public_text().as_str()), ("host-gw", "192.0.2.2"));
//! assert_eq!(render_value(&attrs), value);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::json::{Object, hide_values, same_name};
use crate::lease::{LeaseAttrs, NodeId, RawJson};
use ipnet::{Ipv4Net, Ipv6Net};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::{Dual, Problem, Subnets};

/// In bytes. flanneld treats a longer value as unreadable.
pub(crate) const VALUE_LIMIT: usize = 64 * 1024;

/// The subnet part of a lease's key, e.g. `10.5.34.0-24&fd00:12:13::-56`.
#[must_use]
pub fn render_key(subnets: &Subnets) -> String {
    let v4 = |net: &Ipv4Net| format!("{}-{}", net.network(), net.prefix_len());
    let v6 = |net: &Ipv6Net| format!("{}-{}", net.network(), net.prefix_len());
    match subnets {
        Dual::V4(a) => v4(a),
        Dual::Both(a, b) => format!("{}&{}", v4(a), v6(b)),
        Dual::V6(b) => format!("0.0.0.0-0&{}", v6(b)),
    }
}

/// Common beginning of all keys with the same IPv4 subnet and any IPv6 subnet. For an IPv6-only lease, the whole key.
#[cfg(feature = "protocol")]
pub(crate) fn key_prefix(subnets: &Subnets) -> String {
    match subnets {
        Dual::V4(a) | Dual::Both(a, _) => render_key(&Dual::V4(*a)),
        Dual::V6(_) => render_key(subnets),
    }
}

/// Accepts only the canonical form, i.e. what [`render_key`] makes of the parsed subnets.
#[must_use]
pub fn parse_key(key: &str) -> Option<Subnets> {
    let (v4_text, v6_text) = match key.split_once('&') {
        Some((v4, v6)) => (v4, Some(v6)),
        None => (key, None),
    };
    let (address, len) = v4_text.split_once('-')?;
    let v4 = Ipv4Net::new(address.parse().ok()?, len.parse().ok()?).ok()?;
    let v6 = match v6_text {
        None => None,
        Some(text) => {
            let (address, len) = text.rsplit_once('-')?;
            Some(Ipv6Net::new(address.parse::<Ipv6Addr>().ok()?, len.parse().ok()?).ok()?)
        }
    };
    let nothing = v4.prefix_len() == 0;
    let subnets = match (nothing, v6) {
        (true, Some(v6)) => Dual::V6(v6),
        (true, None) => return None,
        (false, Some(v6)) => Dual::Both(v4, v6),
        (false, None) => Dual::V4(v4),
    };
    let usable =
        v4.prefix_len() < 32 && v6.is_none_or(|net| net.prefix_len() > 0 && net.prefix_len() < 128);
    (usable && render_key(&subnets) == key).then_some(subnets)
}

/// One JSON object without white space, members in Go flannel's order, NodeID last.
#[must_use]
pub fn render_value(attrs: &LeaseAttrs) -> String {
    let mut out = String::with_capacity(192);
    out.push_str("{\"PublicIP\":\"");
    let _ = write!(out, "{}", attrs.public_ip.unwrap_or(Ipv4Addr::UNSPECIFIED));
    out.push_str("\",\"PublicIPv6\":");
    match attrs.public_ipv6 {
        Some(address) => {
            let _ = write!(out, "\"{address}\"");
        }
        None => out.push_str("null"),
    }
    if !attrs.backend.is_empty() {
        out.push_str(",\"BackendType\":");
        push_string(&mut out, &attrs.backend);
    }
    for (name, data) in [("BackendData", &attrs.data), ("BackendV6Data", &attrs.v6_data)] {
        if let Some(data) = data {
            let _ = write!(out, ",\"{name}\":");
            push_compact(&mut out, data.as_str());
        }
    }
    for (name, value) in &attrs.unknown {
        out.push(',');
        push_string(&mut out, name);
        out.push(':');
        push_compact(&mut out, value.as_str());
    }
    if let Some(node) = &attrs.node {
        out.push_str(",\"NodeID\":");
        push_node(&mut out, node);
    }
    out.push('}');
    out
}

/// As Go flannel does, including NodeID and unknown members. The error does not quote the value, because every node logs it, and not the key, which the
/// caller knows.
pub fn parse_value(value: &[u8]) -> Result<LeaseAttrs, Problem> {
    if value.len() > VALUE_LIMIT {
        let text = format!("the value has more than {VALUE_LIMIT} bytes");
        return Err(Problem::new("lease-value-too-long", text));
    }
    let text = String::from_utf8_lossy(value);
    if text.trim_matches([' ', '\t', '\r', '\n']) == "null" {
        return Ok(LeaseAttrs::default());
    }
    let object = Object::parse(&text).map_err(|error| {
        let text = format!("the value is not a JSON object: {}", hide_values(&error));
        Problem::new("lease-value-no-object", text)
    })?;
    let public_ip = match object.get("PublicIP") {
        None => None,
        Some(raw) => Some(v4_address(raw.get()).ok_or_else(|| {
            Problem::new("lease-value-public-ip", "PublicIP is not an IPv4 address")
        })?),
    };
    let public_ipv6 = match object.get("PublicIPv6") {
        None => None,
        Some(raw) if raw.get() == "null" => None,
        Some(raw) => Some(v6_address(raw.get()).ok_or_else(|| {
            Problem::new("lease-value-public-ipv6", "PublicIPv6 is not an IPv6 address")
        })?),
    };
    let backend = object
        .read::<String>("BackendType")
        .map_err(|_| Problem::new("lease-value-backend-type", "BackendType is not a string"))?
        .unwrap_or_default();
    let data = raw_member(&object, "BackendData");
    let v6_data = raw_member(&object, "BackendV6Data");
    let node = object.get("NodeID").and_then(|raw| serde_json::from_str(raw.get()).ok());
    const KNOWN: [&str; 6] =
        ["PublicIP", "PublicIPv6", "BackendType", "BackendData", "BackendV6Data", "NodeID"];
    let unknown = object
        .0
        .iter()
        .filter(|(name, _)| !KNOWN.iter().any(|known| same_name(name, known)))
        .filter_map(|(name, raw)| Some((name.clone(), RawJson::parse(raw.get()).ok()?)))
        .collect();
    Ok(LeaseAttrs {
        public_ip: public_ip.filter(|address| !address.is_unspecified()),
        public_ipv6: public_ipv6.filter(|address| !address.is_unspecified()),
        backend,
        data,
        v6_data,
        unknown,
        node,
    })
}

fn push_node(out: &mut String, node: &NodeId) {
    for (open, text) in
        [("{\"id\":", &*node.id), (",\"name\":", &*node.name), (",\"instance\":", &*node.instance)]
    {
        out.push_str(open);
        push_string(out, text);
    }
    let _ = write!(out, ",\"rank\":{}", node.rank);
    if let Some(lease) = node.lease {
        let _ = write!(out, ",\"lease\":{lease}");
    }
    if node.contested {
        out.push_str(",\"contested\":true");
    }
    out.push('}');
}

fn raw_member(object: &Object<'_>, name: &str) -> Option<RawJson> {
    object
        .get(name)
        .filter(|raw| raw.get() != "null")
        .and_then(|raw| RawJson::parse(raw.get()).ok())
}

fn v4_address(raw: &str) -> Option<Ipv4Addr> {
    match serde_json::from_str::<String>(raw).ok()?.parse().ok()? {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(v6) => v6.to_ipv4_mapped(),
    }
}

fn v6_address(raw: &str) -> Option<Ipv6Addr> {
    let address: Ipv6Addr = serde_json::from_str::<String>(raw).ok()?.parse().ok()?;
    address.to_ipv4_mapped().is_none().then_some(address)
}

/// As Go's encoder writes it.
fn push_string(out: &mut String, text: &str) {
    let plain = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned());
    push_escaped(out, &plain);
}

/// Without white space between tokens, escaped as Go's encoder does.
fn push_compact(out: &mut String, raw: &str) {
    let (mut in_string, mut escaped) = (false, false);
    for c in raw.chars() {
        if in_string {
            push_char(out, c);
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == '"' {
                in_string = false;
            }
        } else if !matches!(c, ' ' | '\t' | '\r' | '\n') {
            in_string = c == '"';
            push_char(out, c);
        }
    }
}

fn push_escaped(out: &mut String, text: &str) {
    for c in text.chars() {
        push_char(out, c);
    }
}

fn push_char(out: &mut String, c: char) {
    match c {
        '&' | '<' | '>' | '\u{2028}' | '\u{2029}' => {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        c => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_vectors() {
        for (key, v4, v6) in [
            ("10.12.13.0-24", Some("10.12.13.0/24"), None),
            ("10.12.13.0-24&fd00:12:13::-56", Some("10.12.13.0/24"), Some("fd00:12:13::/56")),
            ("0.0.0.0-0&fd00:1::-64", None, Some("fd00:1::/64")),
        ] {
            let subnets = parse_key(key).unwrap();
            assert_eq!(subnets.v4().map(ToString::to_string).as_deref(), v4);
            assert_eq!(subnets.v6().map(ToString::to_string).as_deref(), v6);
            assert_eq!(render_key(&subnets), key);
        }
        for key in [
            "10",
            "10.12.13.0",
            "10.12.13-24",
            "10.12.13.300-24",
            "10.12.13.0-24hi",
            "&2001::-56",
            "10.12.13.0-24&:12:13:-56",
            "10.12.13.0-24&20011::-56",
            "10.12.13.0-24&2001-56",
            "10.12.13.0-24&2001::",
            "10.12.13.0-24&2001::-56hi",
            "10.12.13.1-24",
            "10.12.13.0-024",
            "10.12.13.0-32",
            "0.0.0.0-0",
            "10.5.1.0-24.bak",
            "10.12.13.0-24\n",
            "10.12.13.0-24&FD00:12:13::-56",
            "10.12.13.0-24&fd00:0012:13::-56",
            "x10.12.13.0-24",
            "",
        ] {
            assert_eq!(parse_key(key), None, "{key}");
        }
    }

    #[test]
    fn reading_is_as_lenient_as_go() {
        let attrs =
            parse_value(br#" {"publicip":"::ffff:1.2.3.4","PUBLICIPV6":null,"backendtype":null,"BackendData": { "VNI" : 1 } , "x":1e400000 } "#)
                .unwrap();
        assert_eq!(attrs.public_ip, Some(Ipv4Addr::new(1, 2, 3, 4)));
        assert_eq!(
            render_value(&attrs),
            r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendData":{"VNI":1},"x":1e400000}"#
        );
        assert_eq!(parse_value(b"null").unwrap(), LeaseAttrs::default());
        assert_eq!(parse_value(b"{}").unwrap(), LeaseAttrs::default());
        assert!(parse_value(b"{\"PublicIP\":\"1.2.3.4\",\"z\":\"\xff\"}").is_ok());
        for bad in [
            r#"{"PublicIP":null}"#,
            r#"{"PublicIP":"fd00::1"}"#,
            r#"{"PublicIP":"1.2.3.04"}"#,
            r#"{"PublicIP":7}"#,
            "[]",
            "7",
            "",
            "{",
            r#"{"PublicIP":"1.2.3.4"} x"#,
            r#"{"BackendType":7}"#,
        ] {
            assert!(parse_value(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(
            parse_value(&vec![b' '; VALUE_LIMIT + 1]).unwrap_err().to_string().contains("bytes")
        );
    }
}
