//! Lists Nodes, and watches them forever. kube's watcher is not used: it hides outages and does not notice an etcd restored from a backup.

use super::annotations::Prefix;
use super::api::{Api, Call};
use super::change::{Change, unusable_answer};
use super::error::NoResponseError;
use super::lines::{Line, Lines};
use super::node::Node;
use super::request_error::RequestError;
use super::stagger::{RequestStagger, SPREAD};
use crate::json::{Object, hide_values};
use crate::reason::LogOnce;
use http::StatusCode;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::time::Instant;
use types::Problem;
use types::backoff::Backoff;

/// Minimum delay between two attempts to follow the Nodes. The actual delay is random, up to twice as long.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Maximum time until the next line of a streamed list. A server without support for streamed lists never marks the end of one; the follower then
/// requests pages instead.
const STREAM: Duration = Duration::from_secs(3);
/// Limit for the first line of a streamed list. A busy server needs more time for it than for later lines.
const FIRST: Duration = Duration::from_secs(10);
/// After this time without a line, the follower opens the watch again. A watch receives a bookmark each minute.
const QUIET: Duration = Duration::from_secs(100);
/// Number of Nodes per page. The follower holds a whole page in memory.
const PAGE: usize = 100;
/// A watch may end earlier than its time limit by up to this time. An earlier end is a failure.
const EARLY: Duration = Duration::from_secs(10);
/// After this time without access to the Nodes, the health report contains the fault.
const AWAY: Duration = Duration::from_secs(60);

pub(super) trait Sink: Send {
    /// A complete list.
    fn listed(&mut self, nodes: Vec<Node>);
    /// A created or changed Node.
    fn put(&mut self, node: Node);
    fn gone(&mut self, name: &str, version: u64);
    /// Changes during the interruption may not arrive.
    fn interrupted(&mut self, why: &Problem);
    fn resumed(&mut self);
    /// The known Node with the highest version: name, uid, version.
    fn newest(&self) -> Option<(String, String, u64)>;
}

enum FollowError {
    /// At its time limit of some minutes.
    Normally,
    /// The server does not know the version. The follower lists all Nodes again.
    Unknown(Problem),
    /// Clean end before the time limit, e.g. because the server stops or a proxy closes the connection.
    Early(RequestError),
    Broken(RequestError),
}

/// Lists Nodes, then watches them from the list's version.
pub(super) struct Follower<'a, S> {
    api: &'a Api,
    /// Name of the only Node to follow; `None` for all Nodes.
    only: Option<&'a str>,
    stagger: &'a RequestStagger,
    sink: S,
    /// The follower has seen changes up to it; `None` before the first list.
    version: Option<String>,
    interrupted: bool,
    /// Start time of the current watch.
    standing: Option<Instant>,
    /// When the watch reaches its time limit.
    until: Instant,
    /// Since the last success.
    log: LogOnce,
}

impl<'a, S: Sink> Follower<'a, S> {
    pub(super) fn new(
        api: &'a Api,
        only: Option<&'a str>,
        stagger: &'a RequestStagger,
        sink: S,
    ) -> Self {
        Self {
            api,
            only,
            stagger,
            sink,
            version: None,
            interrupted: true,
            standing: None,
            until: Instant::now(),
            log: LogOnce::default(),
        }
    }

    /// Runs until the owner aborts the task. After each failure, it retries with a longer pause.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        let mut failing: Option<Instant> = None;
        let mut listed = false;
        loop {
            self.standing = None;
            if self.only.is_some() {
                // Listing one Node is as cheap as checking its version.
                self.version = None;
            }
            let ended = match self.version.clone() {
                Some(version) => self.resume(&version).await,
                None if self.stagger.pages() => self.paged().await,
                None => self.stream().await,
            };
            listed |= !self.interrupted;
            if !self.interrupted {
                failing = None;
            }
            let stood =
                self.standing.is_some_and(|since| since.elapsed() > SPREAD) && !self.interrupted;
            if stood {
                // Only a watch that lasted for a while resets the backoff. Otherwise a watch that ends at once would cost a list of all Nodes each time.
                failures = 0;
            }
            let (why, pause) = match ended {
                FollowError::Normally => continue,
                // No change is lost yet. If the server is down, the next attempt shows it.
                FollowError::Early(_) if stood => {
                    tokio::time::sleep(RETRY.after(0) + self.stagger.share()).await;
                    continue;
                }
                FollowError::Unknown(why) => {
                    self.version = None;
                    (why, self.stagger.share().max(pause(failures)))
                }
                FollowError::Broken(failure) | FollowError::Early(failure) => {
                    // An overloaded server refuses many nodes at once, so spread the retries.
                    let share = if listed && failures == 0 || failure.is_busy() {
                        self.stagger.share()
                    } else {
                        Duration::ZERO
                    };
                    let pause = pause(failures);
                    let pause = failure
                        .retry_after
                        .map_or(pause, |wait| wait.mul_f64(1.0 + rand::random::<f64>()).max(pause))
                        + share;
                    (failure.trouble, pause)
                }
            };
            failures += 1;
            self.interrupted = true;
            if failing.get_or_insert_with(Instant::now).elapsed() > AWAY {
                self.api.counters.set_unavailable(why.clone(), true);
            }
            // A single lost response is not worth a log line. Only the follower of all Nodes logs, because both followers see the same failures.
            if failures > 1 && self.only.is_none() && self.log.news(Some(&why)) {
                tracing::warn!(code = %why.code, error = %why, "the watch on Nodes is interrupted; the last known state stays in force");
            }
            self.sink.interrupted(&why);
            tokio::time::sleep(pause).await;
        }
    }

    /// Opens a watch that begins with a complete list.
    async fn stream(&mut self) -> FollowError {
        let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let mut lines = match self.open(query).await {
            Ok(lines) => lines,
            Err(failure) if failure.is_unknown_request() => {
                self.stagger.set_pages();
                return FollowError::Normally;
            }
            Err(failure) => return broken(failure),
        };
        let mut nodes = Vec::new();
        loop {
            match self.change(&mut lines, if nodes.is_empty() { FIRST } else { STREAM }).await {
                Ok(Some(Change::Put(node))) => nodes.push(*node),
                Ok(Some(Change::Gone { name, .. })) => {
                    nodes.retain(|node: &Node| node.name != name);
                }
                Ok(Some(Change::Bookmark { version, complete: true })) => {
                    self.stagger.set_streams();
                    self.complete(nodes, version);
                    return self.changes(&mut lines).await;
                }
                // Old servers do not support streamed lists: they send all Nodes without an end mark.
                Ok(None) => {
                    self.stagger.set_pages();
                    return FollowError::Normally;
                }
                Ok(Some(_)) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// Lists Nodes page by page, then watches from the list's version.
    async fn paged(&mut self) -> FollowError {
        match pages(self.api, self.only).await {
            Ok((nodes, version)) => {
                self.complete(nodes, version.clone());
                self.resume(&version).await
            }
            Err(failure) => broken(failure),
        }
    }

    fn complete(&mut self, nodes: Vec<Node>, version: String) {
        if self.only.is_none() {
            self.stagger.set(nodes.len());
        }
        self.version = Some(version);
        self.sink.listed(nodes);
        self.stands();
    }

    /// A server restored from a backup does not know the version, but reports no error. So the follower also requests the newest known Node.
    async fn resume(&mut self, version: &str) -> FollowError {
        let mut lines = match self
            .open(&format!("watch=1&resourceVersion={}&allowWatchBookmarks=true", escaped(version)))
            .await
        {
            Ok(lines) => lines,
            Err(failure) => return broken(failure),
        };
        if let Some((name, uid, newest)) = self.sink.newest() {
            match self.one(&name).await {
                Ok(Some(node)) if node.uid == uid && node.version >= newest => {}
                Ok(found) => {
                    let server = lines.server();
                    let state = if found.is_none() { "is gone" } else { "is older than before" };
                    let text = format!(
                        "the Kubernetes API at {server} does not continue from its last known state (the Node {name} {state}): listing all Nodes"
                    );
                    return FollowError::Unknown(Problem::new("kubernetes-discontinuity", text));
                }
                Err(failure) => return broken(failure),
            }
        }
        self.stands();
        self.changes(&mut lines).await
    }

    /// Processes changes until the watch ends.
    async fn changes(&mut self, lines: &mut Lines) -> FollowError {
        let opened = Instant::now();
        loop {
            // Do not log a recovery while the watch may end again soon.
            let unsettled = if self.log.is_empty() {
                Duration::ZERO
            } else {
                SPREAD.saturating_sub(opened.elapsed())
            };
            if unsettled.is_zero() && self.log.news(None) {
                tracing::info!("resolved: the watch on Nodes works again");
            }
            match self.change(lines, if unsettled.is_zero() { QUIET } else { unsettled }).await {
                Ok(None) if !unsettled.is_zero() => {}
                Ok(None) => return FollowError::Normally,
                Ok(Some(Change::Put(node))) => {
                    self.seen(node.version);
                    self.sink.put(*node);
                }
                Ok(Some(Change::Gone { name, version })) => {
                    self.seen(version);
                    self.sink.gone(&name, version);
                }
                Ok(Some(Change::Bookmark { version, .. })) => self.version = Some(version),
                Ok(Some(Change::Odd(_) | Change::Error { .. })) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// `None` if no change arrives within `patience`. A [`FollowError`] follows the end of a watch or an error from the server.
    async fn change(
        &mut self,
        lines: &mut Lines,
        patience: Duration,
    ) -> Result<Option<Change>, FollowError> {
        let text = match lines.next(patience).await {
            Ok(Line::Text(text)) => {
                self.api.counters.heard();
                text
            }
            Ok(Line::Quiet) => return Ok(None),
            Ok(Line::End) if Instant::now() + EARLY < self.until => {
                // This may affect every node. Without a pause, all would come back at once.
                self.api.give_up(lines.generation());
                let (_, what) = self.words();
                return Err(FollowError::Early(RequestError::unreachable(
                    lines.server(),
                    what,
                    &NoResponseError::EndedEarly,
                )));
            }
            Ok(Line::End) => return Err(FollowError::Normally),
            Err(failure) => {
                self.api.give_up(lines.generation());
                return Err(FollowError::Broken(failure));
            }
        };
        let (_, what) = self.words();
        match Change::read(&text, &self.api.options().prefix) {
            Ok(Change::Error { code, message }) => {
                let status =
                    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let body = serde_json::json!({ "message": message }).to_string();
                Err(broken(RequestError::refused(lines.server(), what, status, None, &body)))
            }
            Ok(Change::Odd(why)) => {
                self.api.counters.unreadable("a Node", why.clone());
                Ok(Some(Change::Odd(why)))
            }
            Ok(change) => Ok(Some(change)),
            Err(why) => {
                self.api.give_up(lines.generation());
                Err(FollowError::Broken(RequestError::nonsense(lines.server(), what, why)))
            }
        }
    }

    async fn open(&mut self, query: &str) -> Result<Lines, RequestError> {
        /// Minimum time limit of a watch in seconds. Without a limit, servers end watches after 30 to 60 minutes. A shorter one prevents the watches
        /// from accumulating on one server.
        const LEAST: u64 = 300;
        let seconds = LEAST + rand::random_range(0..LEAST);
        let (kind, what) = self.words();
        let path = format!("/api/v1/nodes?{query}&timeoutSeconds={seconds}{}", selector(self.only));
        self.until = Instant::now() + Duration::from_secs(seconds);
        self.api.send(&Call::get(kind, what, path)).await.map(Lines::of)
    }

    /// With a list request, because old manifests do not grant the permission `get`.
    async fn one(&self, name: &str) -> Result<Option<Node>, RequestError> {
        let path = format!("/api/v1/nodes?limit=1&fieldSelector=metadata.name%3D{}", escaped(name));
        let text =
            self.api.read(&Call::get("list-node", format!("list the Node {name}"), path)).await?;
        let page = Page::read(&text, &self.api.options().prefix)
            .map_err(|why| RequestError::nonsense("the server", "list a Node", why))?;
        Ok(page.nodes.into_iter().find(|node| node.name == name))
    }

    fn stands(&mut self) {
        self.api.counters.set_available();
        self.interrupted = false;
        self.standing = Some(Instant::now());
        self.sink.resumed();
    }

    fn seen(&mut self, version: u64) {
        if version > 0 {
            self.version = Some(version.to_string());
        }
    }

    /// The metrics label `kind` of a watch request, and its description.
    fn words(&self) -> (&'static str, &'static str) {
        if self.only.is_some() {
            ("watch-node", "watch this Node")
        } else {
            ("watch-nodes", "watch all Nodes")
        }
    }
}

/// Given the number of previous failures.
fn pause(failures: u32) -> Duration {
    RETRY.after(failures).mul_f64(1.0 + rand::random::<f64>())
}

fn selector(only: Option<&str>) -> String {
    only.map(|name| format!("&fieldSelector=metadata.name%3D{}", escaped(name))).unwrap_or_default()
}

/// Lists Nodes page by page, with the version of the list. An incomplete list is discarded.
pub(super) async fn pages(
    api: &Api,
    only: Option<&str>,
) -> Result<(Vec<Node>, String), RequestError> {
    let (kind, what) = if only.is_some() {
        ("list-node", "list this Node")
    } else {
        ("list-nodes", "list all Nodes")
    };
    let mut limit = PAGE;
    let mut nodes = Vec::new();
    let mut next = String::new();
    loop {
        let token =
            if next.is_empty() { String::new() } else { format!("&continue={}", escaped(&next)) };
        let path = format!("/api/v1/nodes?limit={limit}{token}{}", selector(only));
        let text = match api.read(&Call::get(kind, what, path)).await {
            Ok(text) => text,
            Err(failure) if failure.is_too_large() && limit > 1 => {
                limit = (limit / 2).max(1);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let page = Page::read(&text, &api.options().prefix)
            .map_err(|why| RequestError::nonsense("the server", what, why))?;
        nodes.extend(page.nodes);
        next = page.next;
        if next.is_empty() {
            return Ok((nodes, page.version));
        }
    }
}

fn broken(failure: RequestError) -> FollowError {
    if failure.is_gone() {
        FollowError::Unknown(failure.trouble)
    } else {
        FollowError::Broken(failure)
    }
}

struct Page {
    nodes: Vec<Node>,
    version: String,
    next: String,
}

impl Page {
    fn read(text: &str, prefix: &Prefix) -> Result<Self, Problem> {
        let list = Object::parse(text).map_err(|error| unusable_answer(hide_values(&error)))?;
        let metadata = list
            .get("metadata")
            .and_then(|raw| Object::parse(raw.get()).ok())
            .ok_or_else(|| unusable_answer("a list without metadata"))?;
        let word = |name: &str| metadata.read::<String>(name).ok().flatten();
        let items: Vec<&RawValue> = list.read_raw_list("items")?;
        Ok(Self {
            // A malformed Node must not hide the others.
            nodes: items
                .into_iter()
                .filter_map(|item| Node::read(item.get(), prefix).ok())
                .collect(),
            version: word("resourceVersion")
                .ok_or_else(|| unusable_answer("a list without a version"))?,
            next: word("continue").unwrap_or_default(),
        })
    }
}

/// Percent-encodes a value of a query.
fn escaped(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    text.bytes().fold(String::new(), |mut out, byte| {
        if keep(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_survives_an_odd_node() {
        let text = r#"{"metadata":{"resourceVersion":"7","continue":"a=b"},"items":[{"metadata":{"name":"n1"}},7,{},{"metadata":{"name":"n2"}}]}"#;
        let page = Page::read(text, &Prefix::parse("flannel.alpha.coreos.com").unwrap()).unwrap();
        assert_eq!((page.nodes.len(), page.version.as_str(), page.next.as_str()), (2, "7", "a=b"));
        assert_eq!(escaped("a=b&c/ü"), "a%3Db%26c%2F%C3%BC");
        for odd in
            ["", "{}", r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"1"},"items":7}"#]
        {
            assert!(Page::read(odd, &Prefix::parse("a.b").unwrap()).is_err(), "{odd}");
        }
    }
}
