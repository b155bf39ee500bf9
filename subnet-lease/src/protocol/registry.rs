//! The requests of the protocol to a store, and the answers.

use crate::reason::{Lasting, Reason};
use std::time::Duration;

pub use crate::entry::{Entry, Listing};

/// Seconds for which a lease is granted; the same as Go flannel's.
pub const TTL: Duration = Duration::from_secs(86_400);

/// One request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All keys.
    List,
    /// A lease for a key to hang on.
    Grant,
    /// How long ago the holder of that key was last seen.
    LastSeen {
        /// The key.
        key: String,
        /// The lease that its holder keeps alive; 0 for none.
        lease: i64,
    },
    /// Compare and, if everything holds, write.
    Txn {
        /// All of these must hold.
        compare: Vec<Compare>,
        /// Then these are done, all or none.
        write: Vec<Write>,
        /// Else this key is read.
        key: String,
    },
    /// Renews a lease; in a directory: touches the file.
    KeepAlive {
        /// The key, for stores without leases.
        key: String,
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
    /// Whether a lease may have been granted to a former instance of this node, and lasts long enough to be reused.
    Inherit {
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
    /// Gives a lease back, unless a key hangs on it.
    Revoke {
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key is as it was when it was read.
    Unchanged {
        /// The key.
        key: String,
        /// Its modification revision.
        modified: i64,
    },
    /// The key has this value: in a restored store another write may have the revision of ours.
    Holds {
        /// The key.
        key: String,
        /// Its value.
        value: String,
    },
    /// The key hangs on this lease.
    HangsOn {
        /// The key.
        key: String,
        /// ID of the store's lease; 0 in stores without leases.
        lease: i64,
    },
    /// No key has this prefix.
    NoneUnder(String),
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
        /// The lease that the key hangs on; 0 for none.
        lease: i64,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
    },
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `List`.
    Listing(Listing),
    /// To `Grant`: the lease.
    Granted(i64),
    /// To `LastSeen`: how long ago; none when the lease is gone or there is nothing to ask.
    LastSeen(Option<Duration>),
    /// To `Txn`.
    Txn {
        /// Whether the writes were made.
        done: bool,
        /// The store's revision: of the writes, when they were made.
        revision: i64,
        /// When they were not: the key that was asked for.
        present: Option<Entry>,
    },
    /// To `KeepAlive` and `Inherit`: whether the lease exists and can be used.
    Alive(bool),
    /// To `Revoke`.
    Revoked,
}

/// A request that got no answer: it may or may not have been carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered(pub Reason);

impl<E: Lasting> From<E> for Unanswered {
    fn from(problem: E) -> Self {
        Self(problem.into())
    }
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Unanswered {}

/// What the protocol is told unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The own key was written; by us or by somebody else.
    Written(Entry),
    /// The own key was deleted, at that revision.
    Deleted(i64),
    /// The watch of the own key stands again; nothing was missed that it could tell.
    Reconnected,
    /// Events may have been missed, or the store may have another history.
    Discontinuity,
    /// The daemon wants these attributes published.
    Publish(Box<crate::lease::LeaseAttrs>),
}

/// A key as text. Bytes that are no UTF-8 are escaped, so that such a key can be told of; a lease's key it never is.
#[cfg(any(feature = "dir", feature = "etcd"))]
pub(crate) fn key_text(key: &[u8]) -> String {
    let chunks = key.utf8_chunks();
    chunks
        .flat_map(|chunk| {
            [
                chunk.valid().to_owned(),
                chunk
                    .invalid()
                    .iter()
                    .map(|byte| format!("\\x{byte:02x}"))
                    .collect(),
            ]
        })
        .collect()
}
