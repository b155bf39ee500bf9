//! Annotations of a Node in which flannel's daemons publish how peers reach the node.

use crate::lease::{LeaseAttrs, RawJson};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::Problem;

/// Marks a Node on which flannel runs.
pub(crate) const MANAGED: &str = "kube-subnet-manager";
/// The backend's type, e.g. `vxlan`.
pub(crate) const BACKEND_TYPE: &str = "backend-type";
/// The backend's data for IPv4, a JSON object or `null`.
pub(crate) const BACKEND_DATA: &str = "backend-data";
/// The same for IPv6.
pub(crate) const BACKEND_V6_DATA: &str = "backend-v6-data";
/// The IPv4 address at which peers reach the node.
pub(crate) const PUBLIC_IP: &str = "public-ip";
pub(crate) const PUBLIC_IPV6: &str = "public-ipv6";
/// The operator's choice of the IPv4 address and its interface. It takes precedence over the flags.
pub(crate) const NODE_PUBLIC_IP: &str = "node-public-ip";
/// The same for IPv6.
pub(crate) const NODE_PUBLIC_IPV6: &str = "node-public-ipv6";
/// The IPv4 address to publish instead of the node's own, e.g. if NAT translates it.
pub(crate) const OVERWRITE: &str = "public-ip-overwrite";
/// The same for IPv6.
pub(crate) const OVERWRITE_V6: &str = "public-ipv6-overwrite";

/// The daemon writes them.
const WRITTEN: [&str; 6] =
    [MANAGED, BACKEND_TYPE, BACKEND_DATA, BACKEND_V6_DATA, PUBLIC_IP, PUBLIC_IPV6];

/// Go flannel writes it for a backend without data.
const NO_DATA: &str = "null";

/// First member of the backend data that flannel-rs writes. It distinguishes flannel-rs' nodes from Go flannel's, which do not reply to probes. Go
/// flannel ignores it, and its data lacks it after a takeover of the Node. The value must be a number, because Go flannel expects `:"` exactly once
/// in the data, before its own MAC.
const MARK: &str = r#""FlannelRs":1"#;

/// Common prefix of the names of flannel's annotations: a domain, a slash, and optionally a word with a hyphen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

impl Prefix {
    /// Parses `--kube-annotation-prefix` as Go flannel does: `a.b`, `a.b/`, `a.b/c` and `a.b/c-`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        const CODE: &str = "annotation-prefix";
        let Some((domain, word)) =
            text.split_once('/').or(Some((text, ""))).filter(|(_, word)| !word.contains('/'))
        else {
            return Err(Problem::new(CODE, "prefix can contain at most single slash"));
        };
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let is_domain = domain.contains('.')
            && domain.split('.').all(|part| !part.is_empty() && part.chars().all(label));
        if !is_domain || !word.chars().all(label) {
            let text = format!(
                "{text:?}: prefix must be in a format: fqdn/[0-9a-z-_]*, such as flannel.alpha.coreos.com"
            );
            return Err(Problem::new(CODE, text));
        }
        let hyphen = if word.is_empty() || word.ends_with('-') { "" } else { "-" };
        Ok(Self(format!("{domain}/{word}{hyphen}")))
    }

    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    /// The name without the prefix; `None` if the key lacks it.
    #[must_use]
    pub fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.0)
    }
}

/// Those under flannel's prefix, by their short names.
pub type Annotations = BTreeMap<String, String>;

/// True if flannel runs on the Node.
#[must_use]
pub fn managed(annotations: &Annotations) -> bool {
    annotations.get(MANAGED).is_some_and(|value| value == "true")
}

/// The error names the unreadable annotation, but does not quote it, because any client with write access to the Node may have written it.
pub fn read(annotations: &Annotations) -> Result<LeaseAttrs, Problem> {
    let unreadable = |name: &str, what: &str| {
        let text = format!("the annotation {name} is not {what}");
        Problem::new("node-annotation-unreadable", text)
    };
    let data = |name: &'static str| match annotations.get(name).map(String::as_str) {
        None | Some(NO_DATA | "") => Ok(None),
        Some(text) => without_mark(text)
            .map(|text| RawJson::parse(&text))
            .transpose()
            .map_err(|_| unreadable(name, "JSON")),
    };
    Ok(LeaseAttrs {
        public_ip: v4(annotations, PUBLIC_IP)
            .map_err(|NoAddressError| unreadable(PUBLIC_IP, "an IPv4 address"))?,
        public_ipv6: v6(annotations, PUBLIC_IPV6)
            .map_err(|NoAddressError| unreadable(PUBLIC_IPV6, "an IPv6 address"))?,
        backend: annotations.get(BACKEND_TYPE).cloned().unwrap_or_default(),
        data: data(BACKEND_DATA)?,
        v6_data: data(BACKEND_V6_DATA)?,
        ..LeaseAttrs::default()
    })
}

/// True if Go flannel or an operator wrote the annotations: the backend's data of at least one family lacks flannel-rs' mark. Go flannel changes only
/// the data of the address families in its configuration.
#[must_use]
pub fn by_go(annotations: &Annotations) -> bool {
    let mut data = [BACKEND_DATA, BACKEND_V6_DATA]
        .into_iter()
        .filter_map(|name| annotations.get(name))
        .peekable();
    data.peek().is_none() || data.any(|text| after_mark(text).is_none())
}

fn with_mark(data: Option<&RawJson>) -> String {
    match data.map(|data| data.as_str()) {
        None => format!("{{{MARK}}}"),
        Some(text) => match text.strip_prefix('{').map(str::trim_start) {
            // Not an object. None of our backends writes such data.
            None => text.to_owned(),
            Some("}") => format!("{{{MARK}}}"),
            Some(members) => format!("{{{MARK},{members}"),
        },
    }
}

/// `None` if the data contains only the mark.
fn without_mark(text: &str) -> Option<Cow<'_, str>> {
    match after_mark(text) {
        None => Some(text.into()),
        Some("}") => None,
        Some(members) => Some(format!("{{{}", members.strip_prefix(',').unwrap_or(members)).into()),
    }
}

fn after_mark(text: &str) -> Option<&str> {
    text.strip_prefix('{')?.strip_prefix(MARK).filter(|rest| rest.starts_with([',', '}']))
}

/// The text is not an address of the expected family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddressError;

/// `None` if the annotation is absent, empty or 0.0.0.0.
pub fn v4(annotations: &Annotations, name: &str) -> Result<Option<Ipv4Addr>, NoAddressError> {
    match annotations.get(name).map(|text| text.trim()) {
        None | Some("") => Ok(None),
        Some(text) => match text.parse() {
            Ok(IpAddr::V4(ip)) => Ok(Some(ip).filter(|ip| !ip.is_unspecified())),
            Ok(IpAddr::V6(ip)) => ip.to_ipv4_mapped().map(Some).ok_or(NoAddressError),
            Err(_) => Err(NoAddressError),
        },
    }
}

/// `None` if the annotation is absent, empty or `::`.
pub fn v6(annotations: &Annotations, name: &str) -> Result<Option<Ipv6Addr>, NoAddressError> {
    match annotations.get(name).map(|text| text.trim()) {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(|ip: Ipv6Addr| Some(ip).filter(|ip| !ip.is_unspecified()))
            .map_err(|_| NoAddressError),
    }
}

/// Operator's annotation whose value is not an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typo {
    pub name: &'static str,
    pub value: String,
    /// The expected address family.
    pub family: &'static str,
    /// It selects the interface, not only the published address.
    pub(crate) names_interface: bool,
}

#[must_use]
pub fn typos(annotations: &Annotations) -> Vec<Typo> {
    let of = |name, family, names_interface| {
        let value = annotations.get(name)?;
        let is_address = if family == "IPv4" {
            v4(annotations, name).is_ok()
        } else {
            v6(annotations, name).is_ok()
        };
        (!is_address).then(|| Typo { name, value: value.clone(), family, names_interface })
    };
    let all = [
        (NODE_PUBLIC_IP, "IPv4", true),
        (NODE_PUBLIC_IPV6, "IPv6", true),
        (OVERWRITE, "IPv4", false),
        (OVERWRITE_V6, "IPv6", false),
    ];
    all.into_iter()
        .filter_map(|(name, family, names_interface)| of(name, family, names_interface))
        .collect()
}

/// Each annotation that the daemon writes, with its value. With `None`, the annotation must not exist.
#[must_use]
pub fn wanted(attrs: &LeaseAttrs, present: &Annotations) -> BTreeMap<&'static str, Option<String>> {
    let text = |data: &Option<RawJson>| Some(with_mark(data.as_ref()));
    let mut out: BTreeMap<&'static str, Option<String>> =
        WRITTEN.iter().map(|name| (*name, None)).collect();
    out.insert(MANAGED, Some("true".to_owned()));
    out.insert(BACKEND_TYPE, Some(attrs.backend.clone()));
    // Each family is published together with an address. Data without an address (of a node that has none yet) would be useless.
    if let Some(ip) = attrs.public_ip {
        let public = v4(present, OVERWRITE).ok().flatten().unwrap_or(ip);
        out.insert(PUBLIC_IP, Some(public.to_string()));
        out.insert(BACKEND_DATA, text(&attrs.data));
    }
    if let Some(ip) = attrs.public_ipv6 {
        let public = v6(present, OVERWRITE_V6).ok().flatten().unwrap_or(ip);
        out.insert(PUBLIC_IPV6, Some(public.to_string()));
        out.insert(BACKEND_V6_DATA, text(&attrs.v6_data));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_as_go_reads_them() {
        for (text, key) in [
            ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/backend-type"),
            ("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com/backend-type"),
            ("flannel.alpha.coreos.com/prefix", "flannel.alpha.coreos.com/prefix-backend-type"),
            ("flannel.alpha.coreos.com/prefix-", "flannel.alpha.coreos.com/prefix-backend-type"),
            ("org.com", "org.com/backend-type"),
            ("org9.com", "org9.com/backend-type"),
            ("org.com/9", "org.com/9-backend-type"),
        ] {
            let prefix = Prefix::parse(text).unwrap();
            assert_eq!(prefix.key(BACKEND_TYPE), key);
            assert_eq!(prefix.name(key), Some(BACKEND_TYPE));
        }
        for text in [
            "org",
            "org/",
            "org/prefix",
            "org.COM",
            "org.com/PREFIX",
            "",
            "/",
            "a.b/c/d",
            ".com",
            "a..b",
        ] {
            assert!(Prefix::parse(text).is_err(), "{text}");
        }
    }

    fn annotations(list: &[(&str, &str)]) -> Annotations {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// The text that Go flannel 0.28 reads as the MAC in the data of its own Node.
    fn mac_as_go_reads_it(data: &str) -> Option<&str> {
        match data.trim_matches(['"', '}']).split(":\"").collect::<Vec<_>>()[..] {
            [_, mac] => Some(mac),
            _ => None,
        }
    }

    #[test]
    fn go_flannel_reads_past_the_mark() {
        let data = r#"{"VNI":1,"VtepMAC":"02:aa:bb:cc:dd:ee"}"#;
        let marked = with_mark(RawJson::parse(data).ok().as_ref());
        assert_eq!(marked, r#"{"FlannelRs":1,"VNI":1,"VtepMAC":"02:aa:bb:cc:dd:ee"}"#);
        for text in [data, &marked] {
            assert_eq!(mac_as_go_reads_it(text), Some("02:aa:bb:cc:dd:ee"));
        }
        for (data, marked) in [
            (None, r#"{"FlannelRs":1}"#),
            (Some("{}"), r#"{"FlannelRs":1}"#),
            (Some("{ }"), r#"{"FlannelRs":1}"#),
            (Some(r#"{"PublicKey":"x"}"#), r#"{"FlannelRs":1,"PublicKey":"x"}"#),
            (Some("[1]"), "[1]"),
        ] {
            let data = data.and_then(|text| RawJson::parse(text).ok());
            assert_eq!(with_mark(data.as_ref()), marked);
            let is_json: Result<serde_json::Value, _> = serde_json::from_str(marked);
            assert!(is_json.is_ok(), "{marked}");
        }
    }

    #[test]
    fn node_is_go_flannels_unless_all_its_data_is_marked() {
        let ours = r#"{"FlannelRs":1,"VNI":1}"#;
        for (list, go) in [
            (&[][..], true),
            (&[(BACKEND_DATA, ours)], false),
            (&[(BACKEND_DATA, r#"{"FlannelRs":1}"#)], false),
            (&[(BACKEND_V6_DATA, ours)], false),
            (&[(BACKEND_DATA, "null")], true),
            (&[(BACKEND_DATA, r#"{"VNI":1}"#)], true),
            (&[(BACKEND_DATA, r#"{"FlannelRs":12}"#)], true),
            (&[(BACKEND_DATA, r#"{"VNI":1,"FlannelRs":1}"#)], true),
            // Go flannel took over the Node, without IPv6.
            (&[(BACKEND_DATA, "null"), (BACKEND_V6_DATA, ours)], true),
            (&[(BACKEND_DATA, ours), (BACKEND_V6_DATA, ours)], false),
        ] {
            assert_eq!(by_go(&annotations(list)), go, "{list:?}");
        }
    }

    #[test]
    fn an_overwrite_changes_what_is_published_alone() {
        let attrs = LeaseAttrs { public_ip: Some([10, 99, 0, 11].into()), ..LeaseAttrs::default() };
        let published = |present: &[(&str, &str)]| {
            wanted(&attrs, &annotations(present)).get(PUBLIC_IP).cloned().flatten().unwrap()
        };
        assert_eq!(published(&[(OVERWRITE, "10.99.0.77")]), "10.99.0.77");
        assert_eq!(published(&[(OVERWRITE, "")]), "10.99.0.11");
        assert_eq!(published(&[(OVERWRITE, "node.example.org")]), "10.99.0.11");
    }

    #[test]
    fn mistyped_addresses_are_found() {
        let found = |list: &[(&str, &str)]| {
            typos(&annotations(list))
                .into_iter()
                .map(|typo| (typo.name, typo.names_interface))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(&[
                (NODE_PUBLIC_IP, "10.7.7.7"),
                (OVERWRITE, ""),
                (OVERWRITE_V6, "::"),
                (PUBLIC_IP, "x")
            ]),
            []
        );
        assert_eq!(
            found(&[(NODE_PUBLIC_IP, "10.7.7.7/24"), (OVERWRITE, "203.0.113.5:8472")]),
            [(NODE_PUBLIC_IP, true), (OVERWRITE, false)]
        );
        assert_eq!(
            found(&[(NODE_PUBLIC_IPV6, "10.7.7.7"), (OVERWRITE_V6, "fd00::1/64")]),
            [(NODE_PUBLIC_IPV6, true), (OVERWRITE_V6, false)]
        );
    }

    #[test]
    fn hostile_annotations_are_refused_by_name() {
        for (name, value) in [
            (PUBLIC_IP, "node.example.org"),
            (PUBLIC_IP, "fd00::1"),
            (PUBLIC_IPV6, "10.0.0.1"),
            (BACKEND_DATA, "{"),
            (BACKEND_V6_DATA, "\u{0}"),
        ] {
            assert!(
                read(&annotations(&[(name, value)])).unwrap_err().to_string().contains(name),
                "{name}={value}"
            );
        }
        assert_eq!(
            read(&annotations(&[(PUBLIC_IP, "0.0.0.0"), (BACKEND_DATA, "null")])).unwrap(),
            LeaseAttrs::default()
        );
    }
}
