//! The status page of a host, reachable from outside the host's network namespace. If `--status` is set, a firewall drops
//! the tunnel's packets to one host, and the lab stays until the user presses a key.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Flanneld, Netns, until_ok};
use terminal::screen::{Screen, Style};

use crate::build::Network;
use crate::key;

/// On the host, and on this machine if it is free there.
const PORT: u16 = 8474;
/// How often the process in the background checks whether the lab still exists.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Makes the last host drop the tunnel's packets, and prints the address of the first host's status page.
pub(crate) fn demonstrate_page_with_broken_host(network: &Network, screen: Screen) -> Result<()> {
    let first = network.hosts.first().context("no hosts")?;
    let last = network.hosts.last().context("no hosts")?;
    let daemon = network.daemons.first().context("no daemons")?;
    ensure!(
        network.hosts.len() > 2,
        "the page shows a fault only with three hosts or more: add --hosts 6"
    );
    screen.step("a firewall that drops the tunnel's packets to one host", || {
        // The daemon does not manage this table, so the fault stays.
        last.netns().sh(
            "nft 'table ip broken { chain in { type filter hook input priority -200; udp dport { 8472, 8285, 51820 } drop; }; }'",
        )?;
        Ok(((), last.name().to_owned()))
    })?;
    screen.step("the first host notices", || {
        let state = until_ok("a verdict on the last host", || {
            let document = node_status_document(daemon)?;
            let peers = document.pointer("/mesh/peers").and_then(|peers| peers.as_array());
            let state = peers
                .into_iter()
                .flatten()
                .filter_map(|peer| peer.get("state")?.as_str())
                .find(|state| !matches!(*state, "well" | "unknown" | "slow"));
            Ok(state.context("all peers are well")?.to_owned())
        })?;
        Ok(((), format!("{} is {state}", last.name())))
    })?;
    let listener = bind_page_listener()?;
    let address = listener.local_addr()?;
    let netns = first.netns().clone();
    std::thread::spawn(move || forward_page_connections(&listener, &netns));
    screen.heading(format!("The status page of {}", first.name()));
    screen.print(format!("  {}", screen.styled(Style::Good, format!("http://{address}/"))));
    screen.print(format!(
        "  from another machine: run ssh -L {}:{address} with the name of this machine as the last argument",
        address.port()
    ));
    screen.print(format!(
        "\n  {}",
        screen.styled(Style::Strong, "The lab stays up until you press a key.")
    ));
    if std::io::stdin().is_terminal() {
        key::wait_for_key(std::io::stdin())?;
    } else {
        // Without a terminal, the lab stays up until the input ends.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    screen.print("  removing the lab");
    Ok(())
}

/// The member `node` of what `flannelctl status -o json` prints.
fn node_status_document(daemon: &Flanneld) -> Result<serde_json::Value> {
    let output = daemon.flannelctl(&["status", "-o", "json"])?;
    let mut status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(status.get_mut("node").context("no daemon")?.take())
}

/// A free port if that of the status page is in use.
fn bind_page_listener() -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
        .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .context("no free port for the page")
}

/// Starts a process that forwards connections to the status page, and ends after the removal of the namespace. The result is the address on which it
/// accepts them.
pub(crate) fn spawn_page_forwarder(netns: &Netns) -> Result<SocketAddr> {
    let listener = bind_page_listener()?;
    let address = listener.local_addr()?;
    let mut process = Command::new(std::env::current_exe()?);
    process
        .arg("--forward-page")
        .arg(netns.name())
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in the terminal must not end it.
        .process_group(0);
    process.spawn().context("forwarding the page")?;
    Ok(address)
}

/// Ends after the removal of the namespace. Standard input is the socket on which the process accepts the connections.
pub(crate) fn forward_page_until_netns_removed(netns: &str) {
    let Ok(input) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return;
    };
    let (listener, netns) = (TcpListener::from(input), Netns::handle_for_name(netns));
    let inside = netns.clone();
    std::thread::spawn(move || forward_page_connections(&listener, &inside));
    while netns.exists() {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn forward_page_connections(listener: &TcpListener, netns: &Netns) {
    for client in listener.incoming().flatten() {
        let netns = netns.clone();
        std::thread::spawn(move || {
            let inside = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
            if let Ok(Ok(server)) = netns.run(|| TcpStream::connect(inside)) {
                let _ = copy_bytes_both_ways(&client, &server);
            }
        });
    }
}

/// Copies bytes in both directions, until one of the connections closes.
fn copy_bytes_both_ways(client: &TcpStream, server: &TcpStream) -> std::io::Result<()> {
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    std::io::copy(&mut from_server, &mut to_client)?;
    client.shutdown(Shutdown::Both)
}
