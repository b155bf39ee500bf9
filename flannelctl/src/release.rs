//! `flannelctl release`: frees the lease of a node that is gone, after a confirmation.

use std::io::{BufRead, IsTerminal};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use options::StoreFlags;
use subnet_lease::protocol::decide::SILENCE;
use subnet_lease::protocol::registry::Entry;
use subnet_lease::protocol::view::Item;
use types::printable;

use crate::leases::{Keys, holder};
use crate::store;
use node_api::facts::span;
use subnet_lease::manager::Liveness;
use terminal::out;

/// Options of `flannelctl release`: the lease, and the safeguards.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key (10.5.34.0-24), the subnet (10.5.34.0/24) or the node of the lease.
    #[arg(value_name = "KEY|SUBNET|NODE")]
    lease: String,
    /// Does not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// Releases the lease even if its holder may be alive.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    store: StoreFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    store::run(async {
        let store = store::open(&args.store)?;
        store.reach().await?;
        let keys = Keys::of(store.list().await?);
        let entry = find(&keys, &args.lease).with_context(|| {
            format!(
                "cannot find the lease {} in {}; list the leases with `flannelctl leases`",
                args.lease,
                store.place()
            )
        })?;
        let item = Item::of(entry.clone());
        let sign = match &item {
            Some(item) => store.sign(item).await?,
            None => Liveness::default(),
        };
        out::print(description(&entry, item.as_ref(), &sign));
        if let Some(why) = item.as_ref().and_then(|item| alive(item, &sign))
            && !args.force
        {
            bail!("{why}; to delete the lease anyway, use --force");
        }
        let same = |other: &&Item| {
            item.as_ref()
                .is_some_and(|item| other.subnets == item.subnets && holder(item) != args.lease)
        };
        if keys.items.iter().filter(same).count() > 1 {
            bail!("{} is the subnet of several Nodes: name the Node instead", args.lease);
        }
        if store.is_of_nodes() && !args.force {
            bail!(
                "a Node's lease ends with the Node; delete the Node with `kubectl delete node`; --force removes flannel's mark from the Node"
            );
        }
        if !args.yes && !agreed()? {
            bail!("nothing was deleted");
        }
        if !store.release(&entry).await? {
            bail!(
                "another program has just changed {}, so flannelctl deleted nothing; check again with `flannelctl leases`",
                entry.key
            );
        }
        let lives =
            item.as_ref().is_some_and(|item| item.node().is_some() && alive(item, &sign).is_some());
        let after = if store.is_of_nodes() {
            "peers drop their routes to the subnet within a minute, unless flanneld runs on the holder and restores the lease"
        } else if lives {
            "if flanneld runs on the holder, it restores the lease"
        } else {
            "peers drop their routes to the subnet within seconds"
        };
        out::print(format!("released; {after}"));
        Ok(())
    })
}

/// Finds an entry by its key, by one of its subnets, or by its node's name. The escaped form of a key that
/// `flannelctl leases` prints works too, if only one key matches.
pub(crate) fn find(keys: &Keys, wanted: &str) -> Option<Entry> {
    let wanted = wanted.rsplit_once("subnets/").map_or(wanted, |(_, key)| key);
    let net: Option<IpNet> = wanted.parse().ok();
    let entries = keys.items.iter().map(|item| &item.entry).chain(&keys.malformed);
    let by_text = entries.clone().find(|entry| entry.key == wanted);
    let by_node = || {
        keys.items
            .iter()
            .find(|item| item.node().is_some_and(|node| *node.name == *wanted))
            .map(|item| &item.entry)
    };
    let by_net = || {
        keys.items
            .iter()
            .find(|item| net.is_some_and(|net| item.subnets.nets().any(|own| own == net.trunc())))
            .map(|item| &item.entry)
    };
    let by_shown_key = || {
        let mut alike = entries.clone().filter(|entry| printable::value(&entry.key) == wanted);
        alike.next().filter(|_| alike.next().is_none())
    };
    by_text.or_else(by_net).or_else(by_shown_key).or_else(by_node).cloned()
}

/// The lease that the command would delete.
fn description(entry: &Entry, item: Option<&Item>, sign: &Liveness) -> String {
    let Some(item) = item else {
        return format!("{}: the key names no subnet", printable::value(&entry.key));
    };
    let kind = if item.keepalive() == 0 && item.node().is_none() && item.reserved() {
        "reserved"
    } else {
        "held"
    };
    let node = match (item.node(), item.attrs.is_some()) {
        (Some(node), _) => format!(
            "by node {} (id {})",
            printable::value(&holder(item)),
            printable::value(&node.id)
        ),
        (None, true) => "by a node of Go flannel, or written manually".to_owned(),
        (None, false) => "by an unreadable value".to_owned(),
    };
    let address =
        item.attrs.as_ref().map(|attrs| format!(" at {}", attrs.public_text())).unwrap_or_default();
    let heard =
        sign.heard.map(|heard| format!(", last seen {} ago", span(heard))).unwrap_or_default();
    let left = sign.left.map(|left| format!(", expires in {}", span(left))).unwrap_or_default();
    format!("{}: {kind} {node}{address}{heard}{left}", item.subnets)
}

/// Why the holder may be alive; `None` if it is probably gone.
fn alive(item: &Item, sign: &Liveness) -> Option<String> {
    let remedy = "stop flanneld on the holder first: a running daemon restores its lease at once";
    match (item.node(), sign.heard) {
        (Some(_), Some(heard)) if heard < SILENCE => Some(format!("the holder of the lease was last seen less than 3 minutes ago; {remedy}")),
        (Some(_), _) => None,
        (None, _) if item.reserved() => Some("the lease is a reservation, which stays in force without a live node".to_owned()),
        (None, Some(_)) => {
            Some("the holder of the lease may be alive: Go flannel and manually written leases do not report every minute; check that the node is gone".to_owned())
        }
        (None, None) => None,
    }
}

/// Asks on the terminal whether to delete the lease.
fn agreed() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("cannot ask for confirmation without a terminal; use --yes to delete the lease");
    }
    out::begin("Delete it? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use subnet_lease::protocol::registry::Listing;

    const OURS: &str = r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"NodeID":{"id":"abc","name":"n1","instance":"x","rank":1}}"#;
    const GO: &str = r#"{"PublicIP":"192.168.56.102","PublicIPv6":null,"BackendType":"vxlan"}"#;

    fn entry(key: &str, value: &str, lease: i64) -> Entry {
        Entry {
            key: key.to_owned(),
            value: value.as_bytes().into(),
            created: 1,
            modified: 1,
            lease,
        }
    }

    fn heard(seconds: u64) -> Liveness {
        Liveness { heard: Some(Duration::from_secs(seconds)), left: None }
    }

    fn item(value: &str, lease: i64) -> Item {
        Item::of(entry("10.5.1.0-24", value, lease)).unwrap()
    }

    #[test]
    fn lease_is_found_by_key_and_by_subnet() {
        let entries = vec![
            entry("10.5.1.0-24&fd00:5:1::-64", OURS, 1),
            entry("10.5.2.0-24", "{", 1),
            entry("10.5.3.0-24.bak", "", 0),
        ];
        let keys = Keys::of(Listing { revision: 1, entries });
        for wanted in [
            "10.5.1.0-24&fd00:5:1::-64",
            "10.5.1.0/24",
            "10.5.1.1/24",
            "fd00:5:1::/64",
            "/coreos.com/network/subnets/10.5.1.0-24&fd00:5:1::-64",
        ] {
            assert_eq!(find(&keys, wanted).unwrap().key, "10.5.1.0-24&fd00:5:1::-64", "{wanted}");
        }
        assert_eq!(find(&keys, "10.5.3.0-24.bak").unwrap().key, "10.5.3.0-24.bak");
        for wanted in ["10.5.1.0/25", "10.5.9.0/24", "nonsense"] {
            assert!(find(&keys, wanted).is_none(), "{wanted}");
        }
    }

    #[test]
    fn only_silent_holders_lose_leases_without_force() {
        assert!(alive(&item(OURS, 7), &heard(12)).is_some());
        assert!(alive(&item(OURS, 7), &heard(181)).is_none());
        assert!(alive(&item(OURS, 7), &Liveness::default()).is_none());
        assert!(alive(&item(GO, 7), &heard(40_000)).is_some());
        assert!(alive(&item(GO, 7), &Liveness::default()).is_none());
        assert!(alive(&item(GO, 0), &Liveness::default()).unwrap().contains("reservation"));
        assert!(alive(&item("{", 7), &heard(12)).is_some());
    }

    #[test]
    fn description_names_the_lease_and_its_holder() {
        let text = description(&entry("10.5.1.0-24", OURS, 7), Some(&item(OURS, 7)), &heard(12));
        assert_eq!(
            text,
            "10.5.1.0/24: held by node n1 (id abc) at 192.168.56.101, last seen 12 s ago"
        );
        let text =
            description(&entry("10.5.1.0-24", GO, 0), Some(&item(GO, 0)), &Liveness::default());
        assert_eq!(
            text,
            "10.5.1.0/24: reserved by a node of Go flannel, or written manually at 192.168.56.102"
        );
    }
}
