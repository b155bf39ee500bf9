//! Prints the store's contents, a host's kernel state, and commands to try next.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use lab::Pod;
use types::Family;

use crate::build::Network;
use crate::plan::Plan;
use terminal::lab::Backend;
use terminal::screen::{Screen, Style};

/// Prints the leases as the store contains them.
pub(crate) fn print_stored_leases(network: &Network, screen: Screen) -> Result<()> {
    if let Some(etcd) = &network.etcd {
        let key = network.store.key("");
        screen.heading(format!("etcdctl get --prefix {key}"));
        screen.block(&etcd.client_on_first_member()?.etcdctl(&["get", "--prefix", &key])?);
        return Ok(());
    }
    let folder = network.lab.ensure_folder("leases")?;
    screen.heading(format!("The files in {}", folder.display()));
    for (name, value) in network.store.lease_names_and_values()? {
        screen.block(&format!("{}  {}", screen.styled(Style::Good, name), value.trim()));
    }
    Ok(())
}

/// The first host's routes to the others, with vxlan also its FDB and neighbours.
pub(crate) fn print_first_host_kernel_state(
    network: &Network,
    plan: &Plan,
    screen: Screen,
) -> Result<()> {
    let host = network.hosts.first().context("no hosts")?;
    let show = |program: &str, args: &[&str]| -> Result<()> {
        screen.heading(format!("{}: {program} {}", host.name(), args.join(" ")));
        screen.block(&host.netns().exec(program, args)?);
        Ok(())
    };
    show("ip", &["-4", "route"])?;
    if plan.families.contains(&Family::V6) {
        show("ip", &["-6", "route", "show", "root", "fd00:5::/56"])?;
    }
    if plan.backend == Backend::Vxlan && host.netns().link("flannel.1")?.is_some() {
        show("bridge", &["fdb", "show", "dev", "flannel.1"])?;
        show("ip", &["neighbour", "show", "dev", "flannel.1"])?;
    }
    Ok(())
}

/// Commands to try next. `page` is the address of the first host's status page if the lab stays.
pub(crate) fn print_suggested_commands(
    network: &Network,
    pods: &[Pod],
    page: Option<SocketAddr>,
    screen: Screen,
) -> Result<()> {
    screen.heading("What to try");
    let Some(page) = page else {
        print_lab_variants(screen);
        return Ok(());
    };
    let host = network.hosts.first().context("no hosts")?;
    let (pod, other) = (pods.first().context("no pods")?, pods.last().context("no pods")?);
    let (inside, log) = (
        format!("ip netns exec {}", host.netns().name()),
        network.daemons.first().map(|daemon| daemon.log_path().display().to_string()),
    );
    let mut commands = vec![
        (format!("{inside} bash"), "a shell on the first host"),
        (
            format!("ip netns exec {} ping {}", pod.netns().name(), other.address()?),
            "from pod to pod",
        ),
        (format!("{inside} tcpdump -ni enp0s8"), "packets on the wire"),
        (format!("http://{page}/"), "the status page of the first host"),
        (format!("tail -f {}", log.unwrap_or_default()), "the log of the first host's daemon"),
    ];
    if let Some(etcd) = &network.etcd {
        let endpoints = etcd.client_on_first_member()?.daemon_endpoints().join(",");
        commands.push((
            format!(
                "{inside} etcdctl --endpoints={endpoints} watch --prefix {}",
                network.store.key("")
            ),
            "leases as they change",
        ));
    }
    commands.push(("flannelctl lab --remove".to_owned(), "remove the lab"));
    screen.commands(&commands);
    Ok(())
}

fn print_lab_variants(screen: Screen) {
    screen.commands(&[
        ("flannelctl lab --keep".to_owned(), "leave the lab running for inspection"),
        ("flannelctl lab --backend host-gw".to_owned(), "routes instead of a tunnel"),
        ("flannelctl lab --backend wireguard".to_owned(), "encrypted between hosts"),
        ("flannelctl lab --store etcd --ipv6".to_owned(), "real etcd, both families"),
        (
            "flannelctl lab --status --hosts 6".to_owned(),
            "the status page of six hosts, one of which is broken",
        ),
        ("flannelctl lab --vagrant".to_owned(), "hosts that all have the address 10.0.2.15"),
    ]);
}
