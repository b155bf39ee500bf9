//! Checks that the schemas in `docs/schema` describe the types of the documents exactly.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use doctor::finding::{self, Unknown as Unmade};
use doctor::{Finding, Report, Severity};
use node_api::probe::{Next, Outcome, QuestionKind, Questions, Step, StepName, Target};
use node_api::routes::{self, Foreign, Holder, Object, ObjectKind, Routes};
use node_api::{
    CLUSTER, Cluster, Consequence, FailedPeer, File, FileState, Kernel, Lease, LostPods, Node,
    NodeNetwork, Notice, PEERS, PROBE, Peer, Peers, PodPath, Probe, Probed, Readiness, Reason,
    Rules, SCHEMA, STATUS, Shared, Source, Status, Store, StoreKind, Unanswered, Underlay, Unused,
    Wireguard,
};
use probing::pods::{Lost, PodState};
use probing::view::{self, Mesh};
use run_dir::exit_report::{Choice, ExitReport};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use types::reachability::State;
use types::{Detail, Family, Problem};

fn schema(name: &str) -> Value {
    let path = format!(
        "{}/../../docs/schema/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn finding() -> Finding {
    let mut finding = Finding::new("mtu", Severity::Degraded, "eth1", "what", "why")
        .seen("text", "from")
        .run("true");
    finding.since = Some(jiff::Timestamp::UNIX_EPOCH);
    finding.explained_by = Some(String::new());
    finding.peers = vec![String::new()];
    // The doctor's table consumes this field. No document contains it.
    finding.acts_on.clear();
    finding
}

fn peer() -> view::PeerView {
    let text = String::new;
    view::PeerView {
        id: Some("".into()),
        name: Some("".into()),
        subnet: "10.244.2.0/24".parse().unwrap(),
        address: "192.0.2.2".parse().unwrap(),
        overlay: Some("10.244.2.0".parse().unwrap()),
        state: State::Well,
        state_age_ms: 1,
        ping_only: false,
        inferred: true,
        refuses: false,
        rtt_us: Some(1),
        lost: 0,
        asked: 16,
        carries: Some(1450),
        mtu: 1450,
        ages: view::Ages {
            asked_age_ms: Some(1),
            answered_age_ms: Some(1),
            underlay_age_ms: Some(1),
            hears_us_age_ms: Some(1),
            hears_us_underlay_age_ms: Some(1),
            heard_age_ms: Some(1),
            heard_underlay_age_ms: Some(1),
        },
        clock_offset_ms: Some(1),
        answered_by: Some(text()),
        others: vec![view::PeerOpinion {
            by: text(),
            state: State::Well,
            age_ms: 1,
        }],
    }
}

fn mesh() -> Mesh {
    let (text, subnet) = (String::new, "10.244.2.0/24".parse().unwrap());
    let own = view::Own {
        ready: true,
        broken: 0,
        degraded: 0,
        risks: 0,
        gravest: Some(text()),
        checks: vec![text()],
    };
    let cell = view::Cell {
        subnet,
        state: State::Well,
        ping_only: true,
        rtt_us: Some(1),
        lost: 0,
        asked_age_ms: Some(1),
    };
    Mesh {
        at_ms: 1,
        running_ms: 1,
        port: 8473,
        cycle_ms: 5000,
        traffic: view::Traffic::default(),
        problems: vec![view::Problem {
            address: "192.0.2.1:8473".parse().ok(),
            taken: true,
            what: text(),
        }],
        faults: vec![view::CommonFault {
            family: Family::V4,
            state: State::CutOff,
            age_ms: 1,
            asked: 13,
            failed: 13,
            peers: 99,
        }],
        losses: view::Losses {
            asked: 1200,
            lost: 1,
            losers: 1,
        },
        peers: vec![peer()],
        rows: vec![view::Row {
            id: Some("".into()),
            name: Some("".into()),
            subnet,
            asked_age_ms: 1,
            answered_age_ms: Some(1),
            own: Some(own),
            counts: [(State::Well, 1)].into(),
            rtt_us: Some(1),
            peers: vec![cell],
        }],
    }
}

fn pod_path() -> PodPath {
    let text = String::new;
    PodPath {
        family: Family::V4,
        state: PodState::Some,
        address: "10.244.1.254".parse().ok(),
        obstacle: Some(text()),
        detail: Some(text()),
        asked: 2,
        answered: 1,
        lost: vec![LostPods {
            subnet: "10.244.2.0/24".parse().unwrap(),
            what: Lost::Calls,
        }],
    }
}

fn kernel() -> Kernel {
    let text = String::new;
    Kernel {
        in_sync: true,
        trouble: text(),
        failed_peers: vec![FailedPeer {
            node: Some(text()),
            subnet: "10.244.2.0/24".parse().unwrap(),
            address: "192.0.2.2".parse().unwrap(),
            text: text(),
        }],
        routes: 1,
        neighbours: 1,
        fdb: 1,
        put_back: 1,
        wireguard: Some(Wireguard {
            peers: 1,
            silent: 1,
        }),
    }
}

fn rules() -> Rules {
    let text = String::new;
    Rules {
        with: text(),
        what: vec![text()],
        in_place: true,
        trouble: text(),
        put_back: 1,
    }
}

/// Returns a document in which every field has a value and every list has an element. The document must contain a value for each new field of a type.
fn full() -> Node {
    let text = String::new;
    let time = jiff::Timestamp::UNIX_EPOCH;
    Node {
        schema: SCHEMA.to_owned(),
        at: time,
        node: text(),
        node_id: Some("".into()),
        version: text(),
        uptime_seconds: 1,
        readiness: Readiness {
            ready: true,
            reasons: vec![Reason {
                condition: text(),
                code: text(),
                text: text(),
            }],
            silent: Some(text()),
            notices: vec![Notice {
                name: text(),
                text: text(),
            }],
        },
        network: NodeNetwork {
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            backend: Some(text()),
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            lease: Some(Lease {
                until: Some(time),
                renewed: Some(time),
                trouble: Some(text()),
            }),
            underlay: Some(Underlay {
                interface: text(),
                addresses: vec!["192.0.2.1".parse().unwrap()],
                public: vec!["192.0.2.1".parse().unwrap()],
                mtu: 1500,
                why: text(),
            }),
            mtu: Some(1450),
            subnet_env: Some(File {
                path: "/run".into(),
                state: FileState::Right,
            }),
        },
        store: Some(Store {
            kind: Some(StoreKind::Kubernetes),
            what: text(),
            heard: Some(time),
            trouble: Some(text()),
        }),
        kernel: Some(kernel()),
        rules: Some(rules()),
        findings: Some(vec![finding()]),
        unknown: vec![Unmade {
            check: text(),
            why: text(),
        }],
        mesh: Some(mesh()),
        pod_paths: Some(vec![pod_path()]),
        page: Some(text()),
        peers: vec![Peer {
            node: Some(text()),
            subnets: vec!["10.244.2.0/24".parse().unwrap()],
            addresses: vec!["192.0.2.2".parse().unwrap()],
        }],
        unused: vec![Unused {
            lease: text(),
            reason: text(),
            text: text(),
        }],
    }
}

/// Compares a value with the part of the schema that describes it. If `full` is set, no field of the value may be null.
fn compare(schema: &Value, part: &Value, value: &Value, full: bool, place: &str) {
    if part["$ref"] == "node.json" {
        let node = self::schema("node");
        return compare(&node, &node, value, full, place);
    }
    if let Some(name) = part["$ref"].as_str() {
        return compare(
            schema,
            &schema["$defs"][name.rsplit('/').next().unwrap()],
            value,
            full,
            place,
        );
    }
    if let Some(choices) = part["anyOf"].as_array() {
        assert!(
            choices.len() == 2 && choices[1] == json!({"type": "null"}),
            "{place}"
        );
        return if value.is_null() {
            assert!(!full, "{place}");
        } else {
            compare(schema, &choices[0], value, full, place);
        };
    }
    compare_type(part, value, place);
    match value {
        Value::Array(items) => items
            .iter()
            .for_each(|item| compare(schema, &part["items"], item, full, &format!("{place}[]"))),
        Value::Object(fields) if part["properties"].is_null() => {
            fields.values().for_each(|value| {
                compare(schema, &part["additionalProperties"], value, full, place);
            });
        }
        Value::Object(fields) => {
            compare_names(part, fields, place);
            fields.iter().for_each(|(name, value)| {
                compare(
                    schema,
                    &part["properties"][name],
                    value,
                    full,
                    &format!("{place}.{name}"),
                );
            });
        }
        _ => {
            assert!(
                part["enum"]
                    .as_array()
                    .is_none_or(|choices| choices.contains(value)),
                "{place}"
            );
            assert!(
                part.get("const").is_none_or(|only| only == value || !full),
                "{place}"
            );
        }
    }
}

/// Compares the type of a value with the types that the schema allows.
fn compare_type(part: &Value, value: &Value, place: &str) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds: Vec<&str> = part["type"]
        .as_array()
        .map_or_else(|| vec![&part["type"]], |kinds| kinds.iter().collect())
        .iter()
        .map(|kind| kind.as_str().unwrap())
        .collect();
    assert!(kinds.contains(&kind), "{place} is {kind}, not {kinds:?}");
}

/// Compares the names of an object's fields with the names in the schema. The schema must list the names of all fields as required.
fn compare_names(part: &Value, fields: &Map<String, Value>, place: &str) {
    let described: BTreeSet<&String> = part["properties"].as_object().unwrap().keys().collect();
    assert_eq!(fields.keys().collect::<BTreeSet<_>>(), described, "{place}");
    let required: BTreeSet<&str> = part["required"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    assert_eq!(
        required,
        described.iter().map(|name| name.as_str()).collect(),
        "{place}"
    );
    // Later versions may add fields; documents with more fields must still validate.
    assert_eq!(part["additionalProperties"], true, "{place}");
}

#[test]
fn node_schema_describes_the_types() {
    let schema = schema("node");
    assert_eq!(schema["title"], SCHEMA);
    compare(
        &schema,
        &schema,
        &serde_json::to_value(full()).unwrap(),
        true,
        "node",
    );
    compare(
        &schema,
        &schema,
        &serde_json::to_value(Node::default()).unwrap(),
        false,
        "node",
    );
    for state in [FileState::Right, FileState::Missing, FileState::Different] {
        assert!(
            schema["$defs"]["file"]["properties"]["state"]["enum"]
                .as_array()
                .unwrap()
                .contains(&serde_json::to_value(state).unwrap())
        );
    }
}

#[test]
fn node_document_keeps_the_order_of_its_fields() {
    let text = serde_json::to_string(&full()).unwrap();
    let places = [
        "uptime_seconds",
        "ready",
        "notices",
        "networks",
        "subnet_env",
        "store",
        "findings",
    ]
    .map(|name| text.find(&format!("\"{name}\":")).unwrap());
    assert!(places.is_sorted(), "{places:?} in {text}");
}

#[test]
fn findings_schema_describes_the_report() {
    let schema = schema("findings");
    let unknown = vec![Unmade {
        check: String::new(),
        why: String::new(),
    }];
    let report = Report {
        schema: finding::SCHEMA.to_owned(),
        node: String::new(),
        at: jiff::Timestamp::UNIX_EPOCH,
        daemon: finding::DaemonState::Running,
        checks: 1,
        findings: vec![finding()],
        unknown,
    };
    assert_eq!(schema["title"], finding::SCHEMA);
    compare(
        &schema,
        &schema,
        &serde_json::to_value(report).unwrap(),
        true,
        "findings",
    );
}

#[test]
fn cluster_schema_describes_the_document() {
    let schema = schema("cluster");
    let text = String::new;
    let cluster = Cluster {
        schema: CLUSTER.to_owned(),
        at: jiff::Timestamp::UNIX_EPOCH,
        source: Source::Probes,
        answered: vec![text()],
        unanswered: vec![Unanswered {
            node: text(),
            why: text(),
        }],
        findings: vec![Shared {
            nodes: vec![text()],
            finding: finding(),
            explains: vec![Consequence {
                node: text(),
                check: text(),
                what: text(),
            }],
        }],
    };
    assert_eq!(schema["title"], CLUSTER);
    let document = serde_json::to_value(&cluster).unwrap();
    compare(&schema, &schema, &document, true, "cluster");
    let sources = [Source::Pods, Source::Probes];
    assert_eq!(schema["properties"]["source"]["enum"], json!(sources));
}

#[test]
fn flannelctl_schemas_describe_its_output() {
    let detail = Detail::ModuleMissing {
        name: "vxlan".to_owned(),
    };
    let problem = Problem {
        detail,
        parts: vec![Problem::in_words("")],
        ..Problem::in_words("")
    };
    let choice = Choice {
        addresses: vec!["192.0.2.1".parse().unwrap()],
        flag: Some(String::new()),
        ..Choice::default()
    };
    let (at, text, version) = (jiff::Timestamp::UNIX_EPOCH, String::new(), String::new());
    let words = ExitReport {
        at,
        code: 1,
        text,
        version,
        problem: Some(problem),
        choice: Some(choice),
    };
    let status = Status {
        schema: STATUS.to_owned(),
        host: String::new(),
        daemon: finding::DaemonState::Stopped,
        trouble: Some(String::new()),
        exit_report: Some(words),
        node: Some(full()),
    };
    let probed = Probed {
        peer: full().peers.remove(0),
        verdicts: mesh().peers,
    };
    let peers = Peers {
        schema: PEERS.to_owned(),
        node: String::new(),
        probed: true,
        peers: vec![probed],
        rows: mesh().rows,
        answering: 1,
        missing: 0,
    };
    for (name, title, value) in [
        ("status", STATUS, serde_json::to_value(status).unwrap()),
        ("peers", PEERS, serde_json::to_value(peers).unwrap()),
    ] {
        let schema = schema(name);
        assert_eq!(schema["title"], title);
        compare(&schema, &schema, &value, true, name);
    }
}

#[test]
fn routes_schema_describes_the_document() {
    let schema = schema("routes");
    let holder = Holder {
        node: Some(String::new()),
        subnet: "10.244.2.0/24".parse().unwrap(),
        address: "192.0.2.2".parse().unwrap(),
    };
    let object = Object {
        kind: ObjectKind::Route,
        text: String::new(),
        holder: Some(holder),
        state: routes::ObjectState::Refused,
        found: Some(String::new()),
        why: Some(String::new()),
    };
    let foreign = Foreign {
        kind: ObjectKind::Route,
        text: String::new(),
        by: String::new(),
        own_subnet: true,
        conflicts_with: vec![String::new()],
    };
    let full = Routes {
        schema: routes::SCHEMA.to_owned(),
        at: jiff::Timestamp::UNIX_EPOCH,
        node: String::new(),
        objects: vec![object],
        foreign: vec![foreign],
        rules: full().rules,
    };
    assert_eq!(schema["title"], routes::SCHEMA);
    compare(
        &schema,
        &schema,
        &serde_json::to_value(&full).unwrap(),
        true,
        "routes",
    );
    compare(
        &schema,
        &schema,
        &serde_json::to_value(Routes::default()).unwrap(),
        false,
        "routes",
    );
    let described = |of: &str, field: &str| {
        schema["$defs"][of]["properties"][field]["enum"]
            .as_array()
            .unwrap()
            .clone()
    };
    for kind in [
        ObjectKind::Link,
        ObjectKind::Address,
        ObjectKind::Fdb,
        ObjectKind::Neighbour,
        ObjectKind::WireguardPeer,
        ObjectKind::AllowedIp,
        ObjectKind::Route,
        ObjectKind::Blackhole,
    ] {
        let kind = serde_json::to_value(kind).unwrap();
        assert!(
            described("object", "kind").contains(&kind)
                && described("foreign", "kind").contains(&kind)
        );
    }
    for state in [
        routes::ObjectState::InSync,
        routes::ObjectState::Missing,
        routes::ObjectState::Different,
        routes::ObjectState::Refused,
    ] {
        assert!(described("object", "state").contains(&serde_json::to_value(state).unwrap()));
    }
    assert_eq!(
        serde_json::from_value::<Routes>(serde_json::to_value(&full).unwrap()).unwrap(),
        full
    );
}

#[test]
fn probe_schema_describes_the_document() {
    let questions = QuestionKind::ALL.map(|kind| Questions {
        kind,
        asked: 5,
        answered: 5,
        rtt_us: Some(1),
    });
    let step = |name| Step {
        name,
        outcome: Outcome::Ok,
        text: String::new(),
        questions: questions.to_vec(),
    };
    let probe = Probe {
        schema: PROBE.to_owned(),
        at: jiff::Timestamp::UNIX_EPOCH,
        node: String::new(),
        target: Target {
            node: Some(String::new()),
            subnet: "10.244.2.0/24".parse().ok(),
            address: "192.0.2.2".parse().ok(),
            pod: "10.244.2.7".parse().ok(),
            here: false,
        },
        state: Some(State::OverlayCut),
        steps: StepName::ALL.map(step).to_vec(),
        ends_at: Some(StepName::Overlay),
        sentence: String::new(),
        next: vec![Next {
            on: Some(String::new()),
            command: String::new(),
        }],
    };
    let schema = schema("probe");
    assert_eq!(schema["title"], PROBE);
    compare(
        &schema,
        &schema,
        &serde_json::to_value(&probe).unwrap(),
        true,
        "probe",
    );
    let outcomes = &schema["$defs"]["step"]["properties"]["outcome"]["enum"];
    assert_eq!(*outcomes, json!(Outcome::ALL));
    assert_eq!(schema["$defs"]["state"]["enum"], json!(State::ALL));
    // Earlier daemons do not write this field.
    let mut before = serde_json::to_value(&probe).unwrap();
    before.as_object_mut().unwrap().remove("state").unwrap();
    assert_eq!(
        serde_json::from_value::<Probe>(before).unwrap(),
        Probe {
            state: None,
            ..probe.clone()
        }
    );
    let least = Probe {
        target: Target::default(),
        state: None,
        steps: Vec::new(),
        ends_at: None,
        next: vec![Next {
            on: None,
            command: String::new(),
        }],
        ..probe.clone()
    };
    compare(
        &schema,
        &schema,
        &serde_json::to_value(least).unwrap(),
        false,
        "probe",
    );
    assert_eq!(
        serde_json::from_str::<Probe>(&serde_json::to_string(&probe).unwrap()).unwrap(),
        probe
    );
}

#[test]
fn documents_survive_json() {
    for node in [full(), Node::default()] {
        assert_eq!(
            serde_json::from_str::<Node>(&serde_json::to_string(&node).unwrap()).unwrap(),
            node
        );
    }
}
