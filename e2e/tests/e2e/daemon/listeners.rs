//! Who can reach the daemon's listeners, and what flannelctl shows with and without a daemon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Netns, Node, Scene, SceneOptions, binaries, stdout_and_stderr, stdout_json, until, until_ok,
};

use crate::healing::scenarios;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// Ports of the health endpoint and of the status API.
pub(crate) const HEALTH: u16 = 8471;
pub(crate) const API: u16 = 8474;

/// Requests a path under a host's name. The result is the whole response, from the status line on.
pub(crate) fn get_http_response(
    netns: &Netns,
    address: impl Into<SocketAddr>,
    host: &str,
    path: &str,
) -> Result<String> {
    let address = address.into();
    let ask = || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    netns.run(ask)?
}

#[test]
fn status_api_is_reachable_from_its_own_host_only() -> Result<()> {
    Scene::with_title("listeners").run(|s| {
        let here = s[0].netns();
        // A web page's name could resolve to 127.0.0.1.
        for (name, code) in
            [("127.0.0.1:8474", 200), ("h1", 200), ("evil.example", 421), ("h2", 421)]
        {
            let answer = get_http_response(here, ([127, 0, 0, 1], API), name, "/api/v1/node")?;
            ensure!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{name}: {answer}");
            ensure!(answer.contains("192.168.56.102") == (code == 200), "{name}: {answer}");
        }
        let gateway = s[0].daemon()?.subnet_env()?.subnet.context("a subnet")?.addr();
        for netns in [s[0].pods[0].netns(), s[1].pods[0].netns(), s[1].netns()] {
            for address in [s[0].v4()?, gateway] {
                ensure!(
                    get_http_response(netns, (address, API), "localhost", "/api/v1/node").is_err(),
                    "{} reaches it",
                    netns.name()
                );
                let counts =
                    get_http_response(netns, (address, HEALTH), &address.to_string(), "/status")?;
                ensure!(
                    counts.contains("\"counts\"") && !counts.contains("192.168.56.102"),
                    "{counts}"
                );
            }
        }
        // Only root may use the socket and the commands that change or collect data. Each refusal is one line.
        here.sh(&format!(
            "cp '{}' /tmp/flannelctl",
            binaries::flannel_binary("flannelctl")?.display()
        ))?;
        let file = format!("--subnet-file={}", s[0].subnet_file()?.display());
        for args in [
            &["status", &file][..],
            &["cleanup"],
            &["lab"],
            &["support-bundle"],
            &["peers"],
            &["routes"],
        ] {
            let nobody = ["--reuid=65534", "--clear-groups", "/tmp/flannelctl"];
            let refused = here.output("setpriv", &[&nobody, args].concat())?;
            ensure!(
                refused.status.code() == Some(1)
                    && stdout_and_stderr(&refused).lines().count() == 1,
                "{args:?}: {refused:?}"
            );
        }
        Ok(())
    })
}

scenarios! { daemon_waits_until_tunnel_port_is_free;
    vxlan_waits_for_its_port => (r#""Type":"vxlan""#, 8472),
    udp_waits_for_its_port => (r#""Type":"udp""#, 8285),
    userspace_vxlan_waits_for_its_port => (r#""Type":"vxlan","Mode":"userspace""#, 8472),
    wireguard_waits_for_its_port => (r#""Type":"wireguard","Implementation":"userspace""#, 51820),
}

/// A daemon names the user whose program holds the tunnel's port, is not ready, and works when the port is free.
fn daemon_waits_until_tunnel_port_is_free((backend, port): (&str, u16)) -> Result<()> {
    let conf = format!(r#"{{"Network":"10.5.0.0/16","Backend":{{{backend}}}}}"#);
    Scene::with_title("taken port").net(&conf).without_daemons().run(|s| {
        let held = s[0].netns().run(|| UdpSocket::bind(("0.0.0.0", port)))??;
        s.nodes.iter_mut().try_for_each(|node| node.launch_daemon().map(drop))?;
        until_ok("the holder is named", || {
            let (code, body) = s[0].get_health_endpoint("/readyz")?;
            // With the capabilities of the shipped unit, the daemon may not look into other programs.
            let is_named = body.contains("a program of user 0 ") && body.contains("holds the port");
            ensure!(code == 503 && is_named, "{code} {body}");
            Ok(())
        })?;
        drop(held);
        s.start_daemons_and_connected_pods()
    })
}

/// The endpoint works when the port is free.
#[test]
fn daemon_serves_pods_while_the_health_port_is_taken() -> Result<()> {
    Scene::with_title("taken health port").without_daemons().run(|s| {
        let held = s[0].netns().run(|| TcpListener::bind(("0.0.0.0", HEALTH)))??;
        s.nodes.iter_mut().try_for_each(|node| node.launch_daemon().map(drop))?;
        until_ok("it has a subnet", || s[0].daemon()?.subnet_env())?;
        let state = String::from_utf8(s[0].daemon()?.flannelctl(&["status"])?.stdout)?;
        ensure!(state.contains("health-port") && state.contains("a program of user 0 "), "{state}");
        s[1].daemon_mut()?.wait_ready()?;
        for node in &mut s.nodes {
            node.create_pod("p1")?;
        }
        s.wait_first_pods_connected()?;
        drop(held);
        until_ok("the node is ready", || s[0].require_ready())
    })
}

/// The command exits with `code` and shows `text`.
fn wait_until_status_shows(node: &Node, code: i32, text: &str) -> Result<()> {
    until_ok("flannelctl shows the daemon's state", || {
        let output = run_flannelctl(node, &["status"])?;
        ensure!(
            output.status.code() == Some(code) && stdout_and_stderr(&output).contains(text),
            "{code} {text:?}: {output:?}"
        );
        Ok(())
    })
}

/// The node may have no running daemon.
pub(crate) fn run_flannelctl(node: &Node, args: &[&str]) -> Result<Output> {
    let file = format!("--subnet-file={}", node.subnet_file()?.display());
    node.flannelctl(&[args, &[&file]].concat())
}

#[test]
fn flannelctl_status_names_each_state_of_the_daemon() -> Result<()> {
    Scene::with_title("states").without_daemons().run(|s| {
        wait_until_status_shows(&s[0], 3, "is not running")?;
        let output = run_flannelctl(&s[0], &["peers"])?;
        ensure!(
            output.status.code() == Some(1) && stdout_and_stderr(&output).lines().count() == 1,
            "{output:?}"
        );
        s.start_daemons()?;
        s.wait_leases_applied()?;
        let status = stdout_json(&run_flannelctl(&s[0], &["status", "-o", "json"])?)?;
        ensure!(
            status["schema"] == "flannel.status/1" && status["node"]["ready"] == true,
            "{status}"
        );
        let peers = stdout_json(&run_flannelctl(&s[0], &["peers", "-o", "json"])?)?;
        ensure!(
            peers["schema"] == "flannel.peers/1" && peers["peers"][0]["peer"]["node"] == "h2",
            "{peers}"
        );
        until_ok("the peer is well", || {
            let text = stdout_and_stderr(&run_flannelctl(&s[0], &["peers", "--all"])?);
            ensure!(
                text.lines().any(|line| line.starts_with("h2 ") && line.contains("1 of 1 well")),
                "{text}"
            );
            Ok(())
        })?;
        s[0].daemon()?.send_sigstop()?;
        wait_until_status_shows(&s[0], 3, "hangs")?;
        s[0].daemon()?.send_sigcont()?;
        // A second daemon is refused, and leaves no report in the first one's place.
        let report = s[0].subnet_file()?.with_file_name("subnet.env.ended");
        ensure!(s[0].start_flanneld(&s[0].options)?.wait()?.code() == Some(1));
        wait_until_status_shows(&s[0], 0, "h1 is ready")?;
        ensure!(!report.exists(), "the first daemon has not ended");
        s[0].stop_daemon()?;
        wait_until_status_shows(&s[0], 3, "exit code 0")?;
        s.store.configure(&VXLAN.replace("vxlan", "nosuch"))?;
        s[0].wait_refused_start()?;
        wait_until_status_shows(&s[0], 3, "nosuch")?;
        s.store.configure(VXLAN)?;
        s[0].start_daemon()?;
        until("the exit report is removed", || !report.exists())?;
        // A killed daemon leaves a stale socket, which does not stop the next one.
        s[0].kill_daemon()?;
        wait_until_status_shows(&s[0], 3, "no exit report")?;
        s[0].start_daemon()?;
        wait_until_status_shows(&s[0], 0, "h1 is ready")
    })
}

#[test]
fn command_fails_in_one_line_when_the_store_is_silent() -> Result<()> {
    Scene::with_title("silent").without_daemons().run(|s| {
        // One port drops packets, and one is closed.
        s[1].sh("nft add table ip hole; nft 'add chain ip hole in { type filter hook input priority 0; }'; nft add rule ip hole in tcp dport 2379 drop")?;
        for (args, port) in [(&["leases"][..], 2379), (&["release", "10.5.1.0-24"], 2379), (&["leases"], 1)] {
            let output = s[0].flannelctl(&[args, &[&format!("--etcd-endpoints=http://192.168.56.102:{port}")]].concat())?;
            let text = stdout_and_stderr(&output);
            ensure!(output.status.code() == Some(1) && text.lines().count() == 1 && text.contains("192.168.56.102"), "{output:?}");
        }
        Ok(())
    })
}

scenarios! { reserved_subnet_is_leased_to_its_node;
    reserved_subnet_is_leased_to_its_node_in_etcd => Scene::with_title("reserved: etcd").etcd(),
    reserved_subnet_is_leased_to_its_node_in_a_directory => Scene::with_title("reserved: directory"),
}

/// One subnet is reserved before the node starts, and another one while it runs.
fn reserved_subnet_is_leased_to_its_node(scene: SceneOptions<'_>) -> Result<()> {
    scene.without_daemons().run(|s| {
        let (place, host) = (s.store.daemon_args(), s[0].netns().clone());
        let program = binaries::flannel_binary("flannelctl")?.display().to_string();
        let ctl = |words: &[&str]| host.output(&program, &[words, &[&place[0]]].concat());
        let reserve = |address: &str| {
            Ok::<_, anyhow::Error>(ctl(&["reserve", "10.5.77.0/24", address])?.status.code())
        };
        ensure!(reserve("--address=192.168.56.101")? == Some(0), "the first node's subnet");
        ensure!(
            reserve("--address=192.168.56.103")? == Some(1),
            "a reserved subnet is reserved again"
        );
        s.start_daemons()?;
        ensure!(s[0].subnet()? == "10.5.77.0/24", "{}", s[0].subnet()?);
        let kept = ctl(&["reserve", "h2"])?;
        ensure!(kept.status.success(), "{kept:?}");
        until_ok("both are reservations", || {
            let listed = stdout_json(&ctl(&["leases", "-o", "json"])?)?;
            let leases = listed["leases"].as_array().context("no list")?;
            ensure!(
                leases.len() == 2 && leases.iter().all(|lease| lease["reserved"] == true),
                "{listed}"
            );
            Ok(())
        })?;
        s.check_each_node(|node| node.require_ready())
    })
}
