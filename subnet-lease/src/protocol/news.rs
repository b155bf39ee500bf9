//! Log lines about changes of a held lease, and about this node's reactions to the changes.

use super::error::{holder_name, public_address};
use super::view::Item;
use crate::lease::LeaseAttrs;
use crate::manager::Claim;
use thiserror::Error;
use types::Coded;

/// A change of a lease's key. The addresses are public addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum News {
    /// An operator wrote the key again without an etcd lease.
    #[error(
        "the lease subnets/{0} has no etcd lease. From now on, the lease is a reservation of this node: the lease does not expire, and flanneld never deletes the lease. To undo the reservation, stop flanneld on this node, run `flannelctl release --force '{0}'` and start flanneld again"
    )]
    #[code("lease-reserved")]
    Reserved(String),
    #[error(
        "the lease subnets/{0} was deleted from the store: flanneld restored it with the same subnet"
    )]
    #[code("lease-put-back")]
    PutBack(String),
    /// The key expired while this machine was off.
    #[error("the lease subnets/{0} had expired: flanneld restored it with the same subnet")]
    #[code("lease-put-back-after-expiry")]
    PutBackAfterExpiry(String),
    #[error(
        "the lease subnets/{0} was overwritten with an unreadable value: flanneld restored the lease"
    )]
    #[code("lease-unreadable-undone")]
    Unreadable(String),
    #[error(
        "the lease subnets/{key} was edited to publish the address {address}, which is not this node's address: flanneld restored the lease. To publish another address, start flanneld with --public-ip"
    )]
    #[code("lease-address-edit-undone")]
    AddressEdited { key: String, address: String },
    #[error(
        "the lease subnets/{0} was edited: flanneld restored the lease; do not edit the lease while flanneld runs"
    )]
    #[code("lease-edit-undone")]
    Edited(String),
    /// The other instance wrote although this instance has precedence.
    #[error(
        "the lease subnets/{key} was overwritten by another flanneld with this node's identity or address, {holder} at {address}: flanneld restored the lease. Stop one of the two daemons, or give each daemon its own --node-id and address."
    )]
    #[code("lease-overwrite-undone")]
    Contested { key: String, holder: String, address: String },
    #[error("the lease subnets/{key} publishes {now} instead of {before}")]
    #[code("lease-readdressed")]
    Readdressed { key: String, now: String, before: String },
}

impl News {
    #[must_use]
    pub fn put_back(key: &str, expired: bool) -> Self {
        if expired {
            Self::PutBackAfterExpiry(key.to_owned())
        } else {
            Self::PutBack(key.to_owned())
        }
    }

    /// For an edit that this node undid.
    #[must_use]
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

    #[must_use]
    pub fn contested(key: &str, item: &Item) -> Self {
        let (holder, address) = (holder_name(item), public_address(item));
        Self::Contested { key: key.to_owned(), holder, address }
    }

    #[must_use]
    pub fn readdressed(key: &str, before: &LeaseAttrs, now: &LeaseAttrs) -> Self {
        Self::Readdressed {
            key: key.to_owned(),
            now: now.public_text(),
            before: before.public_text(),
        }
    }
}
