//! Tests of `flannelctl leases` and `flannelctl release`, with leases in etcd and in a directory.

use std::path::Path;
use std::process::Output;

use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Store, Uplink, binaries, code_or_text,
    json, stderr, stdout, texts, until,
};

const NETWORK: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","Backend":{"Type":"host-gw"}}"#;

fn flannelctl(host: &Host, place: &str, args: &[&str]) -> Output {
    host.flannelctl(&[args, &[place]].concat()).unwrap()
}

fn routes_to(host: &Host, subnet: &str) -> usize {
    host.netns()
        .routes()
        .unwrap()
        .iter()
        .filter(|route| route.dst == subnet)
        .count()
}

/// Starts three nodes, kills the third node's daemon, and releases the third node's lease.
fn lease_of_a_dead_node_is_released(hosts: &[Host], store: &Store, place: &str) {
    store.configure(NETWORK).unwrap();
    let options = FlanneldOptions::new(store).iface("enp0s8");
    let mut daemons: Vec<Flanneld> = hosts
        .iter()
        .map(|host| host.flanneld(&options).unwrap())
        .collect();
    let subnet = daemons[2]
        .subnet_env()
        .unwrap()
        .subnet
        .unwrap()
        .trunc()
        .to_string();
    let key = subnet.replace('/', "-");
    until("the first host has a route to the third", || {
        routes_to(&hosts[0], &subnet) == 1
    })
    .unwrap();

    leases_are_listed(&hosts[0], place, &key);
    daemons[2].kill().unwrap();
    release_is_refused(&hosts[0], place, &subnet);
    assert_eq!(store.subnets().unwrap().len(), 3);

    let released = flannelctl(&hosts[0], place, &["release", &key, "--force", "--yes"]);
    assert!(released.status.success(), "{}", stderr(&released));
    assert!(
        stdout(&released).contains("held by node h3"),
        "{}",
        stdout(&released)
    );
    assert!(
        store
            .subnets()
            .unwrap()
            .iter()
            .all(|(name, _)| *name != key)
    );
    for host in &hosts[..2] {
        until("the route to the third host goes", || {
            routes_to(host, &subnet) == 0
        })
        .unwrap();
    }

    let again = flannelctl(&hosts[0], place, &["release", &key, "--force", "--yes"]);
    assert!(
        !again.status.success() && stderr(&again).contains("cannot find the lease"),
        "{}",
        stderr(&again)
    );
}

/// Checks the list of three nodes' leases, as text and as JSON. `key` is the third node's lease key.
fn leases_are_listed(host: &Host, place: &str, key: &str) {
    let listed = stdout(&flannelctl(host, place, &["leases", "--long"]));
    for number in 1..=3 {
        let line = listed
            .lines()
            .find(|line| line.contains(&format!("192.168.56.10{number}")))
            .unwrap();
        assert!(
            line.contains("host-gw")
                && line.contains(&format!("h{number}"))
                && line.contains("last seen "),
            "{listed}"
        );
    }
    let document = json(&flannelctl(host, place, &["leases", "--json"])).unwrap();
    assert_eq!(document.as_array().unwrap().len(), 3);
    assert!(
        document
            .as_array()
            .unwrap()
            .iter()
            .any(|lease| lease["key"] == key && lease["node"]["name"] == "h3"),
        "{document}"
    );
}

/// Checks that the release of a freshly renewed lease needs --force, and that each release without a terminal needs --yes.
fn release_is_refused(host: &Host, place: &str, subnet: &str) {
    let key = subnet.replace('/', "-");
    let refused = flannelctl(host, place, &["release", subnet, "--yes"]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("last seen less than 3 minutes ago"),
        "{}",
        stderr(&refused)
    );
    let unasked = flannelctl(host, place, &["release", &key, "--force"]);
    assert!(
        !unasked.status.success() && stderr(&unasked).contains("--yes"),
        "{}",
        stderr(&unasked)
    );
}

#[test]
fn lease_of_a_dead_node_is_released_from_a_directory() {
    let lab = Lab::new("ctl-dir").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 3).unwrap();
    let folder = lab.folder("leases").unwrap();
    lease_of_a_dead_node_is_released(
        &hosts,
        &Store::dir(&folder),
        &format!("--subnet-dir={}", folder.display()),
    );
}

#[test]
fn lease_of_a_dead_node_is_released_from_etcd() {
    let lab = Lab::new("ctl-etcd").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 3).unwrap();
    let server = lab
        .host("store", &[Uplink::enp0s8(&lan, 99).unwrap()])
        .unwrap();
    let etcd = Etcd::start(&[&server], &EtcdOptions::default()).unwrap();
    let place = format!(
        "--etcd-endpoints={}",
        etcd.client().unwrap().endpoints().join(",")
    );
    lease_of_a_dead_node_is_released(&hosts, &etcd.store().unwrap(), &place);
}

#[test]
fn unreadable_lease_is_listed_with_the_reason() {
    let lab = Lab::new("ctl-odd").unwrap();
    let host = lab.host("h1", &[]).unwrap();
    let folder = lab.folder("leases").unwrap();
    let place = format!("--subnet-dir={}", folder.display());
    Store::dir(&folder).configure(NETWORK).unwrap();
    std::fs::write(folder.join("subnets/10.5.7.0-24"), "{").unwrap();
    std::fs::write(folder.join("subnets/notes"), "mine").unwrap();
    let listed = stdout(&flannelctl(&host, &place, &["leases"]));
    assert!(
        listed.contains(code_or_text(
            "unreadable: lease-value-no-object",
            "unreadable: the value is not a JSON object"
        )) && listed.contains("the key names no subnet"),
        "{listed}"
    );

    let nowhere = flannelctl(&host, "--etcd-endpoints=http://127.0.0.1:1", &["leases"]);
    assert!(
        !nowhere.status.success()
            && stderr(&nowhere).contains(code_or_text(
                "etcd-unreachable",
                "cannot reach etcd at http://127.0.0.1:1"
            )),
        "{}",
        stderr(&nowhere)
    );
}

/// Text with terminal control sequences, for each lease field that a writer to the store can choose freely.
const HOSTILE: &str =
    "n\u{1b}[2J\u{1b}]0;t\u{7}\r\nfake line\u{9b}31m\u{202e}cod\u{200b}\u{2028}\u{7f}";

/// Checks that a text has only printable characters and line ends, apart from the colours of flannelctl's own table.
#[track_caller]
fn require_visible(what: &str, text: &str) {
    for colour in ["\u{1b}[1m", "\u{1b}[31;1m", "\u{1b}[0m"] {
        assert!(
            what == "terminal" || !text.contains(colour),
            "{what}: {text:?}"
        );
    }
    let text = text
        .replace("\u{1b}[1m", "")
        .replace("\u{1b}[31;1m", "")
        .replace("\u{1b}[0m", "")
        .replace("\r\n", "\n");
    let hidden = |c: char| {
        c != '\n'
            && (c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
    };
    assert!(
        !text.contains(hidden) && !text.lines().any(|line| line.starts_with("fake line")),
        "{what}: {text:?}"
    );
}

#[test]
fn hostile_text_is_shown_escaped() {
    let lab = Lab::new("ctl-hostile").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 2).unwrap();
    let folder = lab.folder("leases").unwrap();
    let place = format!("--subnet-dir={}", folder.display());
    write_hostile_leases(&folder);
    daemons_show_it_escaped(&hosts, &Store::dir(&folder));
    let listed = listing_shows_it_escaped(&hosts[0], &place);
    terminal_shows_it_escaped(&hosts[0], &place);
    assert!(folder.join("subnets/10.5.7.0-24").exists());
    hostile_key_is_released_as_shown(&hosts[0], &place, &folder, &listed);
}

fn write_hostile_leases(folder: &Path) {
    Store::dir(folder).configure(NETWORK).unwrap();
    let lease = |ip: &str, kind: &str| {
        let node =
            serde_json::json!({ "id": HOSTILE, "name": HOSTILE, "instance": HOSTILE, "rank": 1 });
        let data = serde_json::json!({ "VNI": 1, "VtepMAC": HOSTILE });
        serde_json::json!({ "PublicIP": ip, "PublicIPv6": null, "BackendType": kind, "BackendData": data, "NodeID": node }).to_string()
    };
    let put =
        |key: &str, value: String| std::fs::write(folder.join("subnets").join(key), value).unwrap();
    put("10.5.7.0-24", lease("192.168.56.107", HOSTILE));
    put("10.5.8.0-24", lease("192.168.56.108", "host-gw"));
    put("10.5.8.128-25", lease("192.168.56.109", "host-gw"));
    put("10.5.9.0-24", format!("{HOSTILE}{{"));
    put(
        &format!("10.5.6.0-24{HOSTILE}"),
        lease("192.168.56.106", "host-gw"),
    );
}

/// Checks that both log formats and each HTTP response escape the hostile text.
fn daemons_show_it_escaped(hosts: &[Host], store: &Store) {
    for (host, format) in hosts.iter().zip(["text", "json"]) {
        let options = FlanneldOptions::new(store)
            .iface("enp0s8")
            .arg(&format!("--log-format={format}"))
            .arg("--v=1");
        let daemon = host.flanneld(&options).unwrap();
        until("the log contains the hostile key", || {
            daemon.log().contains("fake line")
        })
        .unwrap();
        require_visible(format, &daemon.log());
        for path in ["/status", "/readyz", "/healthz", "/metrics"] {
            require_visible(path, &daemon.get(path).unwrap().1);
        }
    }
}

/// Checks that `flannelctl leases` escapes hostile text, in text and in JSON. Returns the text output.
fn listing_shows_it_escaped(host: &Host, place: &str) -> String {
    let listed = flannelctl(host, place, &["leases"]);
    require_visible("leases", &texts(&listed));
    assert!(
        stdout(&listed).contains(r"n\u{1b}[2J") && stdout(&listed).contains(r"\u{202e}cod"),
        "{}",
        stdout(&listed)
    );
    let document = stdout(&flannelctl(host, place, &["leases", "--json"]));
    require_visible("--json", &document);
    assert!(
        document.contains(r"\u202ecod") && document.contains(r"\u009b31m"),
        "{document}"
    );
    stdout(&listed)
}

/// Checks that flannelctl escapes hostile text on a terminal, in a table with colours and in a prompt.
fn terminal_shows_it_escaped(host: &Host, place: &str) {
    let program = binaries::own("flannelctl").unwrap();
    for command in [
        "leases".to_owned(),
        "release --force 10.5.7.0-24".to_owned(),
    ] {
        let command = format!("{} {command} {place}", program.display());
        let shown = host
            .netns()
            .feed(
                "script",
                &["-qec", &format!("{command} || true"), "/dev/null"],
                "n\n",
            )
            .unwrap();
        require_visible("terminal", &shown);
        assert!(shown.contains(r"n\u{1b}[2J"), "{shown}");
    }
}

/// Releases a lease by its escaped key, which an operator copies from the output of `flannelctl leases`.
fn hostile_key_is_released_as_shown(host: &Host, place: &str, folder: &Path, listed: &str) {
    let shown = listed
        .lines()
        .find_map(|line| Some(line.strip_prefix("10.5.6.0-24")?.split_once("  ")?.0))
        .unwrap();
    let released = flannelctl(
        host,
        place,
        &[
            "release",
            "--yes",
            "--force",
            &format!("10.5.6.0-24{}", shown.trim_end()),
        ],
    );
    require_visible("release", &texts(&released));
    assert!(
        released.status.success()
            && !folder
                .join("subnets")
                .join(format!("10.5.6.0-24{HOSTILE}"))
                .exists()
    );
}
