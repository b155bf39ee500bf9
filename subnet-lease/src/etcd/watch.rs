//! Watches keys despite broken or silent streams, compaction, and restored stores.

use super::call_error::{CallError, CallErrorKind};
use super::client::{ANSWER_LIMIT, EtcdRegistry, range_end};
use super::connection::Connection;
use super::error::EtcdError;
use crate::protocol::registry::{Entry, key_text};
use etcd_client::{
    EventType, GetOptions, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};
use std::time::Duration;
use tonic::Code;

/// Without a message for this time, the client requests a progress notification.
const QUIET: Duration = Duration::from_secs(45);
/// Maximum time until that notification arrives.
const SIGN: Duration = Duration::from_secs(10);
const OPEN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(Entry),
    Delete {
        key: String,
        /// Revision of the deletion.
        revision: i64,
    },
}

impl Change {
    /// The revision that the event created.
    #[must_use]
    pub fn revision(&self) -> i64 {
        match self {
            Change::Put(entry) => entry.modified,
            Change::Delete { revision, .. } => *revision,
        }
    }
}

#[derive(Debug)]
pub enum WatchError {
    /// The caller must connect and resume the watch.
    Stream(EtcdError),
    /// The client replaced the connection, without an error.
    Renewed,
    /// The store has another history than the one that the watch has seen so far, or etcd has compacted the last event that the watch saw. The caller
    /// must read all keys again. With the difference.
    History(String),
}

/// Newest known list or event of the store, from which a watch starts.
#[derive(Clone, Debug)]
pub enum Anchor {
    Listed {
        /// The watch begins at the next one.
        revision: i64,
        /// The most recently written key of the list. If the store's entry differs from it, an operator restored the store.
        newest: Option<Entry>,
    },
    /// Last event that the watch delivered.
    Event(Change),
}

/// An open watch on the keys with a prefix, or on exactly one key.
pub struct Watch<'a> {
    registry: &'a EtcdRegistry,
    stream: WatchStream,
    connection: Box<Connection>,
    /// The watch must deliver it first. Another first event shows that the store has another history.
    expected: Option<Change>,
    /// Revision up to which the watch already knows the events.
    known: i64,
    asked: bool,
}

impl<'a> Watch<'a> {
    /// Opens a watch from `anchor` and checks that the store's history still contains the anchor.
    pub async fn open(
        registry: &'a EtcdRegistry,
        key: &str,
        exact: bool,
        anchor: &Anchor,
    ) -> Result<Self, WatchError> {
        registry.counters.call("watch");
        let connection = registry.connected().await.map_err(WatchError::Stream)?;
        let (from, expected, known) = match anchor {
            Anchor::Listed { revision, .. } => (revision + 1, None, *revision),
            Anchor::Event(change) => (change.revision(), Some(change.clone()), change.revision()),
        };
        let full = registry.key(key);
        let mut options =
            WatchOptions::new().with_start_revision(from).with_progress_notify().with_fragment();
        if !exact {
            options = options.with_range(range_end(full.as_bytes()));
        }
        let mut client = connection.client.watch_client().max_decoding_message_size(ANSWER_LIMIT);
        let opened = tokio::time::timeout(OPEN, async {
            let mut stream = client.watch(full.as_str(), Some(options)).await?;
            let created = stream.message().await?;
            Ok::<_, etcd_client::Error>((stream, created))
        });
        let (stream, created) =
            match connection.until_cut(opened).await.map_err(WatchError::Stream)? {
                Ok(Ok((stream, Some(created)))) => (stream, created),
                Ok(Ok((_, None))) => {
                    return Err(lost(registry, connection.number, EtcdError::WatchClosed).await);
                }
                Ok(Err(error)) => {
                    return Err(lost(registry, connection.number, reason(&error)).await);
                }
                Err(_) => {
                    return Err(
                        lost(registry, connection.number, EtcdError::WatchNotOpened(OPEN)).await
                    );
                }
            };
        let watch = Self {
            registry,
            stream,
            connection: Box::new(connection.clone()),
            expected,
            known,
            asked: false,
        };
        if let Some(header) = created.header() {
            registry
                .connections
                .recognise(&connection, header.cluster_id())
                .await
                .map_err(WatchError::Stream)?;
            watch.behind(header)?;
        }
        registry.counters.set_available();
        watch.refuse(&created).await?;
        if let Anchor::Listed { newest: Some(newest), .. } = anchor {
            watch.same_past(newest).await?;
        }
        Ok(watch)
    }

    /// The next changes. An empty list shows that the stream still works.
    ///
    /// # Cancel safety
    /// Data already read stays in the watch for the next call.
    pub async fn next(&mut self) -> Result<Vec<Change>, WatchError> {
        loop {
            let patience = if self.asked { SIGN } else { QUIET };
            let message = tokio::select! {
                message = tokio::time::timeout(patience, self.stream.message()) => message,
                () = self.connection.outdated.cancelled() => return Err(WatchError::Renewed),
            };
            let response = match message {
                Err(_) if self.asked => return Err(self.lost(EtcdError::WatchSilent).await),
                Err(_) => {
                    self.asked = true;
                    if let Err(error) = self.stream.request_progress().await {
                        return Err(self.lost(reason(&error)).await);
                    }
                    continue;
                }
                Ok(Err(error)) => return Err(self.lost(reason(&error)).await),
                Ok(Ok(None)) => return Err(self.lost(EtcdError::WatchClosed).await),
                Ok(Ok(Some(response))) => response,
            };
            self.asked = false;
            self.registry.counters.heard();
            self.registry.counters.set_available();
            self.refuse(&response).await?;
            if let Some(header) = response.header() {
                self.behind(header)?;
            }
            let mut changes = Vec::new();
            for event in response.events() {
                let Some(kv) = event.kv() else { continue };
                let change = match event.event_type() {
                    EventType::Put => self.registry.entry(kv).map(Change::Put),
                    EventType::Delete => {
                        let root = self.registry.key("");
                        let key = kv.key().strip_prefix(root.as_bytes());
                        key.map(|key| Change::Delete {
                            key: key_text(key),
                            revision: kv.mod_revision(),
                        })
                    }
                };
                changes.extend(change);
            }
            if let Some(expected) = self.expected.take() {
                if changes.is_empty() {
                    self.expected = Some(expected);
                } else if changes.contains(&expected) {
                    changes.retain(|change| *change != expected);
                } else {
                    let revision = expected.revision();
                    let why = format!("the event of revision {revision} has changed");
                    return Err(WatchError::History(why));
                }
            }
            changes.retain(|change| change.revision() >= self.known);
            return Ok(changes);
        }
    }

    async fn refuse(&self, response: &WatchResponse) -> Result<(), WatchError> {
        if response.compact_revision() > 0 {
            let revision = response.compact_revision();
            let why = format!("etcd compacted its history up to revision {revision}");
            return Err(WatchError::History(why));
        }
        if response.canceled() {
            let refusal = CallError::cancelled(response.cancel_reason());
            if refusal.kind == CallErrorKind::Permission || refusal.kind.of_log_in() {
                // Some versions report every refusal of a watch as a missing permission. A read finds out the cause, and renews an expired log-in.
                let _ = self.registry.revision().await;
            }
            return Err(WatchError::Stream(EtcdError::WatchCancelled(refusal)));
        }
        Ok(())
    }

    fn behind(&self, header: &ResponseHeader) -> Result<(), WatchError> {
        let (now, seen) = (header.revision(), self.known);
        if now < seen {
            return Err(WatchError::History(format!(
                "etcd is at revision {now}, but flanneld has already seen revision {seen}: etcd was restored"
            )));
        }
        Ok(())
    }

    /// Checks that the store contained the list's newest entry at the list's revision. Its current value proves no common history, because the key's
    /// owner may have written this value into a restored store.
    async fn same_past(&self, newest: &Entry) -> Result<(), WatchError> {
        self.registry.counters.call("range");
        let connection = self.registry.connected().await.map_err(WatchError::Stream)?;
        let mut kv = connection.client.kv_client().max_decoding_message_size(ANSWER_LIMIT);
        let key = self.registry.key(&newest.key);
        let then = GetOptions::new().with_revision(self.known);
        let answer =
            connection.until_cut(tokio::time::timeout(OPEN, kv.get(key, Some(then)))).await;
        let response = match answer.map_err(WatchError::Stream)? {
            Ok(Ok(response)) => response,
            // The revision is compacted, or not reached yet.
            Ok(Err(etcd_client::Error::GRpcStatus(status)))
                if status.code() == Code::OutOfRange =>
            {
                let (revision, words) = (self.known, status.message());
                let why = format!("etcd does not have revision {revision}: {words}");
                return Err(WatchError::History(why));
            }
            Ok(Err(error)) => {
                return Err(lost(self.registry, connection.number, reason(&error)).await);
            }
            Err(_) => {
                return Err(
                    lost(self.registry, connection.number, EtcdError::WatchUnanswered).await
                );
            }
        };
        match response.kvs().first().and_then(|kv| self.registry.entry(kv)) {
            Some(then) if then == *newest => Ok(()),
            _ => {
                let Entry { key, modified, .. } = newest;
                let why = format!("the key {key} of revision {modified} has changed");
                Err(WatchError::History(why))
            }
        }
    }

    async fn lost(&self, why: EtcdError) -> WatchError {
        lost(self.registry, self.connection.number, why).await
    }
}

fn reason(error: &etcd_client::Error) -> EtcdError {
    EtcdError::Watch(error.into())
}

async fn lost(registry: &EtcdRegistry, connection: u64, why: EtcdError) -> WatchError {
    registry.connections.leave(connection).await;
    WatchError::Stream(why)
}
