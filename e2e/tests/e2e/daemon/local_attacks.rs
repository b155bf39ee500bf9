//! No attack by an unprivileged local user or by a pod with raw sockets disturbs the daemon.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use lab::{Launch, Scene, craft, stdout_and_stderr, stdout_json, stdout_text, until, until_ok};

use crate::daemon::listeners::{API, HEALTH, get_http_response};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const TUNNEL: u16 = 8472;
/// For setpriv: user `nobody`, without groups and capabilities.
const NOBODY: [&str; 5] =
    ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];

type Attack = fn(&mut Scene<'_>) -> Result<()>;

/// By the user `nobody`, and by a pod. Each attack returns an error if it has an effect.
const USER_ATTACKS: [(&str, Attack); 3] = [
    (
        "hold every name of the daemon's sockets, then wait for its restart",
        require_restart_despite_held_socket_names,
    ),
    ("touch the daemon's files and process", require_files_and_process_inaccessible),
    ("read what is secret", require_secret_files_unreadable),
];
const POD_ATTACKS: [(&str, Attack); 4] = [
    ("reach 127.0.0.1 of the node by route_localnet", require_status_api_unreachable_from_pod),
    ("claim the addresses of node and peer by ARP", require_forged_arp_ignored),
    ("send a packet of the tunnel to the node itself", |s| {
        require_forged_tunnel_packets_dropped(s, 0)
    }),
    ("send a packet of the tunnel to a peer's underlay address", |s| {
        require_forged_tunnel_packets_dropped(s, 1)
    }),
];

#[test]
fn daemon_withstands_an_unprivileged_user() -> Result<()> {
    require_daemon_withstands_attacks(&USER_ATTACKS)
}

#[test]
fn daemon_withstands_a_pod() -> Result<()> {
    require_daemon_withstands_attacks(&POD_ATTACKS)
}

fn require_daemon_withstands_attacks(attacks: &[(&str, Attack)]) -> Result<()> {
    Scene::with_title("doors").net(VXLAN).daemon_arg("--encap-bar-pods").run(|s| {
        wait_daemon_and_pods_healthy(s)?;
        for (what, attack) in attacks {
            attack(s)
                .and_then(|()| wait_daemon_and_pods_healthy(s))
                .with_context(|| (*what).to_owned())?;
        }
        s.require_no_errors()
    })
}

/// The daemon is ready, probes its peer and reaches it, and pods reach each other.
fn wait_daemon_and_pods_healthy(s: &Scene<'_>) -> Result<()> {
    until_ok("the daemon is well", || {
        s[0].require_ready()?;
        let (_, text) = s[0].daemon()?.get_status_api("/api/v1/node")?;
        let mesh = &serde_json::from_str::<serde_json::Value>(&text)?["mesh"];
        let state = mesh["peers"][0]["state"].as_str();
        ensure!(
            matches!(state, Some("well" | "slow"))
                && mesh["problems"].as_array().is_none_or(Vec::is_empty),
            "{mesh:#}"
        );
        Ok(())
    })?;
    s.wait_first_pods_connected()
}

fn require_restart_despite_held_socket_names(s: &mut Scene<'_>) -> Result<()> {
    let table = s[0].sh("cat /proc/net/unix")?;
    // Before a connection is accepted, its end here has the name of the socket.
    let mut names: BTreeSet<String> = table
        .lines()
        .filter_map(|line| Some(format!("flannel-rs{}", line.split_once(" @flannel-rs")?.1)))
        .collect();
    ensure!(names.len() >= 5, "{names:?}");
    names.extend(["flannel-rs.rules/nft", "flannel-rs.rules/iptables"].map(str::to_owned));
    // Many names, to fill the log.
    names.extend((0..500).map(|number| format!("flannel-rs.taken/port/8473/n{number}")));
    s[0].stop_daemon()?;
    let script = format!(
        "for my $n (qw({})) {{ socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; bind($s, pack_sockaddr_un(\"\\0$n\")) or die \"$n: $!\"; listen($s, 5); push @s, $s }} $| = 1; print \"all are held\\n\"; sleep 600;",
        Vec::from_iter(names).join(" ")
    );
    let squatter = Launch::new("setpriv").args(NOBODY);
    let squatter = s[0].spawn("perl", &squatter.args(["perl", "-MSocket", "-e", &script]))?;
    until("all names are held", || squatter.log().contains("all are held"))?;
    s[0].start_daemon()?;
    wait_daemon_and_pods_healthy(s)?;
    let log = s[0].daemon()?.log();
    let reports: Vec<_> = log.lines().filter(|line| line.contains("another user")).collect();
    ensure!(
        reports.iter().any(|line| line.contains("perl") && line.contains("uid="))
            && reports.len() <= 30,
        "{reports:#?}"
    );
    // A second daemon that root starts is still refused.
    let second = s[0].options.clone().second("second").healthz_port(None);
    ensure!(!s[0].start_flanneld(&second)?.wait()?.success(), "a second daemon runs");
    Ok(())
}

/// Makes the folder of the daemon's files accessible to all users, as /run is.
fn make_subnet_folder_world_readable(s: &Scene<'_>) -> Result<String> {
    let file = s[0].subnet_file()?;
    let folder = file.parent().context("a folder")?;
    for above in folder.ancestors().take_while(|above| above.components().count() > 2) {
        let mode = std::fs::metadata(above)?.permissions().mode();
        std::fs::set_permissions(above, std::fs::Permissions::from_mode(mode | 0o055))?;
    }
    Ok(folder.display().to_string())
}

fn require_files_and_process_inaccessible(s: &mut Scene<'_>) -> Result<()> {
    let (folder, pid) = (make_subnet_folder_world_readable(s)?, s[0].daemon()?.pid());
    let ptrace = if cfg!(target_arch = "x86_64") { 101 } else { 117 };
    // 0x4206 is PTRACE_SEIZE.
    let seize = format!("perl -e 'syscall({ptrace}, 0x4206, {pid}, 0, 0) == 0 or die \"$!\"'");
    let scripts = [
        "test -e .subnet.env.lock && exec 9<.subnet.env.lock",
        "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(\"subnet.env.sock\")) or die \"$!\"'",
        "head -c 1000 /dev/zero > fill",
        "ln -s /etc/passwd link",
        "ln -sf /etc/passwd subnet.env",
        "mv subnet.env old",
        "echo x >> subnet.env",
        "rm -f subnet.env.sock",
        "cat /proc/PID/environ",
        "head -c 1 /proc/PID/mem",
        "cat /proc/PID/maps",
        "ls /proc/PID/fd",
        "kill -TERM PID",
        "kill -KILL PID",
        "kill -STOP PID",
        "kill -HUP PID",
        &seize,
    ];
    for script in scripts {
        let script = format!("cd '{folder}' && {}", script.replace("PID", &pid.to_string()));
        let output =
            s[0].netns().output("setpriv", &[&NOBODY[..], &["sh", "-c", &script]].concat())?;
        let text = stdout_and_stderr(&output);
        ensure!(
            !output.status.success()
                && (text.contains("ermission denied") || text.contains("not permitted")),
            "{script}: {text:?}"
        );
    }
    Ok(())
}

fn require_secret_files_unreadable(s: &mut Scene<'_>) -> Result<()> {
    // All users may read what CNI plugins need; the rest is for root only.
    let script = format!(
        "cd '{}' && for f in $(ls -A); do [ -r $f ] && [ -f $f ] && echo $f; done; true",
        make_subnet_folder_world_readable(s)?
    );
    let readable = stdout_text(
        &s[0].netns().output("setpriv", &[&NOBODY[..], &["sh", "-c", &script]].concat())?,
    );
    ensure!(
        readable.lines().all(|file| file == "subnet.env" || file.ends_with(".log")),
        "{readable}"
    );
    Ok(())
}

fn require_status_api_unreachable_from_pod(s: &mut Scene<'_>) -> Result<()> {
    let gateway = s[0].daemon()?.subnet_env()?.subnet.context("a subnet")?.addr();
    let (here, pod) = (s[0].netns(), s[0].pods[0].netns());
    for netns in [here, pod] {
        netns.sysctl("net/ipv4/conf/all/route_localnet", "1")?;
    }
    pod.sh("ip rule add pref 1 lookup 77; ip rule del pref 0; ip rule add pref 2 lookup local")?;
    pod.sh(&format!(
        "ip route add 127.0.0.1/32 via {gateway} dev eth0 src {} table 77",
        s[0].pods[0].v4()?
    ))?;
    let document = get_http_response(pod, ([127, 0, 0, 1], API), "localhost", "/api/v1/node");
    let status = get_http_response(pod, ([127, 0, 0, 1], HEALTH), "localhost", "/status");
    pod.sh("ip route flush table 77")?;
    here.sysctl("net/ipv4/conf/all/route_localnet", "0")?;
    ensure!(document.is_err(), "{document:?}");
    ensure!(
        status
            .as_ref()
            .is_ok_and(|status| status.contains("\"counts\"") && !status.contains("10.244.")),
        "{status:?}"
    );
    Ok(())
}

/// A node's addresses on the underlay and in the overlay.
fn underlay_and_overlay_addresses(s: &Scene<'_>, node: usize) -> Result<[IpAddr; 2]> {
    let subnet = s[node].daemon()?.subnet_env()?.subnet.context("a subnet")?;
    Ok([s[node].v4()?.into(), subnet.network().into()])
}

fn require_forged_arp_ignored(s: &mut Scene<'_>) -> Result<()> {
    let pod = s[0].pods[0].netns();
    // Sends a gratuitous ARP reply for each address, from the pod's own hardware address.
    for ip in
        [underlay_and_overlay_addresses(s, 0)?, underlay_and_overlay_addresses(s, 1)?].concat()
    {
        let script = format!(
            "my $m = `cat /sys/class/net/eth0/address`; $m =~ s/[:\\s]//g; $m = pack('H*', $m); my $i = inet_aton('{ip}'); \
             socket(S, 17, SOCK_RAW, 0x0608) or die $!; my $x = `cat /sys/class/net/eth0/ifindex`; \
             my $f = (\"\\xff\" x 6) . $m . pack('n6', 0x0806, 1, 0x0800, 0x0604, 2, 0); $f = substr($f, 0, 22) . $m . $i . (\"\\xff\" x 6) . $i; \
             for (1..20) {{ send(S, $f, 0, pack('SnlSCCa8', 17, 0x0806, $x, 1, 0, 6, '')) or die $!; }}"
        );
        pod.exec("ip", &["netns", "exec", pod.name(), "perl", "-MSocket", "-e", &script])?;
    }
    let neighbours =
        stdout_json(&s[0].netns().output("ip", &["-j", "neigh", "show", "dev", "flannel.1"])?)?;
    ensure!(
        neighbours
            .as_array()
            .context("neighbours")?
            .iter()
            .all(|entry| entry["state"][0] == "PERMANENT"),
        "{neighbours}"
    );
    Ok(())
}

/// Sends VXLAN datagrams from the first node's pod to a node's tunnel port. That node's pod receives none of them.
fn require_forged_tunnel_packets_dropped(s: &mut Scene<'_>, node: usize) -> Result<()> {
    let peer = underlay_and_overlay_addresses(s, 1)?;
    let (pod, target) = (&s[0].pods[0], SocketAddr::new(s[node].pods[0].address()?, 7777));
    let link = s[node].netns().link("flannel.1")?.context("flannel.1")?;
    let mac: Vec<u8> = link
        .address
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()?;
    let inner = craft::udp_packet(SocketAddr::new(peer[1], 7), target, 64, b"forged");
    let frame = craft::vxlan_datagram(1, mac.try_into().ok().context("a MAC")?, 0x0800, &inner);
    let socket = s[node].pods[0].netns().run(|| UdpSocket::bind("0.0.0.0:7777"))??;
    let tunnel = SocketAddr::new(s[node].v4()?.into(), TUNNEL);
    craft::send_from(
        pod.netns(),
        SocketAddr::new(pod.address()?, 0),
        tunnel,
        &[frame.clone(), frame.clone()],
    )?;
    if node == 0 {
        // With strict reverse path filtering, the bridge drops packets that have a peer's source address.
        s[0].netns().sysctl("net/ipv4/conf/cni0/rp_filter", "1")?;
    }
    let forged = SocketAddr::new(peer[0], TUNNEL);
    craft::send_raw(pod.netns(), &[craft::udp_packet(forged, tunnel, 64, &frame)])?;
    // A later packet, which may pass, is the first that arrives.
    let other = &s[1 - node].pods[0];
    craft::send_from(
        other.netns(),
        SocketAddr::new(other.address()?, 0),
        target,
        &[b"genuine".to_vec()],
    )?;
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer)?;
    ensure!(&buffer[..length] == b"genuine", "a forged packet came out of the tunnel");
    Ok(())
}
