//! `flannelctl leases`: the leases in the store, their holders, and notes on problems.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ipnet::IpNet;
use options::StoreFlags;
use serde_json::{Value, json};
use subnet_lease::admission::{AdmissionError, Reason, Terms, admitted};
use subnet_lease::json::Object;
use subnet_lease::protocol::registry::{Entry, Listing};
use subnet_lease::protocol::view::Item;
use subnet_lease::{LeaseTable, NetworkConfig};
use types::printable;

use crate::columns::{self, Cell, plain};
use crate::form::Form;
use crate::store;
use node_api::facts::span;
use subnet_lease::manager::Liveness;
use terminal::out;
use terminal::screen::{Screen, Style};
use types::Family;

/// Name and version of the JSON format of the list.
const SCHEMA: &str = "flannel.leases/1";

/// Options of `flannelctl leases`: the store, and the output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also shows when each holder was last seen and when its lease expires; sends one request to etcd per lease.
    #[arg(long)]
    long: bool,
    /// Prints the leases as a JSON array.
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    store: StoreFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    store::run(async {
        let store = store::open(&args.store)?;
        store.reach().await?;
        let listing = store.list().await?;
        let config = match store.config().await {
            Ok(config) => Some(config),
            Err(error) => {
                out::complain(format!("{error:#}"));
                None
            }
        };
        let keys = Keys::of(listing);
        let signs = if args.long || args.output == Form::Wide || !store.asks_a_server() {
            store.signs(&keys.items).await?
        } else {
            BTreeMap::new()
        };
        let notes = notes(&keys.items, config.as_ref());
        if args.json {
            out::document(&serde_json::to_string_pretty(&document(&keys, &signs, &notes))?);
            return Ok(());
        }
        let screen = Screen::open();
        if !args.output.is_text() {
            let document = json!({ "schema": SCHEMA, "leases": document(&keys, &signs, &notes) });
            return args.output.print(&document, screen, |_, _| String::new());
        }
        if keys.items.is_empty() && keys.malformed.is_empty() {
            screen.print(format!("no leases in {}", printable::line(&store.place())));
            return Ok(());
        }
        // A narrow terminal still shows which node holds each subnet, and with --long for how long.
        let spare: &[&str] = match args.output {
            Form::Wide => &[],
            _ if args.long => &["MAC", "BACKEND"],
            _ => &["MAC", "BACKEND", "STATE"],
        };
        screen.print(table(&rows(&keys, &signs, &notes), spare, screen));
        if signs.is_empty() && store.asks_a_server() {
            out::note("--long shows when each holder was last seen");
        }
        Ok(())
    })
}

/// Leases sorted by address, and keys that name no subnet.
pub(crate) struct Keys {
    /// Leases with an unreadable value are included.
    pub items: Vec<Item>,
    /// Entries whose key names no subnet.
    pub malformed: Vec<Entry>,
}

impl Keys {
    pub(crate) fn of(listing: Listing) -> Keys {
        let (known, malformed): (Vec<Entry>, Vec<Entry>) =
            listing.entries.into_iter().partition(|entry| entry.subnets().is_some());
        let mut items: Vec<Item> = known.into_iter().filter_map(Item::of).collect();
        items.sort_by_key(|item| item.subnets.nets().next().map(|net| net.addr()));
        Keys { items, malformed }
    }
}

/// Notes on problems, by the lease's store key.
type Notes<'a> = BTreeMap<&'a str, Vec<String>>;

/// [`observed`] problems and, if the network configuration is known, the reasons why admission refuses a
/// lease.
fn notes<'a>(items: &'a [Item], config: Option<&NetworkConfig>) -> Notes<'a> {
    let mut notes = Notes::new();
    let refused = config.map(|config| refused(items, config)).unwrap_or_default();
    let mut by_age: Vec<&Item> = items.iter().collect();
    by_age.sort_by_key(|item| (item.entry.created, item.subnets));
    for (number, item) in by_age.iter().enumerate() {
        let older = by_age.get(..number).unwrap_or_default();
        let refused: Vec<&AdmissionError> =
            refused.iter().filter(|refused| refused.subnets == item.subnets).collect();
        let found = observed(item, older, &refused, config);
        if !found.is_empty() {
            notes.insert(&item.entry.key, found);
        }
    }
    notes
}

/// The notes on one lease.
///
/// Compares with older leases again, because admission does not cover all cases. It needs the network
/// configuration, ignores unreadable values, and lets several nodes share an address.
fn observed(
    item: &Item,
    older: &[&Item],
    refused: &[&AdmissionError],
    config: Option<&NetworkConfig>,
) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(reason) = unreadable(item) {
        notes.push(format!("unreadable: {reason}"));
    }
    if let Some(config) = config.filter(|config| !config.contains(&item.subnets)) {
        notes.push(format!("not a subnet of {}", config.networks));
    }
    notes.extend(refused.iter().map(|refused| format!("not used: {refused}")));
    if let Some(other) = older.iter().find(|other| other.subnets.overlaps(&item.subnets)) {
        notes.push(format!("overlaps the older {}", other.subnets));
    }
    let is_refused_by_identity =
        refused.iter().any(|refused| refused.reason() == Reason::SameIdentity);
    if let Some(other) = older.iter().find(|other| share_address(other, item)) {
        notes.push(format!("same address as {}", other.subnets));
    } else if !is_refused_by_identity
        && let Some(other) = older.iter().find(|other| share_identity(other, item))
    {
        notes.push(format!("same MAC or key as {}", other.subnets));
    }
    if item.node().is_some_and(|node| node.contested) {
        notes.push("two daemons wrote the lease".to_owned());
    }
    notes
}

fn share_address(one: &Item, other: &Item) -> bool {
    let address = |item: &Item| item.attrs.as_ref().and_then(|attrs| attrs.addresses().next());
    address(one).is_some() && address(one) == address(other)
}

fn share_identity(one: &Item, other: &Item) -> bool {
    let own = identities(one);
    identities(other).iter().any(|identity| own.contains(identity))
}

/// What admission refuses on every node, except leases for which [`observed`] has its own note.
fn refused(items: &[Item], config: &NetworkConfig) -> Vec<AdmissionError> {
    let terms = Terms {
        config: config.clone(),
        own: None,
        local: Vec::new(),
        underlay: Vec::new(),
        links: None,
        rules: backends::rules(config),
        history: std::sync::Arc::default(),
    };
    let raw = LeaseTable::of(items.iter().filter_map(Item::lease), BTreeSet::new());
    let mut refused = admitted(&raw, &LeaseTable::default(), &terms).1;
    refused.retain(|refused| !matches!(refused.reason(), Reason::Outside | Reason::OverlapsOlder));
    refused
}

/// Why a lease's value is unreadable; `None` for a readable one.
pub(crate) fn unreadable(item: &Item) -> Option<String> {
    let reason = || {
        subnet_lease::wire::parse_value(&item.entry.value)
            .err()
            .map(|why| why.to_string())
            .unwrap_or_default()
    };
    // The value may contain newlines.
    item.attrs.is_none().then(|| reason().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// VTEP MACs or WireGuard public keys in the spelling of the lease, IPv4 first.
fn macs(item: &Item) -> Vec<String> {
    let data = item.attrs.iter().flat_map(|attrs| [&attrs.data, &attrs.v6_data]).flatten();
    data.filter_map(|data| {
        let object = Object::parse(data.as_str()).ok()?;
        ["VtepMAC", "PublicKey"].iter().find_map(|name| object.read::<String>(name).ok().flatten())
    })
    .collect()
}

/// MACs or public keys in canonical form, because one key has several spellings.
fn identities(item: &Item) -> Vec<String> {
    let of = |family| backends::identity_of(item.attrs.as_ref()?, family);
    Family::ALL.into_iter().filter_map(of).collect()
}

/// The node's name, or its id if it has none; empty if the lease names no node.
pub(crate) fn holder(item: &Item) -> String {
    match item.node() {
        Some(node) if node.name.is_empty() => node.id.to_string(),
        Some(node) => node.name.to_string(),
        None => String::new(),
    }
}

fn state(item: &Item, sign: Option<&Liveness>) -> String {
    // No lease in a directory expires, so an operator's reservation is recognised by its writer instead.
    let by_hand = item.reserved() && item.node().is_none_or(|node| node.lease.is_some());
    let mut parts = Vec::new();
    match sign {
        None if item.reserved() => parts.push("reserved".to_owned()),
        None => parts.push("leased".to_owned()),
        Some(Liveness { left: Some(left), .. }) => parts.push(format!("ends in {}", span(*left))),
        Some(_) if by_hand => parts.push("reserved".to_owned()),
        Some(_) => {}
    }
    match sign.map(|sign| sign.heard) {
        Some(Some(heard)) if item.node().is_some() || !item.reserved() => {
            parts.push(format!("last seen {} ago", span(heard)));
        }
        Some(None) if item.keepalive() != 0 => parts.push("the etcd lease is gone".to_owned()),
        _ => {}
    }
    parts.join(", ")
}

/// The cells and the note for each store key.
fn rows(
    keys: &Keys,
    signs: &BTreeMap<String, Liveness>,
    notes: &Notes<'_>,
) -> Vec<([String; 6], String)> {
    let lease = |item: &Item| {
        let attrs = item.attrs.as_ref();
        let cells = [
            item.subnets.to_string(),
            attrs.map(subnet_lease::LeaseAttrs::public_text).unwrap_or_default(),
            attrs.map(|attrs| attrs.backend.clone()).unwrap_or_default(),
            macs(item).join(" "),
            holder(item),
            state(item, signs.get(&item.entry.key)),
        ];
        (
            cells,
            notes.get(item.entry.key.as_str()).map(|notes| notes.join("; ")).unwrap_or_default(),
        )
    };
    let malformed = keys.malformed.iter().map(|entry| {
        let mut cells: [String; 6] = Default::default();
        cells[0].clone_from(&entry.key);
        (cells, NO_SUBNET.to_owned())
    });
    keys.items.iter().map(lease).chain(malformed).collect()
}

/// Without empty columns.
fn table(rows: &[([String; 6], String)], spare: &[&str], screen: Screen) -> String {
    const HEADINGS: [&str; 6] = ["SUBNET", "PUBLIC IP", "BACKEND", "MAC", "NODE", "STATE"];
    let (columns, headings): (Vec<usize>, Vec<&str>) = (0_usize..)
        .zip(HEADINGS)
        .filter(|(column, _)| {
            rows.iter().filter_map(|(cells, _)| cells.get(*column)).any(|cell| !cell.is_empty())
        })
        .unzip();
    let row = |(cells, note): &([String; 6], String)| -> Vec<Cell> {
        let cells = columns.iter().filter_map(|column| cells.get(*column));
        cells.map(plain).chain([(note.clone(), Some(Style::Bad))]).collect()
    };
    let rows: Vec<Vec<Cell>> = rows.iter().map(row).collect();
    columns::fitted(&headings, spare, &rows, screen)
}

const NO_SUBNET: &str = "the key names no subnet in canonical form (such as 10.5.34.0-24)";

fn document(keys: &Keys, signs: &BTreeMap<String, Liveness>, notes: &Notes<'_>) -> Value {
    let lease = |item: &Item| {
        let sign = signs.get(&item.entry.key).copied().unwrap_or_default();
        let attrs = item.attrs.as_ref();
        json!({
            "key": item.entry.key,
            "subnets": item.subnets.nets().map(|net: IpNet| net.to_string()).collect::<Vec<_>>(),
            "public_ip": attrs.and_then(|attrs| attrs.public_ip),
            "public_ipv6": attrs.and_then(|attrs| attrs.public_ipv6),
            "backend": attrs.map(|attrs| attrs.backend.clone()),
            "macs": macs(item),
            "node": item.node().map(|node| json!({ "id": node.id, "name": node.name })),
            "reserved": item.reserved(),
            "heard_seconds_ago": sign.heard.map(|heard| heard.as_secs()),
            "ends_in_seconds": sign.left.map(|left| left.as_secs()),
            "created": item.entry.created,
            "modified": item.entry.modified,
            "unreadable": unreadable(item),
            "notes": notes.get(item.entry.key.as_str()).cloned().unwrap_or_default(),
        })
    };
    let malformed =
        keys.malformed.iter().map(|entry| json!({ "key": entry.key, "unreadable": NO_SUBNET }));
    Value::Array(keys.items.iter().map(lease).chain(malformed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn entry(key: &str, value: &str, created: i64, lease: i64) -> Entry {
        Entry {
            key: key.to_owned(),
            value: value.as_bytes().into(),
            created,
            modified: created,
            lease,
        }
    }

    fn keys() -> Keys {
        let node = r#","NodeID":{"id":"abc","name":"n1","instance":"x","rank":1}"#;
        let mac = r#","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#;
        Keys::of(Listing {
            revision: 9,
            entries: vec![
                entry(
                    "10.5.10.0-24",
                    &format!(r#"{{"PublicIP":"192.168.56.101","PublicIPv6":null{mac}{node}}}"#),
                    1,
                    77,
                ),
                entry(
                    "10.5.2.0-24",
                    r#"{"PublicIP":"192.168.56.102","PublicIPv6":null,"BackendType":"host-gw"}"#,
                    2,
                    0,
                ),
                entry("10.5.10.128-25", r#"{"PublicIP":"192.168.56.101","PublicIPv6":null}"#, 3, 5),
                entry("10.5.3.0-24", "{", 4, 6),
                entry("10.6.0.0-24", r#"{"PublicIP":"192.168.56.109","PublicIPv6":null}"#, 5, 6),
                entry("10.5.1.0-24.bak", "{}", 6, 0),
            ],
        })
    }

    fn config() -> NetworkConfig {
        NetworkConfig::parse(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap()
    }

    fn text(signs: &BTreeMap<String, Liveness>) -> Vec<String> {
        let keys = keys();
        let notes = notes(&keys.items, Some(&config()));
        rows(&keys, signs, &notes)
            .into_iter()
            .map(|(cells, note)| format!("{}|{note}", cells.join("|")))
            .collect()
    }

    #[test]
    fn keys_have_a_line_each_with_notes() {
        let lines = text(&BTreeMap::new());
        let other = "not used: 10.5.2.0/24 of the node at 192.168.56.102 uses backend host-gw, but this network uses vxlan; restart flanneld on that node";
        assert!(
            lines[0].starts_with(&format!("10.5.2.0/24|192.168.56.102|host-gw|||reserved|{other}")),
            "{}",
            lines[0]
        );
        assert!(
            lines[1]
                .starts_with("10.5.3.0/24|||||leased|unreadable: the value is not a JSON object"),
            "{}",
            lines[1]
        );
        assert_eq!(lines[2], "10.5.10.0/24|192.168.56.101|vxlan|02:00:00:00:00:01|n1|leased|");
        assert_eq!(
            lines[3],
            "10.5.10.128/25|192.168.56.101||||leased|overlaps the older 10.5.10.0/24; same address as 10.5.10.0/24"
        );
        assert_eq!(lines[4], "10.6.0.0/24|192.168.56.109||||leased|not a subnet of 10.5.0.0/16");
        assert!(
            lines[5].starts_with("10.5.1.0-24.bak|") && lines[5].ends_with(NO_SUBNET),
            "{}",
            lines[5]
        );
        assert_eq!(lines.len(), 6);
    }

    /// The last base64 letter of a key has bits that decoding ignores. The note appears even if the nodes
    /// share an address, as behind NAT.
    #[test]
    fn duplicate_key_is_noted_in_any_spelling() {
        let value = |node: &str, key: &str| {
            let data = format!(
                r#""BackendType":"wireguard","BackendData":{{"PublicKey":"{key}","Port":51820}}"#
            );
            format!(
                r#"{{"PublicIP":"192.0.2.1","PublicIPv6":null,{data},"NodeID":{{"id":"{node}","name":"{node}","instance":"x","rank":1}}}}"#
            )
        };
        let (key, again) = (
            "oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3k=",
            "oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3l=",
        );
        let entries = vec![
            entry("10.5.1.0-24", &value("a", key), 1, 7),
            entry("10.5.2.0-24", &value("b", again), 2, 8),
        ];
        let keys = Keys::of(Listing { revision: 9, entries });
        let config =
            NetworkConfig::parse(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}"#)
                .unwrap();
        let notes = notes(&keys.items, Some(&config));
        assert!(!notes.contains_key("10.5.1.0-24"), "{notes:?}");
        let note = notes["10.5.2.0-24"].join("; ");
        assert!(
            note.contains(&format!("not used: cannot use the value of 10.5.2.0/24: the node at 192.0.2.1 already uses {key}")),
            "{note}"
        );
        // Without a configuration, admission refuses nothing.
        let notes = super::notes(&keys.items, None);
        assert_eq!(notes["10.5.2.0-24"], ["same address as 10.5.1.0/24"]);
    }

    #[test]
    fn liveness_is_shown() {
        let seconds = |number| Some(Duration::from_secs(number));
        let signs = BTreeMap::from([
            ("10.5.10.0-24".to_owned(), Liveness { heard: seconds(12), left: seconds(86_388) }),
            ("10.5.2.0-24".to_owned(), Liveness::default()),
            ("10.5.10.128-25".to_owned(), Liveness::default()),
        ]);
        let lines = text(&signs);
        assert!(lines[0].contains("|reserved|"), "{}", lines[0]);
        assert!(lines[2].contains("|ends in 23 h 59 min, last seen 12 s ago|"), "{}", lines[2]);
        assert!(lines[3].contains("|the etcd lease is gone|"), "{}", lines[3]);
    }

    #[test]
    fn json_has_numbers() {
        let keys = keys();
        let signs = BTreeMap::from([(
            "10.5.10.0-24".to_owned(),
            Liveness { heard: Some(Duration::from_secs(12)), left: None },
        )]);
        let document = document(&keys, &signs, &notes(&keys.items, None));
        assert_eq!(document[2]["subnets"], json!(["10.5.10.0/24"]));
        assert_eq!(
            (&document[2]["heard_seconds_ago"], &document[2]["node"]["name"]),
            (&json!(12), &json!("n1"))
        );
        assert_eq!((&document[0]["reserved"], &document[0]["node"]), (&json!(true), &Value::Null));
        assert!(document[1]["unreadable"].is_string() && document[5]["unreadable"].is_string());
    }

    /// Exactly the fields that `flannelctl leases` prints.
    #[test]
    fn the_schema_describes_the_list() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schema/leases.json");
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(schema["title"], SCHEMA);
        let described: BTreeSet<&String> =
            schema["$defs"]["lease"]["properties"].as_object().unwrap().keys().collect();
        let keys = keys();
        let document = document(&keys, &BTreeMap::new(), &notes(&keys.items, None));
        let all = document.as_array().unwrap();
        let printed: BTreeSet<&String> =
            all.iter().flat_map(|lease| lease.as_object().unwrap().keys()).collect();
        assert_eq!(printed, described);
        for required in schema["$defs"]["lease"]["required"].as_array().unwrap() {
            assert!(
                all.iter().all(|lease| lease.get(required.as_str().unwrap()).is_some()),
                "{required}"
            );
        }
    }

    #[test]
    fn table_omits_empty_columns() {
        let row = |cells: [&str; 6], note: &str| (cells.map(str::to_owned), note.to_owned());
        let rows = [
            row(["10.5.1.0/24", "1.2.3.4", "", "", "n1", "leased"], ""),
            row(["10.5.20.0/24", "", "", "", "", "leased"], "odd"),
        ];
        let text = table(&rows, &[], Screen::open());
        assert_eq!(
            text,
            "SUBNET        PUBLIC IP  NODE  STATE\n10.5.1.0/24   1.2.3.4    n1    leased\n10.5.20.0/24                   leased  odd"
        );
    }
}
