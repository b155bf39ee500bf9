//! Tests the admission of leases: the subnet pool may contain the nodes' own network, and flanneld reports refused leases.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, ensure};
use lab::{Bed, Lab, succeeded, until};

use crate::healing::scenarios;

/// Returns a network configuration with four subnets, one of which is the nodes' own network, 192.168.56.0/24.
fn around(backend: &str) -> String {
    format!(
        r#"{{"Network":"192.168.0.0/16","SubnetMin":"192.168.55.0","SubnetMax":"192.168.58.0","Backend":{backend}}}"#
    )
}

scenarios! { works_around_the_underlay;
    vxlan_works_when_the_pool_contains_the_underlay => ("around-vxlan", r#"{"Type":"vxlan"}"#),
    userspace_vxlan_works_when_the_pool_contains_the_underlay => ("around-userspace", r#"{"Type":"vxlan","Mode":"userspace"}"#),
    host_gw_works_when_the_pool_contains_the_underlay => ("around-host-gw", r#"{"Type":"host-gw"}"#),
    udp_works_when_the_pool_contains_the_underlay => ("around-udp", r#"{"Type":"udp"}"#),
}

/// Checks that pods reach each other in a network that contains the nodes' addresses, and that no node refuses another node's lease.
fn works_around_the_underlay((title, backend): (&str, &str)) -> Result<()> {
    Lab::run(title, |lab| {
        let bed = Bed::start(lab, 2, &around(backend), |_, options| options)?;
        for (host, daemon) in bed.hosts.iter().zip(&bed.daemons) {
            let subnet = daemon.subnet_env()?.subnet.context("a subnet")?.trunc();
            ensure!(
                !subnet.contains(&host.v4()?),
                "{} took {subnet}, in which it is itself",
                host.name()
            );
            until("a peer is served", || {
                daemon
                    .metric("flannel_peers")
                    .is_ok_and(|peers| peers == 1.0)
            })?;
            ensure!(
                !daemon.log().contains("flanneld does not use a lease"),
                "{}",
                daemon.log_tail(20)
            );
            // The route to the other node still uses the underlay.
            let route = host.netns().sh("ip -4 route get 192.168.56.103")?;
            ensure!(route.contains("dev enp0s8"), "{route}");
        }
        bed.require_no_errors()
    })
}

/// Writes a lease manually.
fn put(bed: &Bed, key: &str, value: &str) -> Result<()> {
    std::fs::write(bed.leases.join("subnets").join(key), value)
        .with_context(|| format!("writing {key}"))
}

/// /readyz, /status and the log name each refused lease, and healthy nodes stay ready.
#[test]
fn refused_leases_are_reported_while_nodes_stay_ready() {
    Lab::run("refused", |lab| {
        let bed = Bed::start(lab, 2, &around(r#"{"Type":"host-gw"}"#), |_, options| {
            options
        })?;
        let value = |public: &str| {
            format!(r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"host-gw"}}"#)
        };
        let own = bed.daemons[0]
            .subnet_env()?
            .subnet
            .context("a subnet")?
            .trunc();
        let inside = own.hosts().nth(8).context("an address")?.to_string();
        put(&bed, "192.168.56.0-24", &value("192.168.56.109"))?;
        put(&bed, "192.168.99.0-24", &value(&inside))?;
        for daemon in &bed.daemons {
            let body = || daemon.get("/readyz").unwrap_or_default();
            until("readyz names both", || {
                ["192.168.56.0/24", "192.168.99.0/24"]
                    .iter()
                    .all(|subnet| body().1.contains(subnet))
            })?;
            let (code, text) = body();
            ensure!(
                code == 200 && text.starts_with("flanneld is ready\nrefused: "),
                "{code} {text}"
            );
            ensure!(
                text.contains("192.168.56.0/24, the network of the underlay"),
                "{text}"
            );
            ensure!(text.contains(&format!("{inside}, which is in")), "{text}");
            let status: serde_json::Value = serde_json::from_str(&daemon.get("/status")?.1)?;
            ensure!(
                status["refused"]
                    .as_array()
                    .is_some_and(|list| list.len() == 2),
                "{status}"
            );
        }
        bed.reach()?;
        for key in ["192.168.56.0-24", "192.168.99.0-24"] {
            std::fs::remove_file(bed.leases.join("subnets").join(key))?;
        }
        for daemon in &bed.daemons {
            until("nothing is refused", || {
                daemon
                    .get("/readyz")
                    .is_ok_and(|page| page == (200, "flanneld is ready".to_owned()))
            })?;
        }
        bed.require_no_errors()
    })
    .unwrap();
}

/// flanneld logs a lease of another backend once, names both backends, and lists the lease as not used. flanneld also reports a key that is not UTF-8.
#[test]
fn peer_of_another_backend_is_reported() {
    Lab::run("other-backend", |lab| {
        // The nodes take their subnets from the rest of the pool.
        let conf = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}"#;
        let bed = Bed::start(lab, 2, conf, |_, options| options)?;
        put(&bed, "10.5.3.0-24", r#"{"PublicIP":"192.168.56.103","PublicIPv6":null,"BackendType":"host-gw"}"#)?;
        put(&bed, "10.5.4.0-24", r#"{"PublicIP":"192.168.56.104","PublicIPv6":null}"#)?;
        put(&bed, "10.5.5.0-24", r#"{"PublicIPv6":"fd00:56::105","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:05"}}"#)?;
        std::fs::write(bed.leases.join("subnets").join(OsStr::from_bytes(b"10.5.9.0-24\xff")), "{}")?;
        let reports = [
            "10.5.3.0/24 of the node at 192.168.56.103 uses backend host-gw, but this network uses vxlan",
            "10.5.4.0/24 is reserved for the node at 192.168.56.104, which has not acquired the lease yet",
            "10.5.5.0/24 is published without an address of its family",
            "10.5.9.0-24\\xff",
        ];
        for daemon in &bed.daemons {
            let named = |text: &str| reports.iter().all(|line| text.contains(line));
            until("readyz names them", || daemon.get("/readyz").is_ok_and(|(code, body)| code == 200 && named(&body)))?;
            for line in reports {
                until("it is logged", || daemon.log().matches(line).count() == 1)?;
            }
            let count = |reason: &str| daemon.metric(&format!("flannel_leases_refused{{reason=\"{reason}\"}}"));
            let counts = (count("other-backend")?, count("reserved")?, count("no-address")?);
            ensure!(counts == (1.0, 1.0, 1.0), "{counts:?}: {}", daemon.get("/metrics")?.1);
            ensure!((daemon.metric("flannel_peers")?, daemon.metric("flannel_leases_unreadable")?) == (1.0, 1.0), "{}", daemon.get("/metrics")?.1);
        }
        let place = format!("--subnet-dir={}", bed.leases.display());
        let listed = succeeded("flannelctl leases", &bed.hosts[0].flannelctl(&["leases", &place])?)?;
        for line in reports {
            ensure!(listed.contains(line), "{line} is not in\n{listed}");
        }
        ensure!(listed.matches("not used: ").count() == 3, "{listed}");
        bed.reach()?;
        // A lease with the network's backend makes its node a peer, and nothing more is logged.
        put(
            &bed,
            "10.5.4.0-24",
            r#"{"PublicIP":"192.168.56.104","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:04"}}"#,
        )?;
        for daemon in &bed.daemons {
            until("it is a peer", || daemon.metric("flannel_peers").is_ok_and(|peers| peers == 2.0))?;
            ensure!(daemon.log().matches(reports[0]).count() == 1, "{}", daemon.log_tail(20));
        }
        bed.require_no_errors()
    })
    .unwrap();
}
