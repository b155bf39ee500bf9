//! Lists Nodes and watches them, for ever: kube's own watcher hides outages, and stays blind after etcd was restored from a backup.

use super::annotations::Prefix;
use super::api::{Api, Call};
use super::change::Change;
use super::failure::Failure;
use super::fault::Nonsense;
use super::lines::{Line, Lines};
use super::node::Node;
use super::stagger::{RequestStagger, SPREAD};
use super::trouble::{KubeTrouble, Silence};
use crate::json::Object;
use crate::reason::{LogOnce, Reason};
use http::StatusCode;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::time::Instant;
use types::backoff::Backoff;

/// Delay between two attempts; up to twice as long, at random.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// A server without the list as a stream sends no end of it: after this time without another line, pages are listed instead.
const STREAM: Duration = Duration::from_secs(3);
/// The same before the first line: a busy server needs time.
const FIRST: Duration = Duration::from_secs(10);
/// A watch gets a bookmark each minute. One that is silent for longer is opened again.
const QUIET: Duration = Duration::from_secs(100);
/// Nodes a page: a page is held in memory as a whole.
const PAGE: usize = 100;
/// A watch that ends this long before its time ends early.
const EARLY: Duration = Duration::from_secs(10);
/// Failures are told to health after this time.
const AWAY: Duration = Duration::from_secs(60);

/// Takes what is listed and watched.
pub(super) trait Sink: Send {
    /// A complete list.
    fn listed(&mut self, nodes: Vec<Node>);
    /// A Node was created or changed.
    fn put(&mut self, node: Node);
    /// A Node was deleted.
    fn gone(&mut self, name: &str, version: u64);
    /// Changes are not seen, for this reason.
    fn interrupted(&mut self, why: &Reason);
    /// Changes are seen again.
    fn resumed(&mut self);
    /// Of the Nodes known, one with the highest version: name, uid, version.
    fn newest(&self) -> Option<(String, String, u64)>;
}

/// Why a watch ended.
enum Ended {
    /// As it has to, after some minutes.
    Normally,
    /// The server does not know the version: everything is listed again.
    Unknown(KubeTrouble),
    /// The server ended it in good order before its time, as one does that stops, or a proxy in between.
    Early(Failure),
    /// It broke.
    Broken(Failure),
}

/// Lists Nodes, then watches from the list's version.
pub(super) struct Follower<'a, S> {
    api: &'a Api,
    /// Name of the only Node to follow; `None`: all Nodes.
    only: Option<&'a str>,
    stagger: &'a RequestStagger,
    sink: S,
    /// Seen up to here; none: list.
    version: Option<String>,
    interrupted: bool,
    /// Since when the present watch stands.
    standing: Option<Instant>,
    /// When the watch has to end.
    until: Instant,
    /// What was logged since all was well.
    log: LogOnce,
}

impl<'a, S: Sink> Follower<'a, S> {
    /// Of all Nodes, or of one.
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

    /// Lists and watches until the task is aborted; failures are retried with growing pauses.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        let mut failing: Option<Instant> = None;
        let mut listed = false;
        loop {
            self.standing = None;
            if self.only.is_some() {
                // One Node is listed as cheaply as its version is checked.
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
                // Only a watch that stood for a while is a new beginning: one that ends at once costs a list of all Nodes each time.
                failures = 0;
            }
            let (why, pause) = match ended {
                Ended::Normally => continue,
                // Nothing is lost yet; if the server is away, the next attempt tells.
                Ended::Early(_) if stood => {
                    tokio::time::sleep(RETRY.after(0) + self.stagger.share()).await;
                    continue;
                }
                Ended::Unknown(why) => {
                    self.version = None;
                    (why, self.stagger.share().max(pause(failures)))
                }
                Ended::Broken(failure) | Ended::Early(failure) => {
                    // A server that has too much to do refuses many at once.
                    let share = if listed && failures == 0 || failure.is_busy() {
                        self.stagger.share()
                    } else {
                        Duration::ZERO
                    };
                    let pause = pause(failures);
                    let pause = failure.retry_after.map_or(pause, |wait| {
                        wait.mul_f64(1.0 + rand::random::<f64>()).max(pause)
                    }) + share;
                    (failure.trouble, pause)
                }
            };
            let why = Reason::from(why);
            failures += 1;
            self.interrupted = true;
            if failing.get_or_insert_with(Instant::now).elapsed() > AWAY {
                self.api.counters.set_unavailable(why.problem.clone());
            }
            // A single lost answer is nothing to tell; both followers see the same.
            if failures > 1 && self.only.is_none() && self.log.news(Some(&why)) {
                tracing::warn!(code = %why.problem.code, error = %why, "the watch on Nodes is interrupted, the last known state stays in force");
            }
            self.sink.interrupted(&why);
            tokio::time::sleep(pause).await;
        }
    }

    /// A watch that begins with a complete list.
    async fn stream(&mut self) -> Ended {
        let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let mut lines = match self.open(query).await {
            Ok(lines) => lines,
            Err(failure) if failure.is_unknown_request() => {
                self.stagger.set_pages();
                return Ended::Normally;
            }
            Err(failure) => return broken(failure),
        };
        let mut nodes = Vec::new();
        loop {
            match self
                .change(&mut lines, if nodes.is_empty() { FIRST } else { STREAM })
                .await
            {
                Ok(Some(Change::Put(node))) => nodes.push(*node),
                Ok(Some(Change::Gone { name, .. })) => {
                    nodes.retain(|node: &Node| node.name != name);
                }
                Ok(Some(Change::Bookmark {
                    version,
                    complete: true,
                })) => {
                    self.stagger.set_streams();
                    self.complete(nodes, version);
                    return self.changes(&mut lines).await;
                }
                // Old servers know no such list: they send all Nodes, and then nothing that says so.
                Ok(None) => {
                    self.stagger.set_pages();
                    return Ended::Normally;
                }
                Ok(Some(_)) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// Lists page by page.
    async fn paged(&mut self) -> Ended {
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

    /// Watches from a version on. A server that was restored from a backup does not know it, and says nothing: the newest Node tells.
    async fn resume(&mut self, version: &str) -> Ended {
        let mut lines = match self
            .open(&format!(
                "watch=1&resourceVersion={}&allowWatchBookmarks=true",
                escaped(version)
            ))
            .await
        {
            Ok(lines) => lines,
            Err(failure) => return broken(failure),
        };
        if let Some((name, uid, newest)) = self.sink.newest() {
            match self.one(&name).await {
                Ok(Some(node)) if node.uid == uid && node.version >= newest => {}
                Ok(found) => {
                    let server = lines.server().to_owned();
                    return Ended::Unknown(KubeTrouble::Discontinuity {
                        server,
                        node: name,
                        gone: found.is_none(),
                    });
                }
                Err(failure) => return broken(failure),
            }
        }
        self.stands();
        self.changes(&mut lines).await
    }

    /// Takes changes until the watch ends.
    async fn changes(&mut self, lines: &mut Lines) -> Ended {
        let opened = Instant::now();
        loop {
            // A watch that ends again soon is no remedy.
            let unsettled = if self.log.is_empty() {
                Duration::ZERO
            } else {
                SPREAD.saturating_sub(opened.elapsed())
            };
            if unsettled.is_zero() && self.log.news(None) {
                tracing::info!("resolved: Nodes are being watched again");
            }
            match self
                .change(
                    lines,
                    if unsettled.is_zero() {
                        QUIET
                    } else {
                        unsettled
                    },
                )
                .await
            {
                Ok(None) if !unsettled.is_zero() => {}
                Ok(None) => return Ended::Normally,
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

    /// The next change; none when nothing came for a while. The end of a watch, and what the server calls an error, end it.
    async fn change(
        &mut self,
        lines: &mut Lines,
        patience: Duration,
    ) -> Result<Option<Change>, Ended> {
        let text = match lines.next(patience).await {
            Ok(Line::Text(text)) => {
                self.api.counters.heard();
                text
            }
            Ok(Line::Quiet) => return Ok(None),
            Ok(Line::End) if Instant::now() + EARLY < self.until => {
                // Every node's, perhaps: they would all come back at once.
                self.api.give_up(lines.generation());
                let (_, what) = self.words();
                return Err(Ended::Early(Failure::unreachable(
                    lines.server(),
                    what,
                    Silence::EndedEarly,
                )));
            }
            Ok(Line::End) => return Err(Ended::Normally),
            Err(failure) => {
                self.api.give_up(lines.generation());
                return Err(Ended::Broken(failure));
            }
        };
        let (_, what) = self.words();
        match Change::read(&text, &self.api.options().prefix) {
            Ok(Change::Error { code, message }) => {
                let status =
                    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let body = serde_json::json!({ "message": message }).to_string();
                Err(broken(Failure::refused(
                    lines.server(),
                    what,
                    status,
                    None,
                    &body,
                )))
            }
            Ok(Change::Odd(why)) => {
                self.api.counters.unreadable("a Node", why.clone().into());
                Ok(Some(Change::Odd(why)))
            }
            Ok(change) => Ok(Some(change)),
            Err(why) => {
                self.api.give_up(lines.generation());
                Err(Ended::Broken(Failure::nonsense(lines.server(), what, why)))
            }
        }
    }

    async fn open(&mut self, query: &str) -> Result<Lines, Failure> {
        /// Servers end watches after 30 to 60 minutes of their own accord; sooner, so that all of them do not meet one server.
        const LEAST: u64 = 300;
        let seconds = LEAST + rand::random_range(0..LEAST);
        let (kind, what) = self.words();
        let path = format!(
            "/api/v1/nodes?{query}&timeoutSeconds={seconds}{}",
            selector(self.only)
        );
        self.until = Instant::now() + Duration::from_secs(seconds);
        self.api
            .send(&Call::get(kind, what, path))
            .await
            .map(Lines::of)
    }

    /// One Node, by a list: `get` is not among the rights that old manifests grant.
    async fn one(&self, name: &str) -> Result<Option<Node>, Failure> {
        let path = format!(
            "/api/v1/nodes?limit=1&fieldSelector=metadata.name%3D{}",
            escaped(name)
        );
        let text = self
            .api
            .read(&Call::get(
                "list-node",
                format!("list the Node {name}"),
                path,
            ))
            .await?;
        let page = Page::read(&text, &self.api.options().prefix)
            .map_err(|why| Failure::nonsense("the server", "list a Node", why))?;
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

    /// What watches are counted as, and what they do.
    fn words(&self) -> (&'static str, &'static str) {
        if self.only.is_some() {
            ("watch-node", "watch this Node")
        } else {
            ("watch-nodes", "watch all Nodes")
        }
    }
}

/// The pause after a failure that `failures` others came before.
fn pause(failures: u32) -> Duration {
    RETRY.after(failures).mul_f64(1.0 + rand::random::<f64>())
}

fn selector(only: Option<&str>) -> String {
    only.map(|name| format!("&fieldSelector=metadata.name%3D{}", escaped(name)))
        .unwrap_or_default()
}

/// Lists Nodes page by page, and returns the version of the list too. A list that breaks off counts for nothing.
///
/// # Errors
/// The API does not answer, or refuses.
pub(super) async fn pages(api: &Api, only: Option<&str>) -> Result<(Vec<Node>, String), Failure> {
    let (kind, what) = if only.is_some() {
        ("list-node", "list this Node")
    } else {
        ("list-nodes", "list all Nodes")
    };
    let mut limit = PAGE;
    let mut nodes = Vec::new();
    let mut next = String::new();
    loop {
        let token = if next.is_empty() {
            String::new()
        } else {
            format!("&continue={}", escaped(&next))
        };
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
            .map_err(|why| Failure::nonsense("the server", what, why))?;
        nodes.extend(page.nodes);
        next = page.next;
        if next.is_empty() {
            return Ok((nodes, page.version));
        }
    }
}

fn broken(failure: Failure) -> Ended {
    if failure.is_gone() {
        Ended::Unknown(failure.trouble)
    } else {
        Ended::Broken(failure)
    }
}

/// A page of a list.
struct Page {
    nodes: Vec<Node>,
    version: String,
    next: String,
}

impl Page {
    fn read(text: &str, prefix: &Prefix) -> Result<Self, Nonsense> {
        let list = Object::parse(text)
            .map_err(|error| Nonsense::Json(crate::json::JsonFault::unquoted(&error)))?;
        let metadata = list
            .get("metadata")
            .and_then(|raw| Object::parse(raw.get()).ok())
            .ok_or(Nonsense::ListWithoutMetadata)?;
        let word = |name: &str| metadata.read::<String>(name).ok().flatten();
        let items: Vec<&RawValue> = list.read_raw_list("items").map_err(Nonsense::Items)?;
        Ok(Self {
            // One odd Node must not hide the others.
            nodes: items
                .into_iter()
                .filter_map(|item| Node::read(item.get(), prefix).ok())
                .collect(),
            version: word("resourceVersion").ok_or(Nonsense::ListWithoutVersion)?,
            next: word("continue").unwrap_or_default(),
        })
    }
}

/// Percent-encodes what stands in a query.
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
        assert_eq!(
            (page.nodes.len(), page.version.as_str(), page.next.as_str()),
            (2, "7", "a=b")
        );
        assert_eq!(escaped("a=b&c/ü"), "a%3Db%26c%2F%C3%BC");
        for odd in [
            "",
            "{}",
            r#"{"metadata":{}}"#,
            r#"{"metadata":{"resourceVersion":"1"},"items":7}"#,
        ] {
            assert!(
                Page::read(odd, &Prefix::parse("a.b").unwrap()).is_err(),
                "{odd}"
            );
        }
    }
}
