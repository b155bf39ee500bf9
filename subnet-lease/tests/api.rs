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
use subnet_lease::NetworkConfig;
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeManager, KubeOptions, NodeClient, server_url};
use subnet_lease::manager::{Error, SubnetManager};
use types::Problem;

/// Deadline: ten times the maximum time between two attempts of the client.
const SOON: Duration = Duration::from_secs(100);

/// Starts a server with the Node n1, which replies as `judge` specifies.
fn server(judge: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Proxy {
    let (_, server) = server_and_node();
    server.on(judge);
    server
}

/// Starts a server with the Node n1, and returns the Node.
fn server_and_node() -> (Value, Proxy) {
    let api = FakeApi::default();
    let node = NodeObject::new("n1").pod_cidr("10.244.1.0/24");
    let node = api.admin().create_node(&node.internal([192, 0, 2, 1]));
    (node.unwrap(), api.on_loopback().unwrap())
}

/// The normal reply, whatever the client's token.
fn pass(_: &Call) -> Answer {
    Answer::As(User::Admin.token())
}

fn refuse(code: u16) -> Answer {
    Answer::status(code, "test")
}

fn is_event(call: &Call) -> bool {
    call.path.ends_with("/events")
}

/// Returns whether the request is for a streamed list.
fn is_stream(call: &Call) -> bool {
    call.path.contains("sendInitialEvents")
}

/// Options of a node, and the directory with the node's files.
struct Bed {
    folder: tempfile::TempDir,
    options: KubeOptions,
}

impl Bed {
    fn new(urls: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let net_conf = folder.path().join("net-conf.json");
        std::fs::write(
            &net_conf,
            r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#,
        )
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

    /// Creates a node with a kubeconfig whose user and cluster contain the given JSON fields.
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
    eventually("the node knows its Node", async || {
        manager
            .node_info(&config)
            .await
            .map_err(|error| error.to_string())
    })
    .await;
}

async fn trouble(manager: &KubeManager) -> (NetworkConfig, String) {
    let config = manager.network_config().await.unwrap();
    let why = manager.node_info(&config).await.unwrap_err().to_string();
    (config, why)
}

async fn eventually<T, E: std::fmt::Display>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(why) => assert!(begun.elapsed() < SOON, "{what}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, async || if is_so() { Ok(()) } else { Err("not yet") }).await;
}

/// Time within which the client posts an Event and receives the response.
const ANSWERED: Duration = Duration::from_millis(500);

/// Advances tokio's clock by the given duration without waiting.
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
            tracing_subscriber::fmt()
                .with_writer(move || log.clone())
                .with_ansi(false)
                .finish(),
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

fn bearer(token: &'static str) -> impl Fn(&Call) -> Answer {
    move |call| {
        if call.authorization.as_deref() == Some(&format!("Bearer {token}")) {
            pass(call)
        } else {
            refuse(401)
        }
    }
}

#[tokio::test]
async fn token_file_with_white_space_around_the_token_is_accepted() {
    for text in ["s3cret\n", " s3cret\r\n\n", "s3cret"] {
        let server = server(bearer("s3cret"));
        let bed = Bed::with_user(&server, r#"{"tokenFile":"token"}"#, "");
        std::fs::write(bed.path("token"), text).unwrap();
        known(&bed.open().await.unwrap()).await;
    }
}

#[tokio::test]
async fn inline_token_with_white_space_around_it_is_accepted() {
    let server = server(bearer("s3cret"));
    let bed = Bed::with_user(&server, r#"{"token":"s3cret\n"}"#, "");
    known(&bed.open().await.unwrap()).await;
}

#[tokio::test]
async fn token_file_takes_precedence_over_an_inline_token_until_it_cannot_be_read() {
    let server = server(bearer("file"));
    let bed = Bed::with_user(&server, r#"{"token":"inline","tokenFile":"token"}"#, "");
    std::fs::write(bed.path("token"), "file\n").unwrap();
    known(&bed.open().await.unwrap()).await;
    std::fs::remove_file(bed.path("token")).unwrap();
    server.on(bearer("inline"));
    known(&bed.open().await.unwrap()).await;
}

#[tokio::test]
async fn token_that_cannot_be_sent_is_named_with_its_file_and_without_its_text() {
    for (text, why) in [
        (&b""[..], "is empty"),
        (b"  \n", "is empty"),
        (b"s3cret\nmore", "line 1 is followed by other text"),
        (b"s3\xffcret", "is not text in UTF-8"),
        (b"s3cret\x01", "control character"),
        ("s3crét".as_bytes(), "character outside ASCII"),
    ] {
        let server = server(pass);
        let bed = Bed::with_user(&server, r#"{"tokenFile":"token"}"#, "");
        std::fs::write(bed.path("token"), text).unwrap();
        let manager = bed.open().await.unwrap();
        let (config, text) = trouble(&manager).await;
        let file = bed.path("token").display().to_string();
        assert!(
            text.contains(&file)
                && text.contains(why)
                && !text.contains("answer")
                && !text.contains("s3c"),
            "{text}"
        );
        // Once the file is correct, no further action is needed.
        std::fs::write(bed.path("token"), "s3cret").unwrap();
        eventually("the node goes on", async || {
            manager
                .node_info(&config)
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }
    // A token in the kubeconfig itself is read only once.
    let server = server(pass);
    let bed = Bed::with_user(&server, r#"{"token":"s3cret\nmore"}"#, "");
    let text = bed
        .open()
        .await
        .err()
        .map(|error| error.to_string())
        .unwrap();
    assert!(
        text.contains("kubeconfig")
            && text.contains("followed by other text")
            && !text.contains("s3c"),
        "{text}"
    );
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
        manager
            .tell_operator(&Problem::in_words(format!("{want} {}", text.is_some())))
            .await;
        until("the Event is posted", || {
            server.calls().into_iter().filter(is_event).count() > known
        })
        .await;
        assert_eq!(last(), want);
    }
}

#[tokio::test]
async fn server_that_does_not_answer_is_left_for_another_one() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = server(pass);
    let bed = Bed::new(&[
        format!("https://{}", dead.local_addr().unwrap()),
        server.url(),
    ]);
    drop(dead);
    known(&bed.open().await.unwrap()).await;
}

#[tokio::test]
async fn busy_server_keeps_its_connection_when_there_is_no_other() {
    let of_servers = |call: &Call| call.path.contains("endpointslices");
    for code in [429, 500, 503] {
        let server = server(move |call| {
            if of_servers(call) {
                refuse(code)
            } else {
                pass(call)
            }
        });
        let bed = Bed::new(&[server.url()]);
        let manager = bed.open().await.unwrap();
        known(&manager).await;
        for _ in 0..4 {
            assert!(manager.servers().await.is_empty());
        }
        let used: Vec<SocketAddr> = server
            .calls()
            .iter()
            .filter(|call| of_servers(call))
            .map(|call| call.from)
            .collect();
        assert_eq!(used.len(), 4, "{code}");
        assert!(
            used.iter().all(|connection| *connection == used[0]),
            "{code}: each attempt connected anew: {used:?}"
        );
    }
}

#[tokio::test]
async fn busy_server_is_left_for_another_one() {
    for code in [429, 502, 503, 504] {
        let busy = server(move |_| refuse(code));
        let free = server(pass);
        let bed = Bed::new(&[busy.url(), free.url()]);
        known(&bed.open().await.unwrap()).await;
        assert!(
            !busy.calls().is_empty() && !free.calls().is_empty(),
            "{code}"
        );
    }
}

/// Returns the lines of a streamed list that has one Node.
fn streamed(node: &Value) -> String {
    let end = json!({ "metadata": {
        "resourceVersion": node["metadata"]["resourceVersion"], "annotations": { "k8s.io/initial-events-end": "true" } } });
    let lines = [("ADDED", node), ("BOOKMARK", &end)];
    lines
        .map(|(kind, object)| format!("{}\n", json!({ "type": kind, "object": object })))
        .concat()
}

/// A watch with these lines, followed by an error that ends the watch.
fn then_expired(lines: &str) -> Answer {
    let status = json!({ "kind": "Status", "code": 410, "message": "too old resource version" });
    let error = json!({ "type": "ERROR", "object": status });
    Answer::Reply(200, Vec::new(), format!("{lines}{error}\n"))
}

#[tokio::test]
async fn watch_that_always_expires_costs_few_requests_and_few_log_lines() {
    const LASTS: Duration = Duration::from_secs(10);
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
        server.on(move |call| fault(call, &list));
        server.forget();
        // Silent watches are opened again.
        later(Duration::from_secs(101)).await;
        tokio::time::sleep(LASTS).await;
        let (asked, lines) = (server.calls().len(), log.lines());
        println!("{asked} requests, {} lines", lines.len());
        // Two followers wait for 0.1 s, then twice as long each time: 7 attempts, each with up to three requests.
        assert!(asked <= 60, "{asked} requests in {LASTS:?}");
        assert!(
            lines.len() <= 10,
            "{} lines in {LASTS:?}: {lines:#?}",
            lines.len()
        );

        // After the recovery, one line reports it, and only once the watch has lasted for a while.
        server.on(pass);
        until("it is well", || {
            log.lines()
                .iter()
                .any(|line| line.contains("resolved: the watch on Nodes works again"))
        })
        .await;
        server.forget();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(server.calls().len(), 0, "{:?}", server.calls());
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
    let is_of_all = |call: &Call| call.is_of_nodes() && !call.path.contains("fieldSelector");
    server.on(move |call| {
        let expires =
            is_of_all(call) && call.is_watch() && std::mem::take(&mut *once.lock().unwrap());
        if expires { refuse(410) } else { pass(call) }
    });
    server.forget();
    later(Duration::from_secs(101)).await;
    let lists = || {
        server
            .calls()
            .into_iter()
            .filter(|call| is_of_all(call) && is_stream(call))
            .collect::<Vec<_>>()
    };
    until("it lists again", || !lists().is_empty()).await;
    let (first, again) = (
        server.calls().into_iter().find(is_of_all).unwrap(),
        lists()[0].clone(),
    );
    assert!(
        again.at.duration_since(first.at) < Duration::from_secs(5),
        "{:?}",
        server.calls()
    );
}

#[tokio::test]
async fn right_to_post_events_that_is_granted_later_is_noticed() {
    let server = server(|call| {
        if is_event(call) {
            refuse(403)
        } else {
            pass(call)
        }
    });
    let log = Log::default();
    let _guard = log.keep();
    let bed = Bed::new(&[server.url()]);
    let manager = bed.open().await.unwrap();
    known(&manager).await;
    let events = || server.calls().into_iter().filter(is_event).count();
    let report = async |times: usize| {
        for _ in 0..times {
            manager
                .tell_operator(&Problem::in_words("no interface"))
                .await;
            tokio::time::sleep(ANSWERED).await;
        }
    };
    report(3).await;
    assert_eq!(events(), 1, "a refusal is not asked for again at once");
    later(Duration::from_secs(301)).await;
    report(1).await;
    assert_eq!(events(), 2, "still refused");
    server.on(pass);
    later(Duration::from_secs(301)).await;
    report(1).await;
    assert_eq!(events(), 3, "what could not be told is told");
    later(Duration::from_secs(61)).await;
    report(1).await;
    assert_eq!(events(), 3, "once");
    let refusals = log
        .lines()
        .iter()
        .filter(|line| line.contains("cannot post Events"))
        .count();
    assert_eq!(refusals, 1, "{:#?}", log.lines());
}

#[tokio::test]
async fn server_whose_streamed_list_stalled_is_asked_for_one_again_after_an_hour() {
    let server = server(|call| {
        if is_stream(call) {
            refuse(422)
        } else {
            pass(call)
        }
    });
    let bed = Bed::new(&[server.url()]);
    let manager = bed.open().await.unwrap();
    known(&manager).await;
    server.on(pass);
    let streams = || server.calls().into_iter().filter(is_stream).count();
    server.forget();
    for _ in 0..3 {
        later(Duration::from_secs(101)).await;
        let before = server.calls().len();
        until("the watches are opened again", || {
            server.calls().len() > before
        })
        .await;
    }
    assert_eq!(streams(), 0, "within the hour");
    later(Duration::from_secs(3600)).await;
    until("a streamed list is asked for", || streams() > 0).await;
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
        let server = api.on_loopback().unwrap();
        server.on(
            move |call| match call.path.starts_with("/api/v1/configmaps?") {
                true if !lists => refuse(403),
                _ => pass(call),
            },
        );
        let bed = Bed::new(&[server.url()]);
        std::fs::remove_file(&bed.options.net_conf).unwrap();
        if let Some(text) = file {
            std::fs::write(&bed.options.net_conf, text).unwrap();
        }
        let config = NodeClient::new(bed.options.clone()).config().await;
        config
            .map(|config| config.networks.to_string())
            .map_err(|why| why.to_string())
    };
    let (a, b) = (("a", "10.2.0.0/16"), ("b", "10.3.0.0/16"));
    let other = r#"{"Network":"10.3.0.0/16"}"#;
    assert_eq!(config(&[a], true, None).await.unwrap(), a.1);
    assert_eq!(config(&[a, ("b", a.1)], true, None).await.unwrap(), a.1);
    let own = ("kube-flannel", "10.1.0.0/16");
    let found = config(&[a, own], false, None).await;
    assert_eq!(
        found.unwrap(),
        own.1,
        "without the right to look everywhere"
    );
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
    let bed = Bed::with_user(
        &server,
        "{}",
        r#","proxy-url":"http://user:s3cret@192.0.2.9:3128""#,
    );
    match bed.open().await.err() {
        Some(Error::Refused(trouble)) => {
            let trouble = trouble.to_string();
            assert!(
                trouble.contains("proxy-url")
                    && trouble.contains("kubeconfig")
                    && trouble.contains("--kube-api-url")
                    && !trouble.contains("s3cret"),
                "{trouble}"
            );
        }
        other => panic!("{other:?}"),
    }
}
