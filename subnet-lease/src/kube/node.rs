//! A Node, parsed leniently. Only the parts that flannel needs are kept, because the whole Node is many times larger.

use super::annotations::{Annotations, Prefix};
use crate::json::{Object, excerpt, hide_values};
use ipnet::IpNet;
use serde_json::value::RawValue;
use std::net::IpAddr;
use types::{Dual, Problem, Subnets};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// A new Node with the same name has another one.
    pub uid: String,
    /// Resource version; 0 if the server's is not a number.
    pub version: u64,
    /// In seconds since 1970.
    pub created: i64,
    /// `None` before the controller manager assigns podCIDRs; an error if they are not subnets, or if several belong to one family.
    pub subnets: Result<Option<Subnets>, Problem>,
    /// Those under flannel's prefix, by their short names.
    pub annotations: Annotations,
    /// Addresses of type InternalIP.
    pub internal: Vec<IpAddr>,
    /// Status of the condition NetworkUnavailable, if the Node has it.
    pub unavailable: Option<String>,
    /// The kubelet reports: the condition Ready is True or False.
    pub alive: bool,
    /// Id of the machine's current boot.
    pub boot: Option<String>,
    /// `None` without the condition Ready.
    pub report: Option<Report>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the condition Ready is True.
    pub ready: bool,
    /// Time at which the condition got its status, in seconds since 1970; 0 if unknown.
    pub since: i64,
    pub cordoned: bool,
}

impl Node {
    /// A malformed part counts as absent, because one malformed Node must not hide the others. Fails only without a JSON object, metadata or a name.
    pub fn read(text: &str, prefix: &Prefix) -> Result<Self, Problem> {
        let node = Object::parse(text)
            .map_err(|error| Problem::new("node-not-json", hide_values(&error)))?;
        let part = |name: &str| node.get(name).and_then(object);
        let metadata = part("metadata")
            .ok_or_else(|| Problem::new("node-without-metadata", "the Node has no metadata"))?;
        let word = |name: &str| metadata.read::<String>(name).ok().flatten();
        let name = word("name")
            .filter(|name| !name.is_empty())
            .ok_or_else(|| Problem::new("node-without-name", "the Node has no name"))?;
        let annotations = metadata.get("annotations").and_then(object).map(|all| {
            let ours = |(key, value): &(String, &RawValue)| {
                Some((prefix.name(key)?.to_owned(), serde_json::from_str(value.get()).ok()?))
            };
            all.0.iter().filter_map(ours).collect()
        });
        let status = part("status");
        Ok(Self {
            name,
            uid: word("uid").unwrap_or_default(),
            version: word("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0),
            created: word("creationTimestamp")
                .and_then(|text| text.parse::<jiff::Timestamp>().ok())
                .map_or(i64::MAX, jiff::Timestamp::as_second),
            subnets: part("spec").map_or(Ok(None), |spec| pod_cidrs(&spec)),
            annotations: annotations.unwrap_or_default(),
            internal: status.as_ref().map(internal).unwrap_or_default(),
            unavailable: status.as_ref().and_then(|status| condition(status, "NetworkUnavailable")),
            alive: status
                .as_ref()
                .and_then(|status| condition(status, "Ready"))
                .is_some_and(|ready| ready == "True" || ready == "False"),
            boot: status.as_ref().and_then(boot),
            report: status.as_ref().and_then(|status| report(status, part("spec").as_ref())),
        })
    }
}

fn object(raw: &RawValue) -> Option<Object<'_>> {
    Object::parse(raw.get()).ok()
}

/// Reads `podCIDRs` in any order, or `podCIDR` if `podCIDRs` is empty.
fn pod_cidrs(spec: &Object<'_>) -> Result<Option<Subnets>, Problem> {
    let mut texts: Vec<String> = spec.read("podCIDRs").ok().flatten().unwrap_or_default();
    if texts.is_empty() {
        texts.extend(spec.read::<String>("podCIDR").ok().flatten());
    }
    texts.retain(|text| !text.is_empty());
    let unusable = |text: String| Err(Problem::new("node-podcidr-unusable", text));
    let (mut v4, mut v6) = (None, None);
    for text in &texts {
        let twice = match text.parse() {
            Ok(IpNet::V4(net)) if net.prefix_len() > 0 => v4.replace(net.trunc()).is_some(),
            Ok(IpNet::V6(net)) if net.prefix_len() > 0 => v6.replace(net.trunc()).is_some(),
            _ => return unusable(format!("the podCIDR {} is not a network", excerpt(text))),
        };
        if twice {
            let all = excerpt(&texts.join(", "));
            return unusable(format!("pod cidrs should be IPv4/IPv6 only or dualstack: {all}"));
        }
    }
    Ok(Dual::from_options(v4, v6))
}

fn internal(status: &Object<'_>) -> Vec<IpAddr> {
    let addresses: Vec<&RawValue> = status
        .get("addresses")
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default();
    let internal = |raw: &RawValue| {
        let address = object(raw)?;
        let kind: String = address.read("type").ok()??;
        let text: String = address.read("address").ok()??;
        text.parse().ok().filter(|_| kind == "InternalIP")
    };
    addresses.into_iter().filter_map(internal).collect()
}

fn condition(status: &Object<'_>, wanted: &str) -> Option<String> {
    let conditions: Vec<&RawValue> = serde_json::from_str(status.get("conditions")?.get()).ok()?;
    conditions.into_iter().find_map(|raw| {
        let condition = object(raw)?;
        let kind: String = condition.read("type").ok()??;
        condition.read("status").ok()?.filter(|_| kind == wanted)
    })
}

fn report(status: &Object<'_>, spec: Option<&Object<'_>>) -> Option<Report> {
    let conditions: Vec<&RawValue> = serde_json::from_str(status.get("conditions")?.get()).ok()?;
    conditions.into_iter().find_map(|raw| {
        let condition = object(raw)?;
        let word = |name: &str| condition.read::<String>(name).ok().flatten();
        let status = word("status").filter(|_| word("type").as_deref() == Some("Ready"))?;
        Some(Report {
            ready: status == "True",
            since: word("lastTransitionTime")
                .and_then(|text| text.parse::<jiff::Timestamp>().ok())
                .map_or(0, jiff::Timestamp::as_second),
            cordoned: spec
                .and_then(|spec| spec.read::<bool>("unschedulable").ok().flatten())
                .unwrap_or_default(),
        })
    })
}

fn boot(status: &Object<'_>) -> Option<String> {
    let info = status.get("nodeInfo").and_then(object)?;
    info.read("bootID").ok().flatten().filter(|id: &String| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Node, Problem> {
        Node::read(text, &Prefix::parse("flannel.alpha.coreos.com").unwrap())
    }

    #[test]
    fn node_reads_the_fields_that_flannel_needs() {
        let node = read(
            r#"{"kind":"Node","metadata":{"name":"n1","uid":"u","resourceVersion":"17","creationTimestamp":"1970-01-01T00:01:00Z",
                "annotations":{"a":"b","flannel.alpha.coreos.com/public-ip":"10.0.0.1","flannel.alpha.coreos.com/odd":7}},
                "spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["fd00:1::/64","10.244.1.0/24"]},
                "status":{"images":[{"names":["x"]}],"addresses":[{"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"10.0.0.1"},7],
                "conditions":[{"type":"Ready","status":"True"},{"type":"NetworkUnavailable","status":"False"}],
                "nodeInfo":{"bootID":"b1","kernelVersion":"7"}}}"#,
        )
        .unwrap();
        assert_eq!(
            (node.name.as_str(), node.uid.as_str(), node.version, node.created),
            ("n1", "u", 17, 60)
        );
        assert_eq!(node.subnets.unwrap().unwrap().to_string(), "10.244.1.0/24 and fd00:1::/64");
        assert_eq!(
            node.annotations.into_iter().collect::<Vec<_>>(),
            [("public-ip".to_owned(), "10.0.0.1".to_owned())]
        );
        assert_eq!(node.internal, [IpAddr::from([10, 0, 0, 1])]);
        assert_eq!(
            (node.unavailable.as_deref(), node.alive, node.boot.as_deref()),
            (Some("False"), true, Some("b1"))
        );
    }

    #[test]
    fn node_reports_whether_it_is_ready_or_cordoned() {
        let of = |status: &str, spec: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"n1"}},"spec":{spec},"status":{{"conditions":[{{"type":"MemoryPressure","status":"False"}},
                {{"type":"Ready","status":"{status}","lastTransitionTime":"1970-01-01T00:02:00Z"}}]}}}}"#
            );
            read(&text).unwrap().report
        };
        let report = |ready, cordoned| Some(Report { ready, since: 120, cordoned });
        assert_eq!(of("True", "{}"), report(true, false));
        assert_eq!(of("Unknown", "{}"), report(false, false));
        assert_eq!(of("False", r#"{"unschedulable":true}"#), report(false, true));
        assert_eq!(of("False", r#"{"unschedulable":7}"#), report(false, false));
        let without = r#"{"metadata":{"name":"n1"},"status":{"conditions":[7,{"type":"Ready"}]}}"#;
        assert_eq!(read(without).unwrap().report, None);
    }

    #[test]
    fn odd_field_of_a_node_counts_as_absent() {
        let node = read(
            r#"{"metadata":{"name":"n1","resourceVersion":7,"annotations":null},"spec":7,"status":{"addresses":{},"conditions":[{}]}}"#,
        );
        let node = node.unwrap();
        assert_eq!(
            (node.version, node.subnets, node.internal.len(), node.unavailable),
            (0, Ok(None), 0, None)
        );
        assert_eq!((node.alive, node.boot), (false, None));
        for text in ["", "7", "{}", r#"{"metadata":{}}"#, r#"{"metadata":{"name":""}}"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pod_cidrs_of_any_shape() {
        let subnets = |spec: &str| {
            read(&format!(r#"{{"metadata":{{"name":"n"}},"spec":{spec}}}"#)).unwrap().subnets
        };
        assert_eq!(
            subnets(r#"{"podCIDR":"10.244.1.0/24"}"#).unwrap().unwrap().to_string(),
            "10.244.1.0/24"
        );
        assert_eq!(subnets(r#"{"podCIDR":""}"#), Ok(None));
        for bad in [
            r#"["10.244.1.0/24","10.244.2.0/24"]"#,
            r#"["10.244.1.0/24","fd00::/64","fd01::/64"]"#,
            r#"["x"]"#,
            r#"["0.0.0.0/0"]"#,
        ] {
            assert!(subnets(&format!(r#"{{"podCIDRs":{bad}}}"#)).is_err(), "{bad}");
        }
    }
}
