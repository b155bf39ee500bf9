//! Log lines about changes of a held lease, and about this node's reactions to the changes.

use super::problem::Holder;
use super::view::Item;
use crate::lease::LeaseAttrs;
use crate::manager::Claim;
use std::fmt;
use types::Coded;

/// A change of a lease's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Operator's rewrite of the key without an etcd lease; the key is then a reservation.
    Reserved(String),
    /// Deletion of the key, which this node restored.
    PutBack(String),
    /// Expiry of the key while this machine was off, after which this node restored the key.
    PutBackAfterExpiry(String),
    /// Unreadable value that another writer wrote to the key.
    Unreadable(String),
    /// Change of the published address by another writer.
    AddressEdited {
        /// Key of the lease.
        key: String,
        /// Address that the edit set.
        address: String,
    },
    /// Edit by another writer that leaves this node's address in the key.
    Edited(String),
    /// Overwrite of the key by another instance, although this instance has precedence.
    Contested {
        /// Key of the lease.
        key: String,
        /// The other instance.
        holder: Holder,
        /// Public address of the other instance.
        address: String,
    },
    /// Publication of a new address by the node.
    Readdressed {
        /// Key of the lease.
        key: String,
        /// Address that the node now publishes.
        now: String,
        /// Address that the node published before.
        before: String,
    },
}

impl News {
    /// Creates the log line for a key that this node restored.
    pub fn put_back(key: &str, expired: bool) -> Self {
        if expired {
            Self::PutBackAfterExpiry(key.to_owned())
        } else {
            Self::PutBack(key.to_owned())
        }
    }

    /// Creates the log line for an edit that this node undid.
    pub fn undone(key: &str, item: &Item, claim: &Claim, published: &LeaseAttrs) -> Self {
        let key = key.to_owned();
        match &item.attrs {
            None => Self::Unreadable(key),
            Some(attrs) if !item.publishes(&claim.public) && !published.same_public(attrs) => {
                Self::AddressEdited { key, address: attrs.public_text() }
            }
            Some(_) => Self::Edited(key),
        }
    }

    /// Creates the log line for a key that another instance overwrote.
    pub fn contested(key: &str, item: &Item) -> Self {
        let address = item.attrs.as_ref().map(LeaseAttrs::public_text).unwrap_or_default();
        Self::Contested { key: key.to_owned(), holder: Holder::of(item), address }
    }

    /// Creates the log line for a new published address.
    pub fn readdressed(key: &str, before: &LeaseAttrs, now: &LeaseAttrs) -> Self {
        Self::Readdressed {
            key: key.to_owned(),
            now: now.public_text(),
            before: before.public_text(),
        }
    }
}

impl Coded for News {
    fn code(&self) -> &'static str {
        match self {
            Self::Reserved(_) => "lease-reserved",
            Self::PutBack(_) => "lease-put-back",
            Self::PutBackAfterExpiry(_) => "lease-put-back-after-expiry",
            Self::Unreadable(_) => "lease-unreadable-undone",
            Self::AddressEdited { .. } => "lease-address-edit-undone",
            Self::Edited(_) => "lease-edit-undone",
            Self::Contested { .. } => "lease-overwrite-undone",
            Self::Readdressed { .. } => "lease-readdressed",
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved(key) => write!(
                f,
                "the lease subnets/{key} has no etcd lease. From now on, the lease is a reservation of this node: the lease does not expire, and flanneld never deletes the lease. To undo the reservation, stop flanneld on this node, run `flannelctl release --force '{key}'` and start flanneld again"
            ),
            Self::PutBack(key) => write!(
                f,
                "the lease subnets/{key} was deleted from the store: flanneld restored it with the same subnet"
            ),
            Self::PutBackAfterExpiry(key) => write!(
                f,
                "the lease subnets/{key} had expired: flanneld restored it with the same subnet"
            ),
            Self::Unreadable(key) => {
                write!(
                    f,
                    "the lease subnets/{key} was overwritten with an unreadable value: flanneld restored the lease"
                )
            }
            Self::AddressEdited { key, address } => write!(
                f,
                "the lease subnets/{key} was edited to publish the address {address}, which is not this node's address: flanneld restored the lease. To publish another address, start flanneld with --public-ip"
            ),
            Self::Edited(key) => {
                write!(
                    f,
                    "the lease subnets/{key} was edited: flanneld restored the lease; do not edit the lease while flanneld runs"
                )
            }
            Self::Contested { key, holder, address } => write!(
                f,
                "the lease subnets/{key} was overwritten by another flanneld with this node's identity or address, {holder} at {address}: flanneld restored the lease. Stop one of the two daemons, or give each daemon its own --node-id and address."
            ),
            Self::Readdressed { key, now, before } => {
                write!(f, "the lease subnets/{key} publishes {now} instead of {before}")
            }
        }
    }
}
