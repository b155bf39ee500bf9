//! Checks that the schemas in `docs/schema` describe the types of the documents exactly.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use doctor::{Report, finding};
use node_api::probe::{Outcome, StepName};
use node_api::routes::{self, ObjectKind, ObjectState, Routes};
use node_api::{
    CLUSTER, Cluster, FileState, Node, PEERS, PROBE, Peers, Probe, SCHEMA, STATUS, Source, Status,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::fmt::Debug;
use types::Detail;
use types::reachability::State;

fn schema(name: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema");
    let text = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Which of the values that a schema allows an example has.
#[derive(Clone, Copy)]
enum Choice {
    /// No value is null, each list has one element, and of the values of an enumeration, the example has the one with this number.
    Full(usize),
    /// Everything that may be null is null, and each list is empty.
    Least,
}

struct Example {
    choice: Choice,
    /// Paths of the values that must not be null.
    never_null: Vec<String>,
}

impl Example {
    /// A value that the part of a schema allows.
    fn of(&mut self, schema: &Value, part: &Value, place: &str) -> Value {
        if part["$ref"] == "node.json" {
            let node = self::schema("node.json");
            return self.of(&node, &node, place);
        }
        if let Some(name) = part["$ref"].as_str() {
            return self.of(schema, &schema["$defs"][name.rsplit('/').next().unwrap()], place);
        }
        let null = json!({ "type": "null" });
        let (kinds, choices) = (part["type"].as_array(), part["anyOf"].as_array());
        let is_nullable = kinds.into_iter().flatten().any(|kind| kind == "null")
            || choices.into_iter().flatten().any(|choice| *choice == null);
        match self.choice {
            Choice::Least if is_nullable => return Value::Null,
            Choice::Full(_) if !is_nullable => self.never_null.push(place.to_owned()),
            _ => {}
        }
        if let Some(choices) = choices {
            assert_eq!(choices[1..], [null], "{place}");
            self.never_null.retain(|path| path != place);
            let never_null = self.never_null.len();
            let value = self.of(schema, &choices[0], place);
            // The value itself may be null.
            if self.never_null.get(never_null).is_some_and(|path| path == place) {
                self.never_null.remove(never_null);
            }
            return value;
        }
        if let Some(values) = part["enum"].as_array() {
            let Choice::Full(number) = self.choice else {
                return values[0].clone();
            };
            return values[number % values.len()].clone();
        }
        if let Some(only) = part.get("const") {
            return only.clone();
        }
        let kind = kinds.map_or(&part["type"], |kinds| &kinds[0]);
        match kind.as_str().unwrap() {
            "boolean" => json!(true),
            "integer" => json!(1),
            // A problem may have parts, which are problems.
            "array" if matches!(self.choice, Choice::Least) || place.contains("/parts/0/") => {
                json!([])
            }
            "array" => json!([self.of(schema, &part["items"], &format!("{place}/0"))]),
            "object" => self.object(schema, part, place),
            _ => json!(text_at(part, place)),
        }
    }

    fn object(&mut self, schema: &Value, part: &Value, place: &str) -> Value {
        if place.ends_with("/detail") {
            let name = "vxlan".to_owned();
            return serde_json::to_value(Detail::ModuleMissing { name }).unwrap();
        }
        let Some(fields) = part["properties"].as_object() else {
            // The keys are verdicts.
            let value = self.of(schema, &part["additionalProperties"], &format!("{place}/well"));
            return json!({ "well": value });
        };
        let required = part["required"].as_array().into_iter().flatten();
        let mut required: Vec<&str> = required.map(|name| name.as_str().unwrap()).collect();
        required.sort_unstable();
        assert!(fields.keys().eq(required), "{place}: each field is required");
        // Later versions may add fields; documents with more fields must still validate.
        assert_eq!(part["additionalProperties"], true, "{place}");
        let value = |(name, part): (&String, &Value)| {
            let place = format!("{place}/{name}");
            (name.clone(), self.of(schema, part, &place))
        };
        fields.iter().map(value).collect::<serde_json::Map<_, _>>().into()
    }
}

/// A text that the field with this path accepts.
fn text_at(part: &Value, place: &str) -> &'static str {
    let field = place.rsplit('/').find(|name| *name != "0").unwrap();
    match field {
        _ if part["format"] == "date-time" => "2026-01-01T00:00:00Z",
        "address" if place.contains("problems") => "192.0.2.1:8473",
        "subnet" | "subnets" | "networks" => "10.244.2.0/24",
        "address" | "addresses" | "public" | "overlay" | "pod" => "192.0.2.2",
        _ => "x",
    }
}

/// Tests that a type accepts what its schema allows, writes it unchanged, and accepts no null where the schema allows none.
/// Returns a full document.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, title: &str) -> T {
    let schema = schema(&format!("{name}.json"));
    assert_eq!(schema["title"], title);
    let mut documents = Vec::new();
    // More than the values of the longest enumeration.
    for choice in (0..20).map(Choice::Full).chain([Choice::Least]) {
        let mut example = Example { choice, never_null: Vec::new() };
        let value = example.of(&schema, &schema, "");
        let document: T = serde_json::from_value(value.clone())
            .unwrap_or_else(|error| panic!("{name}: {error}: {value:#}"));
        assert_eq!(serde_json::to_value(&document).unwrap(), value, "{name}");
        for path in
            example.never_null.iter().filter(|path| !path.is_empty() && !path.ends_with("/detail"))
        {
            let mut value = value.clone();
            *value.pointer_mut(path).unwrap() = Value::Null;
            assert!(serde_json::from_value::<T>(value).is_err(), "{name}: {path} may be null");
        }
        documents.push(document);
    }
    documents.swap_remove(0)
}

#[test]
fn schemas_describe_the_types() {
    check::<Node>("node", SCHEMA);
    check::<Report>("findings", finding::SCHEMA);
    check::<Cluster>("cluster", CLUSTER);
    check::<Status>("status", STATUS);
    check::<Peers>("peers", PEERS);
    check::<Routes>("routes", routes::SCHEMA);
    check::<Probe>("probe", PROBE);
}

#[test]
fn schemas_list_the_values_of_each_enumeration() {
    let kinds = json!([
        ObjectKind::Link,
        ObjectKind::Address,
        ObjectKind::Fdb,
        ObjectKind::Neighbour,
        ObjectKind::WireguardPeer,
        ObjectKind::AllowedIp,
        ObjectKind::Route,
        ObjectKind::Blackhole,
    ]);
    let states = json!([
        ObjectState::InSync,
        ObjectState::Missing,
        ObjectState::Different,
        ObjectState::Refused,
    ]);
    let files = json!([FileState::Right, FileState::Missing, FileState::Different]);
    for (name, place, values) in [
        ("node", "/$defs/file/properties/state", files),
        ("cluster", "/properties/source", json!([Source::Pods, Source::Probes])),
        ("routes", "/$defs/object/properties/kind", kinds.clone()),
        ("routes", "/$defs/foreign/properties/kind", kinds),
        ("routes", "/$defs/object/properties/state", states),
        ("probe", "/$defs/step/properties/outcome", json!(Outcome::ALL)),
        ("probe", "/$defs/state", json!(State::ALL)),
        ("probe", "/$defs/name", json!(StepName::ALL)),
    ] {
        let schema = schema(&format!("{name}.json"));
        let sorted = |values: &Value| {
            let mut values: Vec<String> = serde_json::from_value(values.clone()).unwrap();
            values.sort_unstable();
            values
        };
        let described = &schema.pointer(place).unwrap()["enum"];
        assert_eq!(sorted(described), sorted(&values), "{name}{place}");
    }
}

#[test]
fn node_document_keeps_the_order_of_its_fields() {
    let text = serde_json::to_string(&check::<Node>("node", SCHEMA)).unwrap();
    let places =
        ["uptime_seconds", "ready", "notices", "networks", "subnet_env", "store", "findings"]
            .map(|name| text.find(&format!("\"{name}\":")).unwrap());
    assert!(places.is_sorted(), "{places:?} in {text}");
}

#[test]
fn probe_without_a_state_is_read() {
    // Earlier daemons do not write this field.
    let mut value = serde_json::to_value(check::<Probe>("probe", PROBE)).unwrap();
    value.as_object_mut().unwrap().remove("state").unwrap();
    assert_eq!(serde_json::from_value::<Probe>(value).unwrap().state, None);
}
