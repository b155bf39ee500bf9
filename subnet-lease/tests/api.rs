//! Tests the client of the Kubernetes API (credentials, failover, connections, pauses) against a fake server that replies as each test specifies.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

use lab::{Answer, Call, FakeApi, NodeObject, Proxy, User};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeManager, KubeOptions, NodeClient, server_url};
use subnet_lease::manager::{Error, SubnetManager};
use types::Problem;

/// With the Node n1; it replies as `judge` specifies.
fn server(judge: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Proxy {
    let (_, server) = server_and_node();
    server.set_judge(judge);
    server
}

/// Also gives the Node n1.
fn server_and_node() -> (Value, Proxy) {
    let api = FakeApi::default();
    let node = NodeObject::new("n1").pod_cidr("10.244.1.0/24");
    let node = api.admin().create_node(&node.add_internal_address([192, 0, 2, 1]));
    (node.unwrap(), api.serve_on_loopback().unwrap())
}

/// The normal reply, whatever the client's token.
fn pass(_: &Call) -> Answer {
    Answer::As(User::Admin.token())
}

fn refuse(code: u16) -> Answer {
    Answer::failure_status_reply(code, "test")
}

fn is_event(call: &Call) -> bool {
    call.path.ends_with("/events")
}

/// True if the request is for a streamed list.
fn is_stream(call: &Call) -> bool {
    call.path.contains("sendInitialEvents")
}

/// Options of a node, and the directory with its files.
struct Bed {
    folder: tempfile::TempDir,
    options: KubeOptions,
}

impl Bed {
    fn new(urls: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let net_conf = folder.path().join("net-conf.json");
        std::fs::write(&net_conf, r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#)
            .unwrap();
        let options = KubeOptions {
            urls: urls.iter().map(|url| server_url(url).unwrap()).collect(),
            kubeconfig: None,
            prefix: Prefix::parse("flannel.alpha.coreos.com").unwrap(),
            net_conf,
            clear_condition: true,
            identity: Identity::Node("n1".to_owned()),
            user_agent: "test/1".to_owned(),
            up: Duration::from_secs(86_400),
        };
        Self { folder, options }
    }

    /// The kubeconfig's user and cluster contain the given JSON fields.
    fn with_user(server: &Proxy, user: &str, cluster: &str) -> Self {
        let mut bed = Self::new(&[]);
        let path = bed.path("kubeconfig");
        let text = format!(
            r#"{{"current-context":"t","contexts":[{{"name":"t","context":{{"cluster":"t","user":"t"}}}}],"users":[{{"name":"t","user":{user}}}],"clusters":[{{"name":"t","cluster":{{"server":"{}"{cluster}}}}}]}}"#,
            server.url()
        );
        std::fs::write(&path, text).unwrap();
        bed.options.kubeconfig = Some(path);
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn open(&self) -> Result<KubeManager, Error> {
        KubeManager::open(self.options.clone()).await
    }
}

/// Waits until the node knows its own Node.
async fn known(manager: &KubeManager) {
    let config = manager.network_config().await.unwrap();
    while manager.node_info(&config).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Advances tokio's clock without waiting.
async fn later(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

/// Log lines that the test's thread writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn keep(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        tracing::subscriber::set_default(
            tracing_subscriber::fmt().with_writer(move || log.clone()).with_ansi(false).finish(),
        )
    }

    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone())
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn token_is_accepted_with_white_space_and_from_its_file_first() {
    const BOTH: &str = r#"{"token":"inline","tokenFile":"token"}"#;
    for (user, file, sent) in [
        (r#"{"tokenFile":"token"}"#, Some("s3cret\n"), "s3cret"),
        (r#"{"tokenFile":"token"}"#, Some(" s3cret\r\n\n"), "s3cret"),
        (r#"{"token":"s3cret\n"}"#, None, "s3cret"),
        (BOTH, Some("file\n"), "file"),
        (BOTH, None, "inline"),
    ] {
        let server = server(move |call| {
            let is_right = call.authorization.as_deref() == Some(&format!("Bearer {sent}"));
            if is_right { pass(call) } else { refuse(401) }
        });
        let bed = Bed::with_user(&server, user, "");
        if let Some(text) = file {
            std::fs::write(bed.path("token"), text).unwrap();
        }
        known(&bed.open().await.unwrap()).await;
    }
}

#[tokio::test]
async fn token_that_cannot_be_sent_is_named_with_its_file_and_without_its_text() {
    for bad in
        [&b"  \n"[..], b"s3cret\nmore", b"s3\xffcret", b"s3cret\x01", "s3cr\u{e9}t".as_bytes()]
    {
        let server = server(pass);
        let bed = Bed::with_user(&server, r#"{"tokenFile":"token"}"#, "");
        std::fs::write(bed.path("token"), bad).unwrap();
        let manager = bed.open().await.unwrap();
        let config = manager.network_config().await.unwrap();
        let why = manager.node_info(&config).await.unwrap_err().to_string();
        let file = bed.path("token").display().to_string();
        assert!(why.contains(&file) && !why.contains("s3c"), "{why}");
        assert!(server.calls().is_empty(), "no request without a token");
        // Once the file is correct, no further action is needed.
        std::fs::write(bed.path("token"), "s3cret").unwrap();
        known(&manager).await;
    }
    // A token in the kubeconfig itself is read only once.
    let server = server(pass);
    let bed = Bed::with_user(&server, r#"{"token":"s3cret\nmore"}"#, "");
    let why = bed.open().await.err().unwrap().to_string();
    assert!(why.contains("kubeconfig") && !why.contains("s3c"), "{why}");
}

#[tokio::test]
async fn token_file_is_read_each_minute_and_the_last_token_stays_while_it_is_gone() {
    let server = server(pass);
    let bed = Bed::with_user(&server, r#"{"tokenFile":"token"}"#, "");
    std::fs::write(bed.path("token"), "first").unwrap();
    let manager = bed.open().await.unwrap();
    known(&manager).await;
    let last = || {
        server
            .calls()
            .iter()
            .rev()
            .find(|call| is_event(call))
            .and_then(|call| call.authorization.clone())
            .unwrap_or_default()
    };
    let steps = [
        (Some("second\n"), "Bearer second"),
        (None, "Bearer second"),
        (Some("third"), "Bearer third"),
    ];
    for (known, (text, want)) in steps.into_iter().enumerate() {
        match text {
            Some(text) => std::fs::write(bed.path("token"), text).unwrap(),
            None => std::fs::remove_file(bed.path("token")).unwrap(),
        }
        later(Duration::from_secs(61)).await;
        manager.tell_operator(&Problem::in_words(format!("{want} {}", text.is_some()))).await;
        until(|| server.calls().into_iter().filter(is_event).count() > known).await;
        assert_eq!(last(), want);
    }
}

#[tokio::test]
async fn busy_server_keeps_its_connection_when_there_is_no_other() {
    let of_servers = |call: &Call| call.path.contains("endpointslices");
    for code in [429, 500, 503] {
        let server = server(move |call| if of_servers(call) { refuse(code) } else { pass(call) });
        let bed = Bed::new(&[server.url()]);
        let manager = bed.open().await.unwrap();
        known(&manager).await;
        for _ in 0..4 {
            assert!(manager.servers().await.is_empty());
        }
        let used: Vec<SocketAddr> =
            server.calls().iter().filter(|call| of_servers(call)).map(|call| call.from).collect();
        assert_eq!(used.len(), 4, "{code}");
        assert!(
            used.iter().all(|connection| *connection == used[0]),
            "{code}: each attempt connected anew: {used:?}"
        );
    }
}

#[tokio::test]
async fn busy_or_dead_server_is_left_for_another_one() {
    for code in [0, 429, 502, 503, 504] {
        let busy = server(move |_| refuse(code));
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first = match code {
            0 => format!("https://{}", dead.local_addr().unwrap()),
            _ => busy.url(),
        };
        drop(dead);
        let free = server(pass);
        let bed = Bed::new(&[first, free.url()]);
        known(&bed.open().await.unwrap()).await;
        assert_eq!(
            (busy.calls().is_empty(), free.calls().is_empty()),
            (code == 0, false),
            "{code}"
        );
    }
}

/// The lines of a streamed list that has one Node.
fn streamed(node: &Value) -> String {
    let end = json!({ "metadata": {
        "resourceVersion": node["metadata"]["resourceVersion"], "annotations": { "k8s.io/initial-events-end": "true" } } });
    let lines = [("ADDED", node), ("BOOKMARK", &end)];
    lines.map(|(kind, object)| format!("{}\n", json!({ "type": kind, "object": object }))).concat()
}

/// A watch with these lines, followed by an error that ends the watch.
fn then_expired(lines: &str) -> Answer {
    let status = json!({ "kind": "Status", "code": 410, "message": "too old resource version" });
    let error = json!({ "type": "ERROR", "object": status });
    Answer::Reply(200, Vec::new(), format!("{lines}{error}\n"))
}

#[tokio::test]
async fn watch_that_always_expires_costs_few_requests_and_few_log_lines() {
    const LASTS: Duration = Duration::from_secs(3);
    type Fault = fn(&Call, &str) -> Answer;
    let faults: [Fault; 3] = [
        |call, list| match call.is_watch() {
            true if is_stream(call) => then_expired(list),
            true => then_expired(""),
            false => pass(call),
        },
        |call, _| match call.is_watch() {
            true => refuse(410),
            false => pass(call),
        },
        // A server without streamed lists: it serves pages, and a watch that expires at once.
        |call, _| match call.is_watch() {
            true if is_stream(call) => refuse(422),
            true => then_expired(""),
            false => pass(call),
        },
    ];
    for fault in faults {
        let log = Log::default();
        let _guard = log.keep();
        let (node, server) = server_and_node();
        let bed = Bed::new(&[server.url()]);
        let manager = bed.open().await.unwrap();
        known(&manager).await;
        let list = streamed(&node);
        server.set_judge(move |call| fault(call, &list));
        server.clear_recorded_calls();
        // Silent watches are opened again.
        later(Duration::from_secs(101)).await;
        tokio::time::sleep(LASTS).await;
        let (asked, lines) = (server.calls().len(), log.lines());
        // Two followers wait for 0.1 s, then twice as long each time: 5 attempts, each with up to three requests.
        assert!(asked <= 45, "{asked} requests in {LASTS:?}");
        assert!(lines.len() <= 10, "{lines:#?}");
        // After the recovery, one line reports it.
        server.set_judge(pass);
        let is_resolved = |line: &&String| line.contains("resolved: the watch on Nodes");
        until(|| log.lines().iter().filter(is_resolved).count() == 1).await;
    }
}

#[tokio::test]
async fn first_expired_watch_after_a_good_one_is_listed_again_at_once() {
    let server = server(pass);
    let bed = Bed::new(&[server.url()]);
    let manager = bed.open().await.unwrap();
    known(&manager).await;
    // The watch is silent for longer than the interval of bookmarks, so it is opened again, and its version has expired.
    let once = Arc::new(Mutex::new(true));
    let is_of_all =
        |call: &Call| call.is_for_node_collection() && !call.path.contains("fieldSelector");
    server.set_judge(move |call| {
        let expires =
            is_of_all(call) && call.is_watch() && std::mem::take(&mut *once.lock().unwrap());
        if expires { refuse(410) } else { pass(call) }
    });
    server.clear_recorded_calls();
    later(Duration::from_secs(101)).await;
    until(|| server.calls().iter().any(|call| is_of_all(call) && is_stream(call))).await;
}

#[tokio::test]
async fn right_to_post_events_that_is_granted_later_is_noticed() {
    let server = server(|call| if is_event(call) { refuse(403) } else { pass(call) });
    let log = Log::default();
    let _guard = log.keep();
    let bed = Bed::new(&[server.url()]);
    let manager = bed.open().await.unwrap();
    known(&manager).await;
    let problem = Problem::in_words("no interface");
    let posted = async |problem: &Problem, events: usize| {
        manager.tell_operator(problem).await;
        let posted = || server.calls().into_iter().filter(is_event).count();
        until(|| posted() >= events).await;
        assert_eq!(posted(), events);
    };
    posted(&problem, 1).await;
    // A refusal is not asked for again at once.
    posted(&problem, 1).await;
    later(Duration::from_secs(301)).await;
    posted(&problem, 2).await;
    server.set_judge(pass);
    later(Duration::from_secs(301)).await;
    posted(&problem, 3).await;
    // What was told is not told again, and another problem is.
    later(Duration::from_secs(61)).await;
    posted(&problem, 3).await;
    posted(&Problem::in_words("another"), 4).await;
    let lines = log.lines();
    let refusals = lines.iter().filter(|line| line.contains("cannot post Events"));
    assert_eq!(refusals.count(), 1, "{lines:#?}");
}

/// In a large cluster, each node waits for its turn: before it lists Nodes in pages after a boot, and before it opens its watches again after a
/// break.
#[tokio::test]
async fn node_waits_for_its_turn_after_a_boot_and_after_a_break() {
    let api = FakeApi::default();
    api.refuse_streamed_lists();
    // The Nodes are older than the boot. Node 90 has its turn after 90 others, at 45 a second after a boot and 40 a second after a break.
    let node = |number: usize| {
        let (name, cidr) = (format!("n{number}"), format!("10.244.{number}.0/24"));
        let metadata = json!({ "name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": "2020-01-01T00:00:00Z" });
        (("nodes", "", name), json!({ "metadata": metadata, "spec": { "podCIDR": cidr } }))
    };
    let nodes: Vec<_> = (0..=100).map(node).collect();
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("nodes");
    std::fs::write(&snapshot, json!([101, nodes]).to_string()).unwrap();
    api.restore(&snapshot).unwrap();
    let server = api.serve_on_loopback().unwrap();
    server.set_judge(pass);
    let mut bed = Bed::new(&[server.url()]);
    bed.options.identity = Identity::Node("n90".to_owned());
    bed.options.up = Duration::from_secs(30);
    let manager = bed.open().await.unwrap();
    let began = Instant::now();
    known(&manager).await;
    let is_of_all =
        |call: &Call| call.is_for_node_collection() && !call.path.contains("fieldSelector");
    let is_list = |call: &Call| is_of_all(call) && !call.is_watch();
    let at = |is: &dyn Fn(&Call) -> bool| {
        server.calls().iter().find(|call| is(call)).map(|call| call.at)
    };
    until(|| at(&|call| is_of_all(call) && call.is_watch()).is_some()).await;
    let waited = at(&is_list).unwrap() - began;
    assert!(waited >= Duration::from_secs(2), "{waited:?} after a boot");
    server.clear_recorded_calls();
    let broken = Instant::now();
    server.close_open_connections();
    until(|| at(&is_of_all).is_some()).await;
    let waited = at(&is_of_all).unwrap() - broken;
    assert!(waited >= Duration::from_secs(2), "{waited:?} after a break");
}

#[tokio::test]
async fn tool_finds_the_configuration_in_whichever_namespace_it_is() {
    let config = async |maps: &[(&str, &str)], lists: bool, file: Option<&str>| {
        let api = FakeApi::default();
        for (namespace, network) in maps {
            let data = json!({ "net-conf.json": json!({ "Network": network }).to_string() });
            let map = json!({ "metadata": { "name": "kube-flannel-cfg" }, "data": data });
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            api.admin().create(&path, &map).unwrap();
        }
        let server = api.serve_on_loopback().unwrap();
        server.set_judge(move |call| match call.path.starts_with("/api/v1/configmaps?") {
            true if !lists => refuse(403),
            _ => pass(call),
        });
        let bed = Bed::new(&[server.url()]);
        std::fs::remove_file(&bed.options.net_conf).unwrap();
        if let Some(text) = file {
            std::fs::write(&bed.options.net_conf, text).unwrap();
        }
        let config = NodeClient::new(bed.options.clone()).config().await;
        config.map(|config| config.networks.to_string()).map_err(|why| why.to_string())
    };
    let (a, b) = (("a", "10.2.0.0/16"), ("b", "10.3.0.0/16"));
    let other = r#"{"Network":"10.3.0.0/16"}"#;
    assert_eq!(config(&[a], true, None).await.unwrap(), a.1);
    assert_eq!(config(&[a, ("b", a.1)], true, None).await.unwrap(), a.1);
    let own = ("kube-flannel", "10.1.0.0/16");
    let found = config(&[a, own], false, None).await;
    assert_eq!(found.unwrap(), own.1, "without the right to look everywhere");
    let found = config(&[], true, Some(other)).await;
    assert_eq!(found.unwrap(), b.1, "in a daemon's pod");
    let several = config(&[a, b], true, None).await.unwrap_err();
    assert!(
        several.contains("a/kube-flannel-cfg") && several.contains("b/kube-flannel-cfg"),
        "{several}"
    );
    let none = config(&[], true, None).await.unwrap_err();
    assert!(none.contains("--net-config-path"), "{none}");
}

#[tokio::test]
async fn proxy_of_the_kubeconfig_ends_the_start_with_the_remedy() {
    let server = server(pass);
    let proxy = r#","proxy-url":"http://user:s3cret@192.0.2.9:3128""#;
    let bed = Bed::with_user(&server, "{}", proxy);
    let Some(Error::Refused(trouble)) = bed.open().await.err() else { panic!("it is refused") };
    let trouble = trouble.to_string();
    assert!(trouble.contains("--kube-api-url") && !trouble.contains("s3cret"), "{trouble}");
}
