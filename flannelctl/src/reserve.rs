//! `flannelctl reserve`: gives a node a fixed subnet, which it keeps even while it is not running.

use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use options::StoreFlags;
use subnet_lease::protocol::view::Item;
use subnet_lease::{LeaseAttrs, NetworkConfig, wire};
use types::{Subnets, printable};

use crate::leases::{Keys, holder};
use crate::release::find;
use crate::store;
use terminal::out;

/// Options of `flannelctl reserve`: the subnet, and the node that receives the subnet.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Lease to keep permanently (key, subnet or node); with --address, a free subnet (10.5.34.0/24) or key.
    #[arg(value_name = "KEY|SUBNET|NODE")]
    lease: String,
    /// Public address of the node that gets the subnet. Repeatable, once for each address family.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    #[command(flatten)]
    store: StoreFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    store::run(async {
        let store = store::open(&args.store)?;
        ensure!(
            !store.is_of_nodes(),
            "on Kubernetes, a node's subnet is its Node's podCIDR: flannelctl cannot reserve a subnet"
        );
        store.reach().await?;
        let keys = Keys::of(store.list().await?);
        let plan = if args.address.is_empty() {
            keep(&keys, &args.lease)?
        } else {
            new(&keys, &store.config().await?, args)?
        };
        let Some((subnets, value, present)) = plan else {
            out::print(format!("{} is already a reservation", printable::value(&args.lease)));
            return Ok(());
        };
        if !store.reserve(&subnets, value, present.map(|item| &item.entry)).await? {
            bail!(
                "another program has just changed the keys of {subnets}, so flannelctl wrote nothing; check again with `flannelctl leases`"
            );
        }
        out::print(format!(
            "{subnets} is reserved; to undo the reservation, run flannelctl release {} --force",
            wire::render_key(&subnets)
        ));
        Ok(())
    })
}

/// The subnets, the value, and the lease that they replace. `None` if nothing has to be written.
type Plan<'a> = Option<(Subnets, String, Option<&'a Item>)>;

/// Plans the change of a lease to a reservation. `None` if it already is one.
fn keep<'a>(keys: &'a Keys, wanted: &str) -> Result<Plan<'a>> {
    let missing = || {
        format!(
            "cannot find the lease {wanted}; list the leases with `flannelctl leases`, or name the node's address with --address to reserve a free subnet"
        )
    };
    let entry = find(keys, wanted).with_context(missing)?;
    let item = keys
        .items
        .iter()
        .find(|item| item.entry.key == entry.key)
        .with_context(|| format!("{} names no subnet", entry.key))?;
    ensure!(
        item.attrs.is_some(),
        "cannot read {}; correct or release the lease first",
        item.entry.key
    );
    if item.reserved() {
        return Ok(None);
    }
    let value = String::from_utf8(item.entry.value.to_vec())
        .with_context(|| format!("cannot read {}", item.entry.key))?;
    Ok(Some((item.subnets, value, Some(item))))
}

/// Plans the reservation of a free subnet.
fn new<'a>(keys: &'a Keys, config: &NetworkConfig, args: &Args) -> Result<Plan<'a>> {
    let subnets = subnets(&args.lease)
        .with_context(|| format!("{:?} is not a subnet: write it as 10.5.34.0/24, or a pair as its key 10.5.34.0-24&fd10:5:0:22::-64", args.lease))?;
    ensure!(
        config.fits(&subnets),
        "{subnets} is not a subnet that a node of {} can have: it must be between SubnetMin and SubnetMax, with the network's SubnetLen and families",
        config.networks
    );
    let mut attrs = LeaseAttrs::default();
    for address in &args.address {
        let taken = match address {
            IpAddr::V4(address) => attrs.public_ip.replace(*address).is_some(),
            IpAddr::V6(address) => attrs.public_ipv6.replace(*address).is_some(),
        };
        ensure!(
            !taken,
            "--address names two addresses of one family; give at most one for each family"
        );
    }
    if let Some(item) = keys.items.iter().find(|item| item.subnets.overlaps(&subnets)) {
        bail!(
            "{subnets} overlaps {}, {}; release the other lease first, or choose another subnet",
            item.subnets,
            holder_clause(item)
        );
    }
    if let Some(item) = keys
        .items
        .iter()
        .find(|item| item.addresses().any(|address| args.address.contains(&address)))
    {
        bail!(
            "the node with this address has {} already, {}; keep that lease with `flannelctl reserve {}`",
            item.subnets,
            holder_clause(item),
            wire::render_key(&item.subnets)
        );
    }
    Ok(Some((subnets, wire::render_value(&attrs), None)))
}

fn holder_clause(item: &Item) -> String {
    let address = item.attrs.as_ref().map(LeaseAttrs::public_text).unwrap_or_default();
    match holder(item) {
        name if name.is_empty() => format!("which the node at {} has", printable::value(&address)),
        name => format!("which {} has", printable::value(&name)),
    }
}

/// A lease's key, or a single subnet without host bits.
fn subnets(text: &str) -> Option<Subnets> {
    let text = text.rsplit_once("subnets/").map_or(text, |(_, key)| key);
    wire::parse_key(text).or_else(|| match text.parse().ok()? {
        net if net != net.trunc() => None,
        IpNet::V4(net) => Some(Subnets::V4(net)),
        IpNet::V6(net) => Some(Subnets::V6(net)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Parser};
    use subnet_lease::protocol::registry::{Entry, Listing};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        let words = ["reserve"].iter().chain(words);
        let matches = <Cli as clap::CommandFactory>::command().try_get_matches_from(words).unwrap();
        Cli::from_arg_matches(&matches).unwrap().args
    }

    fn keys() -> Keys {
        let entry = |key: &str, value: &str, lease: i64| Entry {
            key: key.to_owned(),
            value: value.as_bytes().into(),
            created: 1,
            modified: 7,
            lease,
        };
        Keys::of(Listing {
            revision: 9,
            entries: vec![
                entry(
                    "10.5.10.0-24",
                    r#"{"PublicIP":"192.168.56.101","NodeID":{"id":"abc","name":"n1","instance":"x","rank":1}}"#,
                    77,
                ),
                entry("10.5.11.0-24", r#"{"PublicIP":"192.168.56.102"}"#, 0),
                entry("10.5.12.0-24", "{", 5),
            ],
        })
    }

    fn config() -> NetworkConfig {
        NetworkConfig::parse(r#"{"Network":"10.5.0.0/16"}"#).unwrap()
    }

    #[test]
    fn kept_lease_has_its_value_unchanged() {
        let keys = keys();
        for name in ["n1", "10.5.10.0/24", "10.5.10.0-24"] {
            let (subnets, value, present) = keep(&keys, name).unwrap().unwrap();
            assert_eq!(
                (subnets.to_string().as_str(), present.unwrap().entry.modified),
                ("10.5.10.0/24", 7),
                "{name}"
            );
            assert_eq!(value.as_bytes(), &*keys.items[0].entry.value);
        }
        assert!(keep(&keys, "10.5.11.0/24").unwrap().is_none(), "it is one already");
        for (wrong, why) in
            [("n9", "cannot find the lease n9"), ("10.5.12.0-24", "cannot read 10.5.12.0-24")]
        {
            let error = keep(&keys, wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn free_subnet_is_reserved_for_an_address() {
        let keys = keys();
        let plan = new(&keys, &config(), &args(&["10.5.34.0/24", "--address", "192.168.56.107"]))
            .unwrap()
            .unwrap();
        assert_eq!((plan.0.to_string().as_str(), plan.2.is_none()), ("10.5.34.0/24", true));
        assert_eq!(
            wire::parse_value(plan.1.as_bytes()).unwrap().public_ip,
            "192.168.56.107".parse().ok()
        );
        for (words, why) in [
            (&["10.5.10.0/24", "--address=1.2.3.4"][..], "overlaps 10.5.10.0/24, which n1 has"),
            (
                &["10.5.34.0/24", "--address=192.168.56.101"],
                "has 10.5.10.0/24 already, which n1 has",
            ),
            (&["10.5.34.0/24", "--address=192.168.56.102"], "which the node at 192.168.56.102 has"),
            (
                &["10.6.34.0/24", "--address=1.2.3.4"],
                "is not a subnet that a node of 10.5.0.0/16 can have",
            ),
            (
                &["10.5.34.0/25", "--address=1.2.3.4"],
                "is not a subnet that a node of 10.5.0.0/16 can have",
            ),
            (&["10.5.34.1/24", "--address=1.2.3.4"], "is not a subnet: write it as"),
            (&["fd10::/64", "--address=1.2.3.4"], "is not a subnet that"),
            (&["n1", "--address=1.2.3.4"], "is not a subnet: write it as"),
            (
                &["10.5.34.0/24", "--address=1.2.3.4", "--address=1.2.3.5"],
                "two addresses of one family",
            ),
        ] {
            let error = new(&keys, &config(), &args(words)).unwrap_err().to_string();
            assert!(error.contains(why), "{words:?}: {error}");
        }
    }
}
