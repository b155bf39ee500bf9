//! Interface names of flanneld's probe port in the pods' bridge. The probe port is a veth pair. The names of both veth ends contain the index of the bridge.

/// Name prefix of the veth end in the bridge. The bridge's index follows the prefix.
const OUTER: &str = "flprobe";
/// Name prefix of the veth end outside the bridge. The bridge's index follows the prefix.
const INNER: &str = "flpod";

/// Returns the names of both veth ends of the probe port: first the end in the bridge.
pub(crate) fn names(bridge: u32) -> (String, String) {
    (format!("{OUTER}{bridge}"), format!("{INNER}{bridge}"))
}

/// Parses the index of the bridge from the name of a veth end of the probe port.
pub(crate) fn bridge_of(name: &str) -> Option<u32> {
    let index = [OUTER, INNER].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    // `parse` would also accept a sign.
    index.bytes().all(|byte| byte.is_ascii_digit()).then(|| index.parse().ok())?
}

/// Returns whether a veth device with the given name is an end of a probe port.
pub fn is_port(name: &str) -> bool {
    bridge_of(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_known_by_their_names() {
        for bridge in [7, 99_999_999] {
            let (outer, inner) = names(bridge);
            assert!(outer.len() < 16, "{outer}");
            assert_eq!([&outer, &inner].map(|name| bridge_of(name)), [Some(bridge); 2]);
        }
        for name in ["flprobe", "flpod7a", "flpod+7", "veth7", "flannel.1", "xflpod1"] {
            assert!(!is_port(name), "{name}");
        }
    }
}
