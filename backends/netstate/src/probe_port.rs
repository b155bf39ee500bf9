//! The names of the port that flanneld's own probes have in the pods' bridge: a pair of veth devices, named by the index of the bridge.

/// What is before the index in the name of the end in the bridge, and of the other one.
const OUTER: &str = "flprobe";
const INNER: &str = "flpod";

/// The names of both ends: that of the one in the bridge, and that of the other.
pub(crate) fn names(bridge: u32) -> (String, String) {
    (format!("{OUTER}{bridge}"), format!("{INNER}{bridge}"))
}

/// The index of the bridge whose port has an end of this name.
pub(crate) fn bridge_of(name: &str) -> Option<u32> {
    let index = [OUTER, INNER]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))?;
    // No sign.
    index
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| index.parse().ok())?
}

/// Whether a veth device of this name is an end of such a port.
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
            assert_eq!(
                [&outer, &inner].map(|name| bridge_of(name)),
                [Some(bridge); 2]
            );
        }
        for name in [
            "flprobe",
            "flpod7a",
            "flpod+7",
            "veth7",
            "flannel.1",
            "xflpod1",
        ] {
            assert!(!is_port(name), "{name}");
        }
    }
}
