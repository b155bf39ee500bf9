//! Cases without a manager: the answers of an API server on which the manager and the tests rely. They show that the fake answers as a real server.

use crate::bed::Bed;
use crate::case::cases;
use serde_json::{Value, json};

cases! {
    requests_are_refused_with_the_expected_status: [Nodes],
}

const MERGE: &str = "application/merge-patch+json";

async fn requests_are_refused_with_the_expected_status(bed: Bed) {
    bed.cluster().create("a", &json!(["10.5.1.0/24"]), &[]);
    let node = |name: &str, cidrs: &[&str]| {
        json!({
            "kind": "Node", "apiVersion": "v1", "metadata": { "name": bed.cluster().full(name) },
            "spec": { "podCIDR": cidrs.first(), "podCIDRs": cidrs },
        })
    };
    let mut large = node("b", &[]);
    large["metadata"]["annotations"] = json!({ "a": "x".repeat(256 << 10) });
    let nameless = json!({ "kind": "Node", "apiVersion": "v1", "metadata": {} });
    let metadata = |member: &str, value: &str| json!({ "metadata": { member: value } });
    let spec = |cidr: Option<&str>| json!({ "spec": { "podCIDR": cidr, "podCIDRs": cidr.map(|cidr| [cidr]) } });
    let (a, b) = (bed.cluster().path("a"), bed.cluster().path("b"));
    let all = "/api/v1/nodes";
    let (ahead, stream) = (
        format!("{all}?resourceVersion=999999999&resourceVersionMatch=NotOlderThan"),
        format!("{all}?watch=1&sendInitialEvents=true"),
    );
    let rows = [
        (404, "GET", &*b, Value::Null),
        (404, "GET", "/apis/no-such.example/v1/nodes", Value::Null),
        (404, "DELETE", &b, Value::Null),
        (404, "PATCH", &b, json!({})),
        (409, "POST", all, node("a", &[])),
        (422, "POST", all, nameless),
        (422, "POST", all, node("b", &["10.5.0.0/33"])),
        (422, "POST", all, node("b", &["10.5.2.0/24", "10.5.3.0/24"])),
        (422, "POST", all, large),
        (400, "PATCH", &a, json!(7)),
        (400, "PATCH", &a, metadata("name", "b")),
        (409, "PATCH", &a, metadata("resourceVersion", "1")),
        (422, "PATCH", &a, metadata("uid", "another")),
        (422, "PATCH", &a, spec(Some("10.5.9.0/24"))),
        (422, "PATCH", &a, spec(None)),
        (400, "GET", "/api/v1/nodes?resourceVersion=x", Value::Null),
        (504, "GET", &ahead, Value::Null),
        (422, "GET", &stream, Value::Null),
        (415, "PUT", &a, json!({})),
    ];
    for (want, method, path, body) in rows {
        let (method, content) = match method {
            "PATCH" => (method, MERGE),
            // A patch of an unknown kind.
            "PUT" => ("PATCH", "text/plain"),
            _ => (method, "application/json"),
        };
        let content = (!body.is_null()).then_some((content, &body));
        let (status, answer) = bed.cluster().answer(method, path, content);
        let body: String = body.to_string().chars().take(200).collect();
        assert_eq!(status, want, "{method} {path} {body}: {answer}");
    }
}
