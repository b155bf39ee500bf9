//! Interface names of flanneld's probe port in the pods' bridge: a veth pair whose ends both have
//! the index of the bridge in their names.

/// The end in the bridge; the bridge's index follows.
const OUTER: &str = "flprobe";
/// The end outside the bridge; the bridge's index follows.
const INNER: &str = "flpod";

/// The first name is that of the end in the bridge.
pub(crate) fn names(bridge: u32) -> (String, String) {
    (format!("{OUTER}{bridge}"), format!("{INNER}{bridge}"))
}

pub(crate) fn bridge_of(name: &str) -> Option<u32> {
    let index = [OUTER, INNER].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    // `parse` would also accept a sign.
    index.bytes().all(|byte| byte.is_ascii_digit()).then(|| index.parse().ok())?
}

#[must_use]
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
