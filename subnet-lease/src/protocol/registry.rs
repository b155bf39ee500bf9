//! Requests of the protocol to a store, and the replies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::Addresses;

pub use crate::entry::{Entry, Listing};

/// As in Go flannel.
pub const TTL: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Lists all keys.
    List,
    /// A lease to which a key can be attached.
    Grant,
    /// Time since the last renewal by the holder of a key.
    LastSeen {
        key: String,
        /// The store's lease that the holder keeps alive; 0 if none.
        lease: i64,
    },
    Txn {
        /// All must hold.
        compare: Vec<Compare>,
        /// Executed atomically.
        write: Vec<Write>,
        /// Read if the conditions do not hold.
        key: String,
    },
    /// Renews a lease. In a directory, it updates the modification time of the key's file.
    KeepAlive {
        /// For stores without leases.
        key: String,
        /// 0 in stores without leases.
        lease: i64,
    },
    /// Checks whether the store may have granted the lease to a former instance of this node, and whether it lasts long enough for reuse.
    Inherit {
        /// 0 in stores without leases.
        lease: i64,
    },
    /// Does not revoke a lease to which a key is attached.
    Revoke {
        /// 0 in stores without leases.
        lease: i64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key has not changed since the last read.
    Unchanged {
        key: String,
        /// The key's modification revision.
        modified: i64,
    },
    /// The key has this value.
    Holds {
        key: String,
        /// Needed because after a restore of the store, another writer's write may have the same revision as this node's.
        value: String,
    },
    /// The key is attached to this lease.
    HangsOn {
        key: String,
        /// 0 in stores without leases.
        lease: i64,
    },
    /// No key has this prefix.
    NoneUnder(String),
    /// No key outside `known` publishes these addresses. Not checked by a store whose revisions increase with each write.
    NoneElseAt {
        /// Keys that the node listed before the transaction.
        known: Arc<BTreeSet<String>>,
        /// The node's own addresses.
        public: Addresses,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Creates or replaces a key.
    Put {
        key: String,
        value: String,
        /// The lease to which the key is attached; 0 if none.
        lease: i64,
    },
    Delete {
        key: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Listing(Listing),
    /// With the id of the lease.
    Granted(i64),
    /// Time since the holder's last renewal; `None` if the lease is gone or the key has none.
    LastSeen(Option<Duration>),
    Txn {
        /// The writes were executed.
        done: bool,
        /// After the transaction. If it wrote keys, this is also their modification revision.
        revision: i64,
        /// The requested key, if the writes were not executed.
        present: Option<Entry>,
    },
    /// Reply to `KeepAlive` and `Inherit`: whether the lease exists and is usable.
    Alive(bool),
    Revoked,
}

/// A message to the protocol that is not a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This node's key, written by this node or by another writer.
    Written(Entry),
    /// This node's key, with the revision of the deletion.
    Deleted(i64),
    /// The watch of this node's key resumed without a missed event.
    Reconnected,
    /// Gap in the watch, or change of the store's history, e.g. after a restore.
    Discontinuity,
    /// The daemon's new attributes.
    Publish(Box<crate::lease::LeaseAttrs>),
}

/// Escapes bytes that are not UTF-8, for messages. The key of a lease has none.
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
