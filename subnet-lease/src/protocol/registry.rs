//! Requests of the protocol to a store, and the replies.

use crate::reason::{Lasting, Reason};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use types::Addresses;

pub use crate::entry::{Entry, Listing};

/// Time to live of a lease, as in Go flannel.
pub const TTL: Duration = Duration::from_secs(86_400);

/// One request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Lists all keys.
    List,
    /// Grants a lease to which a key can be attached.
    Grant,
    /// Reads the time since the last renewal by the holder of a key.
    LastSeen {
        /// The key.
        key: String,
        /// The store's lease that the holder keeps alive; 0 if the holder keeps no lease alive.
        lease: i64,
    },
    /// Checks the conditions and, if all conditions hold, executes the writes.
    Txn {
        /// Conditions, all of which must hold.
        compare: Vec<Compare>,
        /// Writes that the store executes atomically if the conditions hold.
        write: Vec<Write>,
        /// Key that the store reads if the conditions do not hold.
        key: String,
    },
    /// Renews a lease. In a directory, this request updates the modification time of the key's file.
    KeepAlive {
        /// The key, for stores without leases.
        key: String,
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
    /// Checks whether the store may have granted a lease to a former instance of this node, and whether the lease lasts long enough for reuse.
    Inherit {
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
    /// Revokes a lease, unless a key is attached to the lease.
    Revoke {
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Absence of changes to the key since the last read.
    Unchanged {
        /// The key.
        key: String,
        /// The key's modification revision.
        modified: i64,
    },
    /// Presence of the given value in the key. After a restore of the store, another writer's write may have the same revision as this node's write.
    Holds {
        /// The key.
        key: String,
        /// The key's value.
        value: String,
    },
    /// Attachment of the key to the given lease.
    HangsOn {
        /// The key.
        key: String,
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
    /// Absence of keys with the given prefix.
    NoneUnder(String),
    /// Absence of keys outside `known` that publish the given addresses. A store whose revisions increase with each
    /// write does not check this condition.
    NoneElseAt {
        /// Keys that the node listed before the transaction.
        known: Arc<BTreeSet<String>>,
        /// The node's own addresses.
        public: Addresses,
    },
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Creates or replaces a key.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The lease to which the key is attached; 0 if the key is not attached to a lease.
        lease: i64,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
    },
}

/// Reply of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Reply to `List`.
    Listing(Listing),
    /// Reply to `Grant`: the id of the lease.
    Granted(i64),
    /// Reply to `LastSeen`: time since the holder's last renewal; `None` if the lease is gone or the key has no lease.
    LastSeen(Option<Duration>),
    /// Reply to `Txn`.
    Txn {
        /// Whether the store executed the writes.
        done: bool,
        /// The store's revision after the transaction. If the transaction wrote keys, the revision is also the modification revision of the keys.
        revision: i64,
        /// The requested key, if the store did not execute the writes.
        present: Option<Entry>,
    },
    /// Reply to `KeepAlive` and `Inherit`: whether the lease exists and is usable.
    Alive(bool),
    /// Reply to `Revoke`.
    Revoked,
}

/// A request without a reply. The store may have executed the request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct NoReplyError(pub Reason);

impl<E: Lasting> From<E> for NoReplyError {
    fn from(problem: E) -> Self {
        Self(problem.into())
    }
}

/// A message to the protocol that is not a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Write to this node's key by this node or by another writer.
    Written(Entry),
    /// Deletion of this node's key, with the revision of the deletion.
    Deleted(i64),
    /// Resumption of the watch of this node's key, without a missed event.
    Reconnected,
    /// Gap in the watch, or change of the store's history, e.g. after a restore.
    Discontinuity,
    /// Request of the daemon to publish new attributes.
    Publish(Box<crate::lease::LeaseAttrs>),
}

/// Returns a key as text. The function escapes bytes that are not UTF-8, so that messages can contain such a
/// key. The key of a lease contains only UTF-8.
#[cfg(any(feature = "dir", feature = "etcd"))]
pub(crate) fn key_text(key: &[u8]) -> String {
    let chunks = key.utf8_chunks();
    chunks
        .flat_map(|chunk| {
            [
                chunk.valid().to_owned(),
                chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect(),
            ]
        })
        .collect()
}
