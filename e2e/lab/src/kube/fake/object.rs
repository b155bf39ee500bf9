//! Objects of the fake: how they are created, patched and refused.

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::kube::client::Request;
use crate::kube::fake::target::{ApiError, Key, Target, refuse_request};

/// For all annotations of an object, in bytes.
const ANNOTATIONS: usize = 256 << 10;

/// With its JSON text.
pub(super) struct Object {
    pub(super) value: Value,
    pub(super) text: String,
}

impl From<Value> for Object {
    fn from(value: Value) -> Object {
        let text = value.to_string();
        Object { value, text }
    }
}

pub(super) fn failure_status(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "message": message, "code": code })
}

/// The object has this version. The result includes its key.
pub(super) fn created_object(
    target: &Target,
    body: &[u8],
    version: u64,
) -> Result<(Key, Value), ApiError> {
    let mut value = parse_json_object(body)?;
    let metadata = &mut value["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        return refuse_request(422, "name or generateName is required");
    }
    metadata["uid"] = json!(format!("{:032x}", rand::random::<u128>()));
    metadata["creationTimestamp"] = json!(format!("{:.0}", jiff::Timestamp::now()));
    metadata["resourceVersion"] = json!(version.to_string());
    if !target.namespace.is_empty() {
        metadata["namespace"] = json!(target.namespace);
    }
    if target.resource == "nodes" {
        validate_and_complete_node(&mut value, &Value::Null)?;
    }
    Ok((target.key_of(&name), value))
}

/// `None` if the patch changes nothing.
pub(super) fn patched_object(
    target: &Target,
    request: &Request<'_>,
    old: &Value,
    version: u64,
) -> Result<Option<Value>, ApiError> {
    let merges_conditions_and_addresses = match request.content_type {
        "application/merge-patch+json" => false,
        "application/strategic-merge-patch+json" => true,
        other => return refuse_request(415, format!("unknown format {other}")),
    };
    let mut new = old.clone();
    apply_merge_patch(&mut new, &parse_json_object(request.body)?, merges_conditions_and_addresses);
    if target.resource == "nodes" {
        // Each of the two paths leaves the other's part alone.
        let other = if target.is_status { "spec" } else { "status" };
        new[other] = old[other].clone();
        validate_and_complete_node(&mut new, old)?;
    }
    for (member, code) in [("name", 400), ("uid", 422), ("resourceVersion", 409)] {
        if new["metadata"][member] != old["metadata"][member] {
            return refuse_request(code, format!("metadata.{member} differs"));
        }
    }
    if new == *old {
        return Ok(None);
    }
    new["metadata"]["resourceVersion"] = json!(version.to_string());
    Ok(Some(new))
}

fn parse_json_object(body: &[u8]) -> Result<Value, ApiError> {
    match serde_json::from_slice::<Map<String, Value>>(body) {
        Ok(members) => Ok(Value::Object(members)),
        Err(error) => refuse_request(400, error.to_string()),
    }
}

/// `podCIDR` is the first of `podCIDRs`.
fn pod_cidrs(node: &Value) -> Vec<String> {
    let all = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    let all: Vec<String> = all.filter_map(Value::as_str).map(str::to_owned).collect();
    match node["spec"]["podCIDR"].as_str() {
        Some(first) if all.first().is_none_or(|cidr| cidr != first) => vec![first.to_owned()],
        _ => all,
    }
}

/// Refuses what the real server's validation refuses.
fn validate_and_complete_node(node: &mut Value, old: &Value) -> Result<(), ApiError> {
    let (cidrs, before) = (pod_cidrs(node), pod_cidrs(old));
    let nets: Result<Vec<IpNet>, _> = cidrs.iter().map(|text| text.parse()).collect();
    let Ok(nets) = nets else {
        return refuse_request(422, "spec.podCIDRs: Invalid value");
    };
    let v4 = nets.iter().filter(|net| net.addr().is_ipv4()).count();
    if v4 > 1 || nets.len() - v4 > 1 {
        return refuse_request(422, "spec.podCIDRs: more than one CIDR for an IP family");
    }
    if !before.is_empty() && before != cidrs {
        let rule = "node updates may not change podCIDR except from \"\" to valid";
        return refuse_request(422, format!("spec.podCIDRs: Forbidden: {rule}"));
    }
    if let Some(first) = cidrs.first() {
        node["spec"]["podCIDR"] = json!(first);
        node["spec"]["podCIDRs"] = json!(cidrs);
    }
    let annotations = node["metadata"]["annotations"].as_object();
    let sizes = annotations.into_iter().flatten();
    let sizes = sizes.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len));
    if sizes.sum::<usize>() > ANNOTATIONS {
        return refuse_request(422, "metadata.annotations: Too long");
    }
    Ok(())
}

/// Applies RFC 7396. A strategic merge patch differs in one respect that matters here: lists of conditions and of addresses are merged by the
/// members' types.
fn apply_merge_patch(into: &mut Value, patch: &Value, merges_conditions_and_addresses: bool) {
    let Value::Object(members) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in members {
        let by_type =
            merges_conditions_and_addresses && matches!(name.as_str(), "conditions" | "addresses");
        match (value, &mut into[name]) {
            (Value::Array(news), Value::Array(olds)) if by_type => {
                for new in news {
                    match olds.iter_mut().find(|old| old["type"] == new["type"]) {
                        Some(old) => apply_merge_patch(old, new, merges_conditions_and_addresses),
                        None => olds.push(new.clone()),
                    }
                }
            }
            (_, old) => apply_merge_patch(old, value, merges_conditions_and_addresses),
        }
    }
    if let Some(object) = into.as_object_mut() {
        object.retain(|_, value| !value.is_null());
    }
}
