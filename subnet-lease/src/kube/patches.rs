//! Computes the changes that a daemon has to make to its own Node. Pure.

use super::annotations::{self, Prefix};
use super::node::Node;
use crate::lease::LeaseAttrs;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Interval at which the daemon restores annotations that another writer changes.
pub(crate) const RESTORE_EVERY: Duration = Duration::from_secs(10);
/// Interval at which the daemon restores the condition NetworkUnavailable, because cloud route controllers also write it.
pub(crate) const CONDITION_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub attrs: &'a LeaseAttrs,
    /// The kernel is in sync with the leases, except for failures of single peers. Only then may Kubernetes schedule pods on the Node.
    pub programmed: bool,
    pub clear_condition: bool,
}

/// What the daemon must write to the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// `None` removes an annotation.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Sets the condition NetworkUnavailable to False. The daemon never sets it to True.
    pub condition: bool,
}

impl Due {
    pub(crate) fn of(node: &Node, wanted: &Wanted<'_>, prefix: &Prefix) -> Self {
        let differs =
            |(name, value): &(&str, Option<String>)| node.annotations.get(*name) != value.as_ref();
        let annotations =
            annotations::wanted(wanted.attrs, &node.annotations).into_iter().filter(differs);
        let unavailable = node.unavailable.as_deref() != Some("False");
        Self {
            annotations: annotations.map(|(name, value)| (prefix.key(name), value)).collect(),
            condition: wanted.clear_condition && wanted.programmed && unavailable,
        }
    }
}

/// Removes published addresses that this host does not have, unless an operator chose them.
#[must_use]
pub fn withdrawn(
    node: &Node,
    local: &[IpAddr],
    prefix: &Prefix,
) -> BTreeMap<String, Option<String>> {
    let all = [
        (annotations::PUBLIC_IP, annotations::OVERWRITE),
        (annotations::PUBLIC_IPV6, annotations::OVERWRITE_V6),
    ];
    let gone = |(name, chosen): &(&str, &str)| {
        let published = node.annotations.get(*name).and_then(|text| text.trim().parse().ok());
        published.is_some_and(|ip: IpAddr| !local.contains(&ip))
            && node.annotations.get(*chosen).is_none_or(|text| text.trim().is_empty())
    };
    all.into_iter().filter(gone).map(|(name, _)| (prefix.key(name), None)).collect()
}

/// Limits how often the daemon restores what another writer changes: the first time at once, then once per interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace(Option<Duration>);

impl Pace {
    /// The earliest time of the next write.
    #[must_use]
    pub fn next(self, every: Duration, now: Duration) -> Duration {
        self.0.map_or(now, |last| (last + every).max(now))
    }

    pub fn wrote(&mut self, now: Duration) {
        self.0 = Some(now);
    }
}

/// A JSON merge patch (RFC 7396), in which `null` removes a member. It contains the uid, so the server refuses it for a new Node with the same name.
pub(crate) fn annotations_body(
    uid: &str,
    annotations: &BTreeMap<String, Option<String>>,
) -> serde_json::Value {
    serde_json::json!({ "metadata": { "uid": uid, "annotations": annotations } })
}

/// A strategic merge patch, because a JSON merge patch would replace the whole list of conditions.
pub(crate) fn condition_body(uid: &str, now: &str) -> serde_json::Value {
    serde_json::json!({ "metadata": { "uid": uid }, "status": { "conditions": [{
        "type": "NetworkUnavailable",
        "status": "False",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "FlannelIsUp",
        "message": "Flannel is running on this node",
    }] } })
}

#[cfg(test)]
mod tests {
    use super::annotations::{OVERWRITE, OVERWRITE_V6};
    use super::*;
    use crate::lease::RawJson;
    use proptest::prelude::*;

    fn prefix() -> Prefix {
        Prefix::parse("flannel.alpha.coreos.com").unwrap()
    }

    fn node(annotations: BTreeMap<String, String>, unavailable: Option<&str>) -> Node {
        let mut node = Node::read(r#"{"metadata":{"name":"n1"}}"#, &prefix()).unwrap();
        (node.annotations, node.unavailable) = (annotations, unavailable.map(str::to_owned));
        node
    }

    /// As the server applies the patches.
    fn patched(mut node: Node, due: &Due) -> Node {
        for (key, value) in &due.annotations {
            let name = prefix().name(key).unwrap().to_owned();
            match value {
                Some(value) => node.annotations.insert(name, value.clone()),
                None => node.annotations.remove(&name),
            };
        }
        if due.condition {
            node.unavailable = Some("False".to_owned());
        }
        node
    }

    fn attrs() -> impl Strategy<Value = LeaseAttrs> {
        let data = prop_oneof![
            Just(None),
            Just(RawJson::parse(r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#).ok())
        ];
        (
            any::<Option<u32>>(),
            any::<Option<u128>>(),
            prop_oneof![Just(""), Just("vxlan"), Just("host-gw")],
            data.clone(),
            data,
        )
            .prop_map(|(v4, v6, backend, data, v6_data)| LeaseAttrs {
                public_ip: v4
                    .map(Into::into)
                    .filter(|ip: &std::net::Ipv4Addr| !ip.is_unspecified()),
                public_ipv6: v6
                    .map(Into::into)
                    .filter(|ip: &std::net::Ipv6Addr| !ip.is_unspecified()),
                backend: backend.to_owned(),
                data: data.filter(|_| v4.is_some()),
                v6_data: v6_data.filter(|_| v6.is_some()),
                ..LeaseAttrs::default()
            })
    }

    fn present() -> impl Strategy<Value = BTreeMap<String, String>> {
        let name = prop_oneof![
            Just("kube-subnet-manager"),
            Just("backend-type"),
            Just("backend-data"),
            Just("backend-v6-data"),
            Just("public-ip"),
            Just("public-ipv6"),
            Just("public-ip-overwrite"),
            Just("node-public-ip"),
            Just("foreign")
        ];
        let value = prop_oneof![
            Just("true".to_owned()),
            Just("10.0.0.9".to_owned()),
            Just("null".to_owned()),
            ".{0,9}"
        ];
        proptest::collection::btree_map(name.prop_map(str::to_owned), value, 0..7)
    }

    proptest! {
        #[test]
        fn after_the_patches_nothing_is_due_and_foreign_annotations_stay(attrs in attrs(), present in present(), unavailable in any::<Option<bool>>(), programmed: bool, ours: bool) {
            let wanted = Wanted { attrs: &attrs, programmed, clear_condition: ours };
            let before = node(present, unavailable.map(|on| if on { "True" } else { "False" }));
            let due = Due::of(&before, &wanted, &prefix());
            prop_assert_eq!(due.condition, programmed && ours && unavailable != Some(false));
            let after = patched(before.clone(), &due);
            prop_assert_eq!(Due::of(&after, &wanted, &prefix()), Due::default());
            for name in ["public-ip-overwrite", "node-public-ip", "foreign"] {
                prop_assert_eq!(before.annotations.get(name), after.annotations.get(name));
            }
            let read = annotations::read(&after.annotations).unwrap();
            prop_assert!(annotations::managed(&after.annotations));
            prop_assert!(attrs.public_ip.is_none() || !annotations::by_go(&after.annotations));
            if !before.annotations.contains_key("public-ip-overwrite") {
                prop_assert_eq!((read.public_ip, read.public_ipv6), (attrs.public_ip, attrs.public_ipv6));
            }
            prop_assert_eq!(&read.backend, &attrs.backend);
            prop_assert_eq!((read.data, read.v6_data), (attrs.data.clone().filter(|_| attrs.public_ip.is_some()), attrs.v6_data.clone().filter(|_| attrs.public_ipv6.is_some())));
        }
    }

    #[test]
    fn address_that_is_gone_is_withdrawn_unless_an_operator_chose_it() {
        let due = |list: &[(&str, &str)]| {
            let annotations = list
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let local = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
            withdrawn(&node(annotations, None), &local, &prefix()).into_keys().collect::<Vec<_>>()
        };
        const V4: &str = "public-ip";
        const V6: &str = "public-ipv6";
        let cases = [
            (&[(V4, "10.0.0.1"), (V6, "fd00::1")][..], &[][..]),
            (&[(V4, "10.0.0.2"), (V6, "fd00::1")], &[V4]),
            (&[(V4, "10.0.0.2"), (OVERWRITE, "10.0.0.2"), (V6, "")], &[]),
            (&[(V6, "fd00::2"), (OVERWRITE, "10.0.0.2")], &[V6]),
            (&[(V4, "10.0.0.2"), (OVERWRITE, " "), (OVERWRITE_V6, "fd00::2")], &[V4]),
        ];
        for (present, want) in cases {
            let want: Vec<_> = want.iter().map(|name| prefix().key(name)).collect();
            assert_eq!(due(present), want, "{present:?}");
        }
    }

    /// With the uid, the server refuses a patch that was meant for a former Node of the same name.
    #[test]
    fn patches_name_the_uid_and_clear_the_condition() {
        let body = condition_body("u", "now");
        let condition = &body["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"]),
            (&"NetworkUnavailable".into(), &"False".into())
        );
        for body in [body, annotations_body("u", &BTreeMap::new())] {
            assert_eq!(body["metadata"]["uid"], "u");
        }
    }

    #[test]
    fn annotation_is_restored_at_once_and_then_seldom() {
        let at = Duration::from_secs;
        let mut pace = Pace::default();
        assert_eq!(pace.next(RESTORE_EVERY, at(5)), at(5));
        pace.wrote(at(5));
        assert_eq!(pace.next(RESTORE_EVERY, at(6)), at(15));
        assert_eq!(pace.next(RESTORE_EVERY, at(20)), at(20));
    }
}
