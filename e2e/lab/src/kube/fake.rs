//! A fake of kube-apiserver: objects in memory, with the versions, lists, watches, patches and rights on which the daemon relies.
//!
//! The contract of `subnet-lease` runs the same cases on this fake and on a real server, so that it cannot drift from the real one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value, json};

use crate::kube::client::{Answers, ApiClient, Endpoint, Request, Response};
use crate::kube::fake::object::{Object, created_object, failure_status, patched_object};
use crate::kube::fake::target::{ApiError, Key, Target, refuse_request};
use crate::kube::http::Head;
use crate::kube::proxy::Proxy;
use crate::kube::users::User;

mod object;
mod target;

/// As if the cluster were older than its API server's process.
const FIRST: u64 = 1000;
const BOOKMARK: Duration = Duration::from_secs(60);
/// Of a watch without its own limit, in seconds.
const LONGEST: u64 = 1800;

/// A clone is the same server.
#[derive(Clone)]
pub struct FakeApi(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    running: bool,
    /// A watch ends when it changes.
    starts: u64,
    /// The server streams lists.
    streams: bool,
    /// Of the last change.
    version: u64,
    /// The history begins after it.
    oldest: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    /// Version, kind, resource and object.
    history: Vec<(u64, &'static str, String, Arc<Object>)>,
    /// The objects that follow a page, and the version of their list, by its number.
    pages: BTreeMap<u64, (u64, Vec<Arc<Object>>)>,
}

enum Answer {
    Whole(u16, String),
    Watch(Watch),
}

impl std::fmt::Debug for FakeApi {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("FakeApi")
    }
}

impl Default for FakeApi {
    fn default() -> FakeApi {
        FakeApi::with_endpoint_address(Ipv4Addr::LOCALHOST.into())
    }
}

impl FakeApi {
    /// The server has this address in its EndpointSlice.
    pub fn with_endpoint_address(address: IpAddr) -> FakeApi {
        let slice = json!({
            "metadata": { "name": "kubernetes", "namespace": "default", "labels": { "kubernetes.io/service-name": "kubernetes" } },
            "endpoints": [{ "addresses": [address] }],
        });
        let names = ["endpointslices", "default", "kubernetes"];
        let [resource, namespace, name] = names.map(str::to_owned);
        let state = State {
            running: true,
            starts: 0,
            streams: true,
            version: FIRST,
            oldest: FIRST,
            objects: [((resource, namespace, name), Arc::new(slice.into()))].into(),
            history: Vec::new(),
            pages: BTreeMap::new(),
        };
        FakeApi(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// API servers before Kubernetes 1.34 refuse them.
    pub fn refuse_streamed_lists(&self) {
        self.lock().streams = false;
    }

    /// A proxy serves the clients; a test chooses its answers.
    pub fn serve(&self, listener: TcpListener) -> Result<Proxy> {
        Proxy::start(listener, Endpoint::Fake(Arc::new(self.clone())))
    }

    /// The port is free.
    pub fn serve_on_loopback(&self) -> Result<Proxy> {
        self.serve(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)
    }

    pub fn admin(&self) -> ApiClient {
        ApiClient { endpoint: Endpoint::Fake(Arc::new(self.clone())), token: User::Admin.token() }
    }

    /// Ends all watches, and refuses requests until [`FakeApi::accept_requests_again`].
    pub fn end_watches_and_refuse_requests(&self) {
        self.lock().running = false;
        self.0.changed.notify_all();
    }

    pub fn accept_requests_again(&self) {
        let mut state = self.lock();
        state.running = true;
        state.starts += 1;
    }

    /// The resource version and all objects, as JSON.
    pub fn snapshot(&self, file: &Path) -> Result<()> {
        let state = self.lock();
        let objects = state.objects.iter();
        let objects: Vec<_> = objects.map(|(key, object)| (key, &object.value)).collect();
        let file = File::create(file)?;
        Ok(serde_json::to_writer(file, &(state.version, objects))?)
    }

    /// All watches end.
    pub fn restore(&self, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file)?;
        let (version, objects): (u64, Vec<(Key, Value)>) = serde_json::from_str(&text)?;
        let objects = objects.into_iter();
        let objects = objects.map(|(key, value)| (key, Arc::new(value.into())));
        let mut state = self.lock();
        (state.version, state.oldest) = (version, version);
        state.objects = objects.collect();
        state.history.clear();
        state.pages.clear();
        state.starts += 1;
        self.0.changed.notify_all();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

impl Answers for FakeApi {
    fn answer(&self, request: &Request<'_>) -> std::io::Result<Response> {
        let mut state = self.lock();
        if !state.running {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let before = state.version;
        let answer = state.authorize_and_perform(request);
        if state.version != before {
            self.0.changed.notify_all();
        }
        Ok(match answer.unwrap_or_else(|refusal| refusal_answer(&refusal)) {
            Answer::Whole(status, text) => Response {
                head: Head::for_json_response(status),
                body: Box::new(Cursor::new(text.into_bytes())),
            },
            Answer::Watch(watch) => Response {
                head: Head::for_json_response(200),
                body: Box::new(Stream::new(self.clone(), watch)),
            },
        })
    }
}

impl State {
    fn authorize_and_perform(&mut self, request: &Request<'_>) -> Result<Answer, ApiError> {
        let Some(user) = User::of_token(request.token) else {
            return refuse_request(401, "Unauthorized");
        };
        if matches!(request.target, "/readyz" | "/version") {
            return Ok(Answer::Whole(200, json!({ "major": "1" }).to_string()));
        }
        let Some(target) = Target::parse_path_and_query(request.target) else {
            return refuse_request(404, "the server could not find the requested resource");
        };
        let verb = target.verb(request.method);
        target.require_right(user, verb)?;
        let next = self.version + 1;
        match (verb, target.key()) {
            ("get", Some(key)) => Ok(Answer::Whole(200, self.object(&key)?.text.clone())),
            ("create", None) => {
                let (key, value) = created_object(&target, request.body, next)?;
                if self.objects.contains_key(&key) {
                    return refuse_request(409, format!("{} already exists", key.2));
                }
                Ok(Answer::Whole(201, self.record_versioned_change(key, "ADDED", value)))
            }
            ("patch", Some(key)) => {
                let old = self.object(&key)?;
                let text = match patched_object(&target, request, &old.value, next)? {
                    Some(value) => self.record_versioned_change(key, "MODIFIED", value),
                    None => old.text.clone(),
                };
                Ok(Answer::Whole(200, text))
            }
            ("delete", Some(key)) => {
                let mut value = self.object(&key)?.value.clone();
                value["metadata"]["resourceVersion"] = json!(next.to_string());
                let text = self.record_versioned_change(key.clone(), "DELETED", value);
                self.objects.remove(&key);
                Ok(Answer::Whole(200, text))
            }
            ("list", None) => self.list(&target),
            ("watch", None) => Ok(Answer::Watch(Watch::open(self, target)?)),
            _ => refuse_request(405, "the server does not allow this method"),
        }
    }

    fn object(&self, key: &Key) -> Result<Arc<Object>, ApiError> {
        let found = self.objects.get(key).cloned();
        found.map_or_else(|| refuse_request(404, format!("{} not found", key.2)), Ok)
    }

    /// The next version of an object; the result is its text.
    fn record_versioned_change(&mut self, key: Key, kind: &'static str, value: Value) -> String {
        self.version += 1;
        let object = Arc::new(Object::from(value));
        let change = (self.version, kind, key.0.clone(), Arc::clone(&object));
        self.history.push(change);
        let text = object.text.clone();
        self.objects.insert(key, object);
        text
    }

    /// Sorted by namespace and name.
    fn selected(&self, target: &Target) -> Vec<Arc<Object>> {
        let of_resource = |key: &Key| key.0 == target.resource;
        self.objects
            .iter()
            .filter(|(key, object)| of_resource(key) && target.selector.takes(&object.value))
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    fn list(&mut self, target: &Target) -> Result<Answer, ApiError> {
        let (version, mut items) = match target.query_number("continue")? {
            None => (self.version_at_least_requested(target)?, self.selected(target)),
            Some(list) => match self.pages.get(&list) {
                Some(page) => page.clone(),
                None => return refuse_request(410, "The provided continue parameter is too old"),
            },
        };
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        // The real server's cache ignores a limit, too.
        let limit = target.query_number("limit")?.filter(|limit| *limit > 0);
        if let (Some(limit), false) = (limit, target.query_parameter_is("resourceVersion", "0")) {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let rest = items.split_off(items.len().min(limit));
            if !rest.is_empty() {
                let list = self.pages.len() as u64;
                self.pages.insert(list, (version, rest));
                metadata["continue"] = json!(list.to_string());
            }
        }
        let items: Vec<&str> = items.iter().map(|object| object.text.as_str()).collect();
        let items = items.join(",");
        let list = format!(r#"{{"kind":"List","metadata":{metadata},"items":[{items}]}}"#);
        Ok(Answer::Whole(200, list))
    }

    /// A list must not be older than the requested version.
    fn version_at_least_requested(&self, target: &Target) -> Result<u64, ApiError> {
        match target.query_number("resourceVersion")? {
            Some(wanted) if wanted > self.version => {
                let words = "Timeout: Too large resource version";
                refuse_request(504, format!("{words}: {wanted}, current: {}", self.version))
            }
            _ => Ok(self.version),
        }
    }
}

fn refusal_answer(refusal: &ApiError) -> Answer {
    Answer::Whole(refusal.0, failure_status(refusal.0, &refusal.1).to_string())
}

/// Of a collection.
struct Watch {
    target: Target,
    /// Up to this version, the client has seen the changes.
    seen: u64,
    /// Lines that the client gets before any change.
    first: String,
    /// If the client wants bookmarks.
    bookmark: Option<Instant>,
    until: Instant,
    starts: u64,
}

impl Watch {
    fn open(state: &State, target: Target) -> Result<Watch, ApiError> {
        let streams = target.query_parameter_is("sendInitialEvents", "true");
        if streams
            && !(state.streams && target.query_parameter_is("resourceVersionMatch", "NotOlderThan"))
        {
            return refuse_request(422, "sendInitialEvents: Forbidden");
        }
        let bookmarks = target.query_parameter_is("allowWatchBookmarks", "true");
        let seconds = target.query_number("timeoutSeconds")?.unwrap_or(LONGEST);
        let from = target.query_number("resourceVersion")?.unwrap_or(0);
        let now = Instant::now();
        let (mut seen, mut first, mut until) =
            (from, String::new(), now + Duration::from_secs(seconds));
        if streams || from == 0 {
            seen = state.version_at_least_requested(&target)?;
            for object in state.selected(&target) {
                first.push_str(&watch_event_line("ADDED", &object.text));
            }
            if streams && bookmarks {
                first.push_str(&bookmark_event_line(seen, true));
            }
        } else if from < state.oldest {
            let expired = failure_status(410, "too old resource version");
            first = watch_event_line("ERROR", &expired.to_string());
            until = now;
        }
        Ok(Watch {
            target,
            seen,
            first,
            bookmark: bookmarks.then_some(now + BOOKMARK),
            until,
            starts: state.starts,
        })
    }
}

/// The lines of a watch, which a read waits for.
struct Stream {
    api: FakeApi,
    watch: Watch,
    lines: Cursor<String>,
}

impl Stream {
    fn new(api: FakeApi, mut watch: Watch) -> Stream {
        let lines = Cursor::new(std::mem::take(&mut watch.first));
        Stream { api, watch, lines }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let length = self.lines.read(into)?;
        if length > 0 {
            return Ok(length);
        }
        match self.api.wait_watch_lines(&mut self.watch) {
            Some(lines) => {
                self.lines = Cursor::new(lines);
                self.lines.read(into)
            }
            None => Ok(0),
        }
    }
}

impl FakeApi {
    /// Waits for the next lines; `None` when the watch has ended.
    fn wait_watch_lines(&self, watch: &mut Watch) -> Option<String> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if !state.running || state.starts != watch.starts || now >= watch.until {
                return None;
            }
            let seen = state.history.partition_point(|change| change.0 <= watch.seen);
            let changes = state.history.iter().skip(seen);
            let lines: String = changes
                .filter(|(_, _, resource, object)| {
                    *resource == watch.target.resource && watch.target.selector.takes(&object.value)
                })
                .map(|(_, kind, _, object)| watch_event_line(kind, &object.text))
                .collect();
            watch.seen = watch.seen.max(state.version);
            if !lines.is_empty() {
                return Some(lines);
            }
            if let Some(due) = watch.bookmark.as_mut().filter(|due| now >= **due) {
                *due = now + BOOKMARK;
                return Some(bookmark_event_line(watch.seen, false));
            }
            let end = watch.bookmark.map_or(watch.until, |due| due.min(watch.until));
            self.0.changed.wait_until(&mut state, end);
        }
    }
}

fn watch_event_line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn bookmark_event_line(version: u64, ends_list: bool) -> String {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if ends_list {
        metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    let object = json!({ "kind": "Node", "metadata": metadata });
    watch_event_line("BOOKMARK", &object.to_string())
}
