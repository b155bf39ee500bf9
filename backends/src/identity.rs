//! What of a lease's backend data only one node can have: a forwarding entry, or a peer of a tunnel, leads to one node.

use crate::vxlan;
use subnet_lease::json::Object;
use subnet_lease::{LeaseAttrs, RawJson};

/// Reads it out of the backend data of one family.
type Read = fn(&RawJson) -> Option<String>;

/// By the backend's wire name. A backend that is not named here publishes nothing of that kind.
const IDENTITIES: [(&str, Read); 2] = [(vxlan::KIND, vtep_mac), ("wireguard", public_key)];

/// What identifies the node behind a lease to its backend, for a family; none where there is nothing of that kind.
pub fn identity_of(attrs: &LeaseAttrs, ipv6: bool) -> Option<String> {
    let (_, read) = IDENTITIES.iter().find(|(kind, _)| *kind == attrs.backend)?;
    let data = if ipv6 { &attrs.v6_data } else { &attrs.data };
    read(data.as_ref()?)
}

fn vtep_mac(data: &RawJson) -> Option<String> {
    // As everybody writes it; ten thousand are looked at for every change.
    const MAC: &str = "\"VtepMAC\":\"";
    if let Some(at) = data.as_str().find(MAC)
        && let Some(mac) = data.as_str().get(at + MAC.len()..at + MAC.len() + 17)
        && mac.bytes().all(|byte| byte == b':' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    {
        return Some(mac.to_owned());
    }
    Some(member(data, "VtepMAC")?.to_ascii_lowercase().replace('-', ":"))
}

fn public_key(data: &RawJson) -> Option<String> {
    member(data, "PublicKey")
}

fn member(data: &RawJson, name: &str) -> Option<String> {
    Object::parse(data.as_str()).ok()?.read::<String>(name).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mac_however_it_is_written_and_one_key() {
        for (backend, data, want) in [
            ("vxlan", r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:65"}"#, Some("0a:00:00:00:00:65")),
            ("vxlan", r#"{"VtepMAC": "0A-00-00-00-00-6F"}"#, Some("0a:00:00:00:00:6f")),
            ("vxlan", r#"{"vtepmac":"0a:00:00:00:00:65"}"#, Some("0a:00:00:00:00:65")),
            ("vxlan", r#"{"VtepMAC":7}"#, None),
            ("vxlan", "7", None),
            ("wireguard", r#"{"PublicKey":"aB-c+/="}"#, Some("aB-c+/=")),
            ("host-gw", r#"{"VtepMAC":"0a:00:00:00:00:65"}"#, None),
        ] {
            let attrs = LeaseAttrs { backend: backend.into(), v6_data: RawJson::parse(data).ok(), ..LeaseAttrs::default() };
            assert_eq!((identity_of(&attrs, true).as_deref(), identity_of(&attrs, false)), (want, None), "{data}");
        }
    }
}
