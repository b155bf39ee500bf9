//! Watches keys despite broken or silent streams, compaction, and restored stores.

use super::client::{ANSWER_LIMIT, EtcdRegistry, range_end};
use super::connection::Connection;
use super::errors::{FailureKind, Refusal};
use super::trouble::EtcdTrouble;
use crate::protocol::registry::{Entry, key_text};
use etcd_client::{
    EventType, GetOptions, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};
use std::fmt;
use std::time::Duration;
use tonic::Code;

/// Time without a message on a stream after which the client requests a progress notification.
const QUIET: Duration = Duration::from_secs(45);
/// Maximum time until the progress notification arrives.
const SIGN: Duration = Duration::from_secs(10);
const OPEN: Duration = Duration::from_secs(10);

/// Event of an etcd watch on the key prefix of the leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key was written.
    Put(Entry),
    /// A key was deleted.
    Delete {
        /// The key.
        key: String,
        /// Revision of the deletion.
        revision: i64,
    },
}

impl Change {
    /// Returns the revision that the event created.
    pub fn revision(&self) -> i64 {
        match self {
            Change::Put(entry) => entry.modified,
            Change::Delete { revision, .. } => *revision,
        }
    }
}

/// Reason why a watch ended. The caller reconnects, or lists all keys again.
#[derive(Debug)]
pub enum Broken {
    /// The stream broke. The caller must connect and resume the watch.
    Stream(EtcdTrouble),
    /// Replacement of the connection by the client, without an error.
    Renewed,
    /// Loss of the last event that the watch saw: the store has another history, or etcd has compacted the event. The caller must read all keys again.
    History(History),
}

/// Difference between the store's history and the history that the watch has seen so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum History {
    /// Event that differs from the event seen before at the same revision.
    Event(i64),
    /// Compaction of the history, with the revision up to which etcd compacted.
    Compacted(i64),
    /// Restore of the store from a backup.
    Restored {
        /// Revision of the restored store.
        now: i64,
        /// Newest revision seen before the restore, which is greater than `now`.
        seen: i64,
    },
    /// Revision that the store does not have, with etcd's text.
    NotThere(i64, String),
    /// Key whose value differs from the value seen before at the same revision.
    Key(String, i64),
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            History::Event(revision) => write!(f, "the event of revision {revision} has changed"),
            History::Compacted(revision) => {
                write!(f, "etcd compacted its history up to revision {revision}")
            }
            History::Restored { now, seen } => write!(
                f,
                "etcd is at revision {now}, but flanneld has already seen revision {seen}: etcd was restored"
            ),
            History::NotThere(revision, words) => {
                write!(f, "etcd does not have revision {revision}: {words}")
            }
            History::Key(key, revision) => {
                write!(f, "the key {key} of revision {revision} has changed")
            }
        }
    }
}

/// Newest known list or event of the store, from which a watch starts.
#[derive(Clone, Debug)]
pub enum Anchor {
    /// List of the keys, and the most recently written key.
    Listed {
        /// Revision of the list. The watch begins at the next revision.
        revision: i64,
        /// Entry with the greatest modification revision in the list. If the store's entry differs from the list's entry, an operator restored the
        /// store.
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
    /// Event that the watch must deliver first. If the store has another history, the watch delivers a different event first.
    expected: Option<Change>,
    /// Revision up to which the watch already knows the events.
    known: i64,
    asked: bool,
}

impl<'a> Watch<'a> {
    /// Opens a watch from `anchor` and checks that the store's history still contains the anchor.
    ///
    /// # Errors
    /// Returns [`Broken`] if the client cannot open the watch or if the store's history no longer contains the anchor.
    pub async fn open(
        registry: &'a EtcdRegistry,
        key: &str,
        exact: bool,
        anchor: &Anchor,
    ) -> Result<Self, Broken> {
        registry.counters.call("watch");
        let connection = registry.connected().await.map_err(Broken::Stream)?;
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
        let (stream, created) = match connection.until_cut(opened).await.map_err(Broken::Stream)? {
            Ok(Ok((stream, Some(created)))) => (stream, created),
            Ok(Ok((_, None))) => {
                return Err(lost(registry, connection.number, EtcdTrouble::WatchClosed).await);
            }
            Ok(Err(error)) => return Err(lost(registry, connection.number, reason(&error)).await),
            Err(_) => {
                return Err(
                    lost(registry, connection.number, EtcdTrouble::WatchNotOpened(OPEN)).await
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
                .map_err(Broken::Stream)?;
            watch.behind(header)?;
        }
        registry.counters.set_available();
        watch.refuse(&created).await?;
        if let Anchor::Listed { newest: Some(newest), .. } = anchor {
            watch.same_past(newest).await?;
        }
        Ok(watch)
    }

    /// Returns the next changes. An empty list of changes shows that the stream still works.
    ///
    /// # Errors
    /// Returns [`Broken`] if the watch ended.
    ///
    /// # Cancel safety
    /// The caller can drop the future at any time, because data already read stays in the watch for the next call.
    pub async fn next(&mut self) -> Result<Vec<Change>, Broken> {
        loop {
            let patience = if self.asked { SIGN } else { QUIET };
            let message = tokio::select! {
                message = tokio::time::timeout(patience, self.stream.message()) => message,
                () = self.connection.outdated.cancelled() => return Err(Broken::Renewed),
            };
            let response = match message {
                Err(_) if self.asked => return Err(self.lost(EtcdTrouble::WatchSilent).await),
                Err(_) => {
                    self.asked = true;
                    if let Err(error) = self.stream.request_progress().await {
                        return Err(self.lost(reason(&error)).await);
                    }
                    continue;
                }
                Ok(Err(error)) => return Err(self.lost(reason(&error)).await),
                Ok(Ok(None)) => return Err(self.lost(EtcdTrouble::WatchClosed).await),
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
                    return Err(Broken::History(History::Event(expected.revision())));
                }
            }
            changes.retain(|change| change.revision() >= self.known);
            return Ok(changes);
        }
    }

    async fn refuse(&self, response: &WatchResponse) -> Result<(), Broken> {
        if response.compact_revision() > 0 {
            return Err(Broken::History(History::Compacted(response.compact_revision())));
        }
        if response.canceled() {
            let refusal = Refusal::cancelled(response.cancel_reason());
            if refusal.kind == FailureKind::Permission || refusal.kind.of_log_in() {
                // Some versions report every refusal of a watch as a missing permission. A read finds out the cause, and renews an expired log-in.
                let _ = self.registry.revision().await;
            }
            return Err(Broken::Stream(EtcdTrouble::WatchCancelled(refusal)));
        }
        Ok(())
    }

    fn behind(&self, header: &ResponseHeader) -> Result<(), Broken> {
        if header.revision() < self.known {
            return Err(Broken::History(History::Restored {
                now: header.revision(),
                seen: self.known,
            }));
        }
        Ok(())
    }

    /// Checks that the store contained the list's newest entry at the list's revision. The current value does
    /// not prove a common history, because the key's owner may have written this value into a restored store.
    async fn same_past(&self, newest: &Entry) -> Result<(), Broken> {
        self.registry.counters.call("range");
        let connection = self.registry.connected().await.map_err(Broken::Stream)?;
        let mut kv = connection.client.kv_client().max_decoding_message_size(ANSWER_LIMIT);
        let key = self.registry.key(&newest.key);
        let then = GetOptions::new().with_revision(self.known);
        let answer =
            connection.until_cut(tokio::time::timeout(OPEN, kv.get(key, Some(then)))).await;
        let response = match answer.map_err(Broken::Stream)? {
            Ok(Ok(response)) => response,
            // The revision is compacted, or not reached yet.
            Ok(Err(etcd_client::Error::GRpcStatus(status)))
                if status.code() == Code::OutOfRange =>
            {
                return Err(Broken::History(History::NotThere(
                    self.known,
                    status.message().to_owned(),
                )));
            }
            Ok(Err(error)) => {
                return Err(lost(self.registry, connection.number, reason(&error)).await);
            }
            Err(_) => {
                return Err(
                    lost(self.registry, connection.number, EtcdTrouble::WatchUnanswered).await
                );
            }
        };
        match response.kvs().first().and_then(|kv| self.registry.entry(kv)) {
            Some(then) if then == *newest => Ok(()),
            _ => Err(Broken::History(History::Key(newest.key.clone(), newest.modified))),
        }
    }

    async fn lost(&self, why: EtcdTrouble) -> Broken {
        lost(self.registry, self.connection.number, why).await
    }
}

fn reason(error: &etcd_client::Error) -> EtcdTrouble {
    EtcdTrouble::Watch(error.into())
}

async fn lost(registry: &EtcdRegistry, connection: u64, why: EtcdTrouble) -> Broken {
    registry.connections.leave(connection).await;
    Broken::Stream(why)
}
