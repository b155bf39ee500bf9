//! Cases without a manager: the answers of an API server on which the manager and the tests rely. They show that the fake answers as a real server.

use crate::bed::Bed;
use crate::case::cases;
use serde_json::{Value, json};

cases! {
    requests_are_refused_with_the_expected_status: [Nodes],
    patches_change_their_part_of_a_node: [Nodes],
    lists_have_pages_and_versions: [Nodes],
    watches_tell_each_change_after_a_version: [Nodes],
}

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

impl Bed {
    /// Returns the query of a list or a watch of one Node.
    fn only(&self, name: &str, query: &str) -> String {
        let name = self.cluster().full(name);
        format!("/api/v1/nodes?fieldSelector=metadata.name%3D{name}&{query}")
    }

    fn get_json(&self, path: &str) -> Value {
        let (status, answer) = self.cluster().answer("GET", path, None);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Returns the events of a watch that ends after a second: their types and objects.
    fn watched(&self, path: &str) -> Vec<(String, Value)> {
        let lines = match self.get_json(&format!("{path}&watch=1&timeoutSeconds=1")) {
            Value::String(lines) => lines,
            line => line.to_string(),
        };
        let event = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap();
            let kind = event["type"].as_str().unwrap();
            (kind.to_owned(), event["object"].clone())
        };
        lines.lines().map(event).collect()
    }
}

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.unwrap().parse().unwrap()
}

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

async fn patches_change_their_part_of_a_node(bed: Bed) {
    bed.cluster().create("a", &json!([]), &[]);
    let patch = |path: &str, content: &str, patch: Value| {
        let (status, answer) = bed.cluster().answer("PATCH", path, Some((content, &patch)));
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let (main, status) = (
        bed.cluster().path("a"),
        format!("{}/status", bed.cluster().path("a")),
    );
    let condition = |kind: &str, status: &str| json!({ "status": { "conditions": [{ "type": kind, "status": status }] }, "spec": { "unschedulable": status == "True" } });
    let conditions = |node: &Value| {
        let all = node["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        all.map(|condition| {
            format!(
                "{}={}",
                condition["type"].as_str().unwrap(),
                condition["status"].as_str().unwrap()
            )
        })
        .collect::<Vec<_>>()
    };
    // The object's own path changes the spec alone, and the path of its status the status alone.
    let node = patch(&main, STRATEGIC, condition("Ready", "True"));
    assert_eq!(
        (conditions(&node).len(), &node["spec"]["unschedulable"]),
        (0, &json!(true))
    );
    let node = patch(&status, STRATEGIC, condition("Ready", "False"));
    assert_eq!(
        (conditions(&node), &node["spec"]["unschedulable"]),
        (vec!["Ready=False".to_owned()], &json!(true))
    );
    let node = patch(&status, STRATEGIC, condition("NetworkUnavailable", "True"));
    let mut all = conditions(&node);
    all.sort();
    assert_eq!(all, ["NetworkUnavailable=True", "Ready=False"]);
    let node = patch(&status, STRATEGIC, condition("NetworkUnavailable", "False"));
    assert!(conditions(&node).contains(&"NetworkUnavailable=False".to_owned()));
    assert_eq!(conditions(&node).len(), 2);
    let node = patch(&status, MERGE, condition("Ready", "True"));
    assert_eq!(
        conditions(&node),
        ["Ready=True"],
        "a merge patch replaces the list"
    );
    // Annotations are reached by both paths. `null` removes one.
    let annotate =
        |value: Value| json!({ "metadata": { "annotations": { "example.org/a": value } } });
    let set = patch(&status, MERGE, annotate(json!("1")));
    assert_eq!(set["metadata"]["annotations"]["example.org/a"], "1");
    assert!(version(&set) > version(&node));
    let same = patch(&main, MERGE, annotate(json!("1")));
    assert_eq!(version(&same), version(&set), "nothing has changed");
    let removed = patch(&main, MERGE, annotate(Value::Null));
    assert!(
        removed["metadata"]["annotations"]
            .get("example.org/a")
            .is_none()
    );
    let assigned = patch(
        &main,
        MERGE,
        json!({ "spec": { "podCIDR": "10.5.1.0/24" } }),
    );
    assert_eq!(assigned["spec"]["podCIDRs"], json!(["10.5.1.0/24"]));
}

async fn lists_have_pages_and_versions(bed: Bed) {
    for name in ["a", "b", "c"] {
        bed.cluster().create(name, &json!([]), &[]);
    }
    let items = |list: &Value| list["items"].as_array().unwrap().clone();
    let first = bed.get_json("/api/v1/nodes?limit=1");
    // A page shows the state of the first page.
    bed.cluster().create("d", &json!([]), &[]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let token = token.replace('+', "%2B").replace('=', "%3D");
    let rest = bed.get_json(&format!("/api/v1/nodes?limit=500&continue={token}"));
    assert_eq!(items(&first).len(), 1);
    assert_eq!(version(&first), version(&rest));
    let has = |name: &str| {
        let name = bed.cluster().full(name);
        let all = [items(&first), items(&rest)].concat();
        all.iter().any(|node| node["metadata"]["name"] == *name)
    };
    assert_eq!(["a", "b", "c", "d"].map(has), [true, true, true, false]);
    // The cache ignores the limit.
    let cached = bed.get_json("/api/v1/nodes?limit=1&resourceVersion=0");
    assert!(items(&cached).len() >= 4 && cached["metadata"].get("continue").is_none());
    let one = bed.get_json(&bed.only("a", "limit=1"));
    assert_eq!(items(&one)[0]["metadata"]["name"], *bed.cluster().full("a"));
    assert!(items(&one).len() == 1 && version(&one) >= version(&items(&one)[0]));
    assert!(items(&bed.get_json(&bed.only("nobody", ""))).is_empty());
}

async fn watches_tell_each_change_after_a_version(bed: Bed) {
    let begin = version(&bed.get_json(&bed.only("a", "")));
    let from = |version: u64| bed.only("a", &format!("resourceVersion={version}"));
    bed.cluster().create("a", &json!(["10.5.1.0/24"]), &[]);
    bed.cluster().create("b", &json!(["10.5.2.0/24"]), &[]);
    bed.cluster().annotate("a", "example.org/a", Some("1"));
    bed.cluster().delete_node("a");
    bed.cluster().create("a", &json!(["10.5.3.0/24"]), &[]);
    let events = bed.watched(&from(begin));
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED", "ADDED"]);
    let versions: Vec<u64> = events.iter().map(|(_, object)| version(object)).collect();
    assert!(versions.is_sorted() && versions[0] > begin, "{versions:?}");
    assert!(versions[2] > versions[1], "a deletion has its own version");
    assert_ne!(
        events[2].1["metadata"]["uid"],
        events[3].1["metadata"]["uid"]
    );
    let events = bed.watched(&from(versions[2]));
    assert_eq!(events.len(), 1, "{events:?}");
    let ahead = versions[3] + 1_000_000;
    assert!(
        bed.watched(&from(ahead)).is_empty(),
        "no error, and no event"
    );
    // A list as a stream.
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let events = bed.watched(&bed.only("a", query));
    assert_eq!((&*events[0].0, &*events[1].0), ("ADDED", "BOOKMARK"));
    assert_eq!(version(&events[0].1), versions[3]);
    assert!(version(&events[1].1) >= versions[3]);
    let annotations = &events[1].1["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
}
